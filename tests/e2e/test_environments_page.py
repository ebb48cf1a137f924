"""docs/environments.md: its files and commands, run in their order as they stand on the page.

Shortened for time: the quick start is its smoke run, there are fewer rows, and training takes two steps.
"""

import json

import pytest

from doc_pages import follow
from ramify.core.tree import StopReason
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

pytestmark = pytest.mark.integration

FEWER = {"make.py": (("range(600)", "range(30)"), ("range(400)", "range(40)"), ("range(4000)", "range(1600)"))}  # fmt: skip
STEPS = (
    ("quickstart/sft/checkpoints/step-001200", "quickstart/sft/checkpoints/step-000030"),
    ("_sft/checkpoints/step-000250", "_sft/checkpoints/step-000100"),
    ("run.steps=30", "run.steps=2"),
    ("_rl/checkpoints/step-000030", "_rl/checkpoints/step-000002"),
)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, smoke_quickstart):
    """The folder in which all of the page was done."""
    folder = tmp_path_factory.mktemp("worlds")
    names = follow("environments.md", folder, smoke_quickstart, FEWER, STEPS)
    assert names == [
        f"worlds/{name}"
        for name in (
            *("increment.py", "increment_rl.toml"),
            *("nim.py", "shop.py", "make.py", "nim_rl.toml", "nim_eval.toml"),
        )
    ]
    assert all(len((folder / name).read_text().splitlines()) <= 60 for name in names)
    return folder / "worlds"


def test_a_class_for_trl_needs_no_data(worlds):
    rows = read_metrics(worlds / "increment_rl" / "metrics.jsonl")
    assert [row["stop/failed"] for row in rows] == [0, 0]
    trees = read_trees(worlds / "increment_trees" / "trees" / "000001.jsonl")
    texts = {traced.tree.problem.messages[-1].text for traced in trees}
    assert all(text.startswith("Increment the counter by ") for text in texts)
    assert len(texts) > 1


@pytest.mark.parametrize("name", ["nim", "shop"])
def test_both_worlds_train_and_branch_in_mid_episode(worlds, name):
    rows = read_metrics(worlds / f"{name}_rl" / "metrics.jsonl")
    assert len(rows) == 2
    assert all(row["stop/failed"] == 0 for row in rows)
    trees = [traced for path in trace_files(worlds / f"{name}_rl" / "trees") for traced in read_trees(path)]
    assert any(decision.taken for traced in trees for decision in traced.tree.decisions)
    for traced in trees:
        for trajectory, reward in zip(traced.tree.trajectories, traced.rewards, strict=True):
            assert reward.value == reward.parts["paid"] == trajectory.paid
            assert dict(reward.events) == {n.id: n.reward for n in trajectory.policy_nodes if n.reward}


def test_the_game_pays_often_enough_to_learn_from(worlds):
    """The shop hardly pays the smoke run's model."""
    assert any(row["update/grad_norm"] for row in read_metrics(worlds / "nim_rl" / "metrics.jsonl"))


def test_the_game_is_what_the_trace_says(worlds):
    ended = 0
    for traced in read_trees(worlds / "nim_after" / "trees.jsonl"):
        (trajectory,) = traced.tree.trajectories
        stones = traced.tree.problem.info["stones"]
        for call, result in trajectory.exchanges:
            count = call.arguments["count"]
            if result.text == "- not allowed":
                assert count not in ("1", "2", "3") or int(count) > stones
                continue
            before, stones = stones, int(result.text.removeprefix("- "))
            assert 0 <= before - int(count) - stones <= 3
        if trajectory.stop is StopReason.ENDED:
            ended += 1
            assert trajectory.exchanges[-1][1].ends
            assert trajectory.paid == float(stones == 0 and before == int(count))
    assert ended > 0


def test_an_evaluation_says_what_is_right(worlds):
    summary = json.loads((worlds / "shop_after" / "summary.json").read_text(encoding="utf-8"))
    assert summary["num_problems"] == 40
    assert 0 <= summary["parts"]["paid"]["value"] <= 1
