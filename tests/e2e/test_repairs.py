"""Repair tools by recipe: in training, where the policy helps itself, and in evaluation with a helper of the user's own."""

import json
from pathlib import Path

import pytest

from e2e_runs import EVAL, TRAIN, overrides, write_task
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
        *REPAIR,
        *("engine={name='scripted', script='task/script.toml'}", "tools.python={timeout_seconds=5}"),
    )
    settings += (
        "sandbox.min_level=0",
        "rollout.max_tokens=400",
        "preflight.enabled=false",
        "run.dir='timed'",
    )
    words = overrides(*settings)
    assert main(["rollout", str(task / "recipe.toml"), *words]) == 0
    events = [
        json.loads(line) for path in Path("timed/timing").iterdir() for line in path.read_text().splitlines()
    ]
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


def test_its_answers_are_recorded_and_replayed_without_the_helper(task):
    cache = ("repair.cache={path='helper.cassette', mode='record'}",)
    first = evaluate(task, "recorded", *REPAIR, *cache)
    Path("away").touch()
    replay = "repair.cache={path='helper.cassette', mode='replay_or_fail'}"
    replayed = evaluate(task, "replayed", *REPAIR, replay)
    assert replayed["repairs"] == first["repairs"]
    assert (first["helper"]["answers"], replayed["helper"]["answers"]) == (1, 0)
    assert [r.info["program"] for r in results("replayed")] == [
        r.info["program"] for r in results("recorded")
    ]


@pytest.mark.parametrize("mode", ["replay", "replay_or_fail"])
def test_an_edited_helper_is_another_one(task, capsys, mode):
    """Its recorded answers are not replayed: they are asked again, or the run says that they are missing."""
    evaluate(task, "recorded", *REPAIR, "repair.cache={path='helper.cassette', mode='record'}")
    Path("helper.py").write_text(HELPER.replace('return told["program"] + ")"', "return 'print(7)'"))
    replay = f"repair.cache={{path='helper.cassette', mode='{mode}'}}"
    if mode == "replay":
        evaluate(task, "replayed", *REPAIR, replay)
        assert [r.text for r in results("replayed")] == ["7", "7"]
        return
    with pytest.raises(AssertionError):
        evaluate(task, "replayed", *REPAIR, replay)
    message = capsys.readouterr().err.splitlines()[-1]
    assert "helper.cassette" in message
    assert "debugger" in message


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
    ("settings", "kinds"),
    [
        (["repair.debugger={}", "repair.backtracer={calls=2}"], "backtracer"),
        (["repair.debugger={}", "repair.refiner={at_tokens=5}", "repair.max_tokens=8"], "rewriter/refiner"),
    ],
)
def test_a_policy_that_is_its_own_helper_trains_twice_alike(task, settings, kinds):
    """On the local engine; the untrained policy's calls fail, and its answers are no help."""
    settings.append("data.max_prompt_tokens=2500")

    def train(run):
        words = overrides(*settings, f"run.dir='{run}'", "engine.slots=24")
        assert main(["train", str(task / "recipe.toml"), *words, "--max-steps", "2"]) == 0
        paths = trace_files(Path(run) / "trees")
        return [traced for path in paths for traced in read_trees(path)]

    first = train("first")
    assert train("second") == first
    assert read_metrics(Path("first/metrics.jsonl"))[-1]["update/mismatch_max"] < 1e-4
    rewritten = {node.rewriter for traced in first for node in traced.tree.nodes if node.rewriter}
    lines = [line for path in Path("first/timing").iterdir() for line in path.read_text().splitlines()]
    events = {json.loads(line)["kind"] for line in lines}
    assert kinds in rewritten | events


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["repair.helper={name='file', path='helper.py', function='helper'}"], "expected debugger, backtracer or refiner"),
        (["repair.backtracer={}", "repair.max_tokens=5"], "repair.max_tokens: has no effect without debugger or refiner"),
        (["repair.debugger={}", "repair.helper={name='file', path='helper.py', function='f'}"], "no function or class 'f'"),
        (["repair.debugger={calls=0}"], "repair.debugger.calls"),
        (["repair.debuger={}"], "did you mean debugger"),
        ([*REPAIR, "tools.python={}", "repair.cache={path='none', mode='replay_or_fail'}"], "repair.cache.path"),
        (
            ["repair.debugger={}", "tools.python={}", "repair.cache={path='c.sqlite'}"],
            "repair.cache: has no effect without helper",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(task, capsys, settings, message):
    words = overrides(*settings)
    assert main(["train", str(task / "recipe.toml"), *words]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert len(line.splitlines()) == 1


def test_a_debugger_without_programs_is_refused(task, capsys):
    assert main(["eval", str(task / "eval.toml"), "-s", "repair.debugger={}"]) == 2
    assert "repair.debugger: corrects programs of [tools.python]" in capsys.readouterr().err
