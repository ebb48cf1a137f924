"""Rewriters of the user's own, named in recipes: a policy learns from contexts that go on from inside its turns."""

import json

import pytest

from e2e_runs import EVAL, TRAIN, overrides, read_lines, write_task
from ramify.cli import main
from ramify.core.tree import Cut
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

SOURCE = '''
from ramify.core.records import ContinueFrom
from ramify.core.tree import Cut


def halfway(trajectory, word=" so"):
    """Back to the middle of a turn that ended without a call or an answer."""
    asked = trajectory.leaf
    if asked.stop is None or len(asked.token_ids) < 2:
        return None
    return ContinueFrom(Cut(asked.id, len(asked.token_ids) // 2), word)


def breaks(trajectory):
    raise KeyError("nothing here")


def says(trajectory):
    return "go on"


def leaves(trajectory):
    raise SystemExit(3)


def takes_none():
    return None


def yields(trajectory):
    yield None


class Remembers:
    def __init__(self, trajectory):
        self.trajectory = trajectory
'''
REWRITER = "{path='rewriters.py', function='halfway', args={word=' well'}, budget=2}"


@pytest.fixture
def task(tmp_path, model_folder, monkeypatch):
    recipe = write_task(tmp_path / "task", model_folder, TRAIN)
    (tmp_path / "rewriters.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return recipe


def train(recipe, rewriter, *more):
    words = overrides(f"rollout.rewriters=[{rewriter}]", "engine.slots=24", "algorithm.truncated='train'")
    return main(["train", str(recipe), *words, "--max-steps", "2", *more])


def events_of(task, name):
    """Return the fields of a rewriter's events in the first step."""
    events = read_lines(task.parent / "run" / "timing" / "000001.jsonl")
    return [event["fields"] for event in events if event["kind"] == f"rewriter/{name}"]


def trees_of(run):
    return [traced.tree for path in trace_files(run / "trees") for traced in read_trees(path)]


def test_a_policy_learns_from_contexts_that_go_on_inside_its_turns_and_does_so_again_bit_for_bit(
    task, capsys
):
    run = task.parent / "run"
    assert train(task, REWRITER) == 0
    assert "rewriter halfway: halfway of rewriters.py, sha256 " in capsys.readouterr().out
    trees = trees_of(run)
    cuts = [node for tree in trees for node in tree.nodes if isinstance(node.context, Cut)]
    assert cuts
    assert {node.text for node in cuts} == {" well"}
    assert max(len(t.segments) for tree in trees for t in tree.trajectories) == 3
    for row in read_metrics(run / "metrics.jsonl"):
        assert row["update/grad_norm"] > 0
        assert row["update/mismatch_max"] < 1e-4
    events = events_of(task, "halfway")
    assert {fields["asked"] for fields in events} >= {"go on"}
    reasons = [fields["reason"] for fields in events if fields["asked"] != "go on"]
    assert all("there is room for" in reason or "a character is cut" in reason for reason in reasons)
    assert train(task, REWRITER, "-s", f"run.dir={task.parent / 'again'}") == 0
    assert trees_of(task.parent / "again") == trees
    capsys.readouterr()
    (task.parent.parent / "rewriters.py").write_text(SOURCE + "\n")
    assert train(task, REWRITER, "--resume") == 2
    assert "rewriters" in capsys.readouterr().err


def test_an_evaluation_has_rewriters_too(tmp_path, model_folder, task, capsys):
    recipe = write_task(tmp_path / "eval", model_folder, EVAL)
    assert main(["eval", str(recipe), "-s", f"sampling.rewriters=[{REWRITER}]"]) == 0
    run = next(path.parent for path in tmp_path.rglob("trees.jsonl"))
    nodes = [node for traced in read_trees(run / "trees.jsonl") for node in traced.tree.nodes]
    assert {node.context.tokens > 0 for node in nodes if isinstance(node.context, Cut)} == {True}
    message = json.loads((run / "manifest.json").read_text())["scores"]["rewriters"]
    assert set(message) == {"halfway"}


FAILS = {
    "breaks": "KeyError: 'nothing here'",
    "says": "expected ContinueFrom, FreshContext or None, got str",
    "leaves": "SystemExit: 3",
}


def test_one_that_fails_is_an_event_and_the_run_goes_on(task, capsys):
    rewriters = ", ".join(f"{{path='rewriters.py', function='{name}'}}" for name in FAILS)
    assert train(task, rewriters, "--max-steps", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    for name, reason in FAILS.items():
        events = events_of(task, name)
        assert events
        assert all(reason in fields["reason"] for fields in events)
        (message,) = [line for line in lines if f"rewriter {name}: " in line and "answers" in line]
        assert reason in message


@pytest.mark.parametrize(
    ("rewriter", "message"),
    [
        ("{path='rewriters.py', function='other'}", "rewriters.py: no function or class 'other'"),
        ("{path='rewriters.py', function='takes_none'}", "rewriters.py: rewriter takes_none: expected"),
        ("{path='rewriters.py', function='yields'}", "got a class or a generator"),
        ("{path='rewriters.py', function='Remembers'}", "got a class or a generator"),
        (
            "{path='rewriters.py', function='says'}, {path='rewriters.py', function='says'}",
            "rollout.rewriters: two are called 'says'; give one another name",
        ),
        ("{path='rewriters.py', function='halfway', args={wrod='x'}}", "rewriters.py: rewriter halfway: expected"),
        ("{path='rewriters.py', function='halfway', budget=0}", "rollout.rewriters"),
        ("{path='rewriters.py'}", "rollout.rewriters"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(task, refused, rewriter, message):
    assert message in refused("train", task, "-s", f"rollout.rewriters=[{rewriter}]", "--max-steps", "1")
