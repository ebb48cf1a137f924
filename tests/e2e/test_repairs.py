"""Repair tools by recipe: in training, where the policy helps itself, and in evaluation with a helper of the user's own."""

import json
from pathlib import Path

import pytest

from e2e_runs import EVAL, TRAIN, overrides, read_lines, write_task
from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

HELPER = '''
import json
from pathlib import Path


def helper(messages):
    """Knows one mistake: a bracket that is not closed."""
    if Path("away").exists():
        raise OSError("nobody is there")
    told = json.loads(messages[-1]["content"].split("\\n", 1)[1].rsplit("\\n", 1)[0])
    if "work" in told:
        return "12 plus 30 is 42"
    return told["program"] + ")"


def broken(messages):
    raise ValueError("no idea")
'''
SCRIPT = r"""
[[turns]]
after = 0
text = "<think> I look it up. I add them up here with care </think><python> print(12 + 30 </python>"
entropies = [0.1]
[[turns]]
after = 1
text = "<think> I look it up. it is done </think><answer> \\boxed{ 42 } </answer>"
entropies = [0.1]
ends = true
"""
REPAIR = ["repair.debugger={}", "repair.helper={name='file', path='helper.py', function='helper'}"]


@pytest.fixture
def task(tmp_path, model_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("helper.py").write_text(HELPER)
    write_task(tmp_path / "task", model_folder, TRAIN, script=SCRIPT)
    evaluation = tmp_path / "task" / "eval.toml"
    evaluation.write_text(EVAL.format(model=model_folder, folder=tmp_path / "task"))
    return tmp_path / "task"


def evaluate(task, run, *settings):
    words = [
        *("engine={name='scripted', script='task/script.toml'}", "tools.python={timeout_seconds=5}"),
        *("sandbox.min_level=0", "sampling.attempts=1", "sampling.k=[1]", "data.limit=2", f"run.dir='{run}'"),
        *("sampling.max_tokens=400", "sampling.max_calls=3"),
        *settings,
    ]
    status = main(["eval", str(task / "eval.toml"), *overrides(*words)])
    assert status == 0
    return json.loads((Path(run) / "summary.json").read_text())


def test_a_training_run_times_what_the_debugger_did(task):
    settings = (
        *(*REPAIR, "engine={name='scripted', script='task/script.toml'}", "tools.python={timeout_seconds=5}"),
        *("sandbox.min_level=0", "rollout.max_tokens=400", "preflight.enabled=false", "run.dir='timed'"),
    )
    assert main(["rollout", str(task / "recipe.toml"), *overrides(*settings)]) == 0
    events = [event for path in Path("timed/timing").iterdir() for event in read_lines(path)]
    outcomes = {event["fields"].get("debugger") for event in events if event["kind"] == "tool/python"}
    assert outcomes == {"corrected"}


def results(run):
    trees = read_trees(Path(run) / "trees.jsonl")
    return [node.results[0] for traced in trees for node in traced.tree.nodes if node.results]


def test_the_debugger_in_an_evaluation(task):
    plain = evaluate(task, "plain")
    assert [result.status for result in results("plain")] == [ToolStatus.ERROR] * 2
    assert plain["repairs"] == {}
    summary = evaluate(task, "debugged", *REPAIR)
    assert [(r.status, r.text, r.info["debugger"]) for r in results("debugged")] == [
        (ToolStatus.OK, "42", "corrected")
    ] * 2
    assert summary["repairs"] == {"debugger: corrected": {"times": 2, "attempts": 2, "correct": 0}}
    assert summary["helper"] == {"answers": 2, "prompt_tokens": 0, "completion_tokens": 0, "retries": 0}
    assert "helper" not in plain
    page = Path("debugged/report.html").read_text()
    assert "debugger: corrected" in page
    assert "the helper gave 2 answers" in page
    assert json.loads(Path("debugged/manifest.json").read_text())["scores"]["helper"] is not None


def test_its_answers_are_recorded_and_replayed_without_the_helper(task, capsys):
    """An edited helper is another one: its answers are asked for again, or the run says that they are missing."""
    first = evaluate(task, "recorded", *REPAIR, "repair.cache={path='helper.cassette', mode='record'}")
    replay, replay_or_fail = (
        f"repair.cache={{path='helper.cassette', mode='{mode}'}}" for mode in ("replay", "replay_or_fail")
    )
    Path("helper.py").write_text(HELPER.replace('return told["program"] + ")"', "return 'print(7)'"))
    with pytest.raises(AssertionError):
        evaluate(task, "missing", *REPAIR, replay_or_fail)
    message = capsys.readouterr().err.splitlines()[-1]
    assert "helper.cassette" in message
    assert "debugger" in message
    evaluate(task, "edited", *REPAIR, replay)
    assert [result.text for result in results("edited")] == ["7", "7"]
    Path("helper.py").write_text(HELPER)
    Path("away").touch()
    replayed = evaluate(task, "replayed", *REPAIR, replay_or_fail)
    assert replayed["repairs"] == first["repairs"]
    assert (first["helper"]["answers"], replayed["helper"]["answers"]) == (1, 0)
    programs = [[result.info["program"] for result in results(run)] for run in ("replayed", "recorded")]
    assert programs[0] == programs[1]


def test_a_helper_that_breaks_is_counted_and_the_evaluation_goes_on(task):
    broken = "repair.helper={name='file', path='helper.py', function='broken'}"
    summary = evaluate(task, "broken", REPAIR[0], broken)
    assert summary["repairs"] == {"debugger: malformed": {"times": 2, "attempts": 2, "correct": 0}}


def test_the_backtracer_and_the_refiner_in_an_evaluation(task):
    summary = evaluate(task, "back", "repair.backtracer={}")
    assert summary["repairs"]["backtracer"]["times"] == 2
    (trajectory,) = read_trees(Path("back/trees.jsonl"))[0].tree.trajectories
    assert len(trajectory.segments) == 2
    refined = evaluate(task, "refined", "repair.refiner={at_tokens=20}", REPAIR[1])
    assert refined["repairs"]["refiner"]["times"] == 2
    (trajectory,) = read_trees(Path("refined/trees.jsonl"))[0].tree.trajectories
    (node,) = [node for node in trajectory.nodes if node.rewriter]
    assert node.text == "<think> 12 plus 30 is 42</think>"
    assert (
        trajectory.segments[-1].token_ids[: len(trajectory.nodes[0].token_ids)]
        == trajectory.nodes[0].token_ids
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (("repair.backtracer={calls=2}",), "backtracer"),
        (("repair.refiner={at_tokens=5}", "repair.max_tokens=8"), "rewriter/refiner"),
    ],
)
def test_a_policy_that_is_its_own_helper_trains_twice_alike(task, settings, kind):
    """On the local engine; the untrained policy's calls fail, and its answers are no help."""
    common = ("repair.debugger={}", "data.max_prompt_tokens=2500", "engine.slots=24")

    def train(run):
        words = overrides(*common, *settings, f"run.dir='{run}'")
        assert main(["train", str(task / "recipe.toml"), *words, "--max-steps", "2"]) == 0
        return [traced for path in trace_files(Path(run) / "trees") for traced in read_trees(path)]

    first = train("first")
    assert train("second") == first
    assert read_metrics(Path("first/metrics.jsonl"))[-1]["update/mismatch_max"] < 1e-4
    rewritten = {node.rewriter for traced in first for node in traced.tree.nodes}
    events = [event for path in Path("first/timing").iterdir() for event in read_lines(path)]
    assert kind in rewritten | {event["kind"] for event in events}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["repair.helper={name='file', path='helper.py', function='helper'}"], "expected debugger, backtracer or refiner"),
        (["repair.backtracer={}", "repair.max_tokens=5"], "repair.max_tokens: has no effect without debugger or refiner"),
        (["repair.debugger={}", "repair.helper={name='file', path='helper.py', function='f'}"], "no function or class 'f'"),
        (["repair.debugger={calls=0}"], "repair.debugger.calls"),
        (["repair.debuger={}"], "did you mean debugger"),
        ([*REPAIR, "tools.python={}", "repair.cache={path='none', mode='replay_or_fail'}"], "repair.cache.path"),
        (["repair.debugger={}", "tools.python={}", "repair.cache={path='c.sqlite'}"], "has no effect without helper"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(task, refused, settings, message):
    assert message in refused("train", task / "recipe.toml", *overrides(*settings))


def test_a_debugger_without_programs_is_refused(task, refused):
    message = refused("eval", task / "eval.toml", "-s", "repair.debugger={}")
    assert "repair.debugger: corrects programs of [tools.python]" in message
