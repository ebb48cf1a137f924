"""docs/your-own-task.md: its files and commands, run in their order as they stand on the page.

Shortened for time, and nothing else is changed: the quick start is its smoke run (whose model has learned to write no call),
and there are fewer rows (`FEWER`). The cold start is long enough that the model calls the tool; what it costs to become good is
on the page.
"""

import json

import pytest

from doc_pages import follow
from e2e_runs import read_lines
from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.obs.trace import read_trees

pytestmark = pytest.mark.integration

FEWER = {
    "make_problems.py": (("TRAIN, 600", "TRAIN, 30"), ("TEST, 400", "TEST, 40")),
    "make_demonstrations.py": (("TRAIN, 4000", "TRAIN, 1600"),),
}
STEPS = (
    ("quickstart/sft/checkpoints/step-001200", "quickstart/sft/checkpoints/step-000030"),
    ("mytask/sft/checkpoints/step-000250", "mytask/sft/checkpoints/step-000100"),
    ("mytask/rl/checkpoints/step-000040", "mytask/rl/checkpoints/step-000002"),
)


@pytest.fixture(scope="module")
def task(tmp_path_factory, smoke_quickstart):
    """The folder in which all of the page was done."""
    folder = tmp_path_factory.mktemp("own")
    follow("your-own-task.md", folder, smoke_quickstart, FEWER, STEPS)
    return folder / "mytask"


def test_no_training_problem_asks_for_a_price_of_the_test(task):
    prices_asked = {
        name: {(item, row["shop"]) for row in read_lines(task / f"{name}.jsonl") for _, item in row["order"]}
        for name in ("train", "test")
    }
    assert prices_asked["train"]
    assert prices_asked["test"]
    assert not prices_asked["train"] & prices_asked["test"]


def test_the_answers_are_sums_of_the_listed_prices(task):
    prices = json.loads((task / "prices.json").read_text(encoding="utf-8"))
    for row in read_lines(task / "train.jsonl"):
        assert row["answer"] == sum(number * prices[f"{item} {row['shop']}"] for number, item in row["order"])


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_an_evaluation_called_the_tool_and_paid_the_reward(task, stage):
    folder = task / f"eval-{stage}"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["num_problems"] == 40
    assert set(summary["groups"]["kind"]) == {"one item", "two items"}
    assert summary["tools"]["price"]["executed"] > 0
    assert 0 < summary["parts"]["well_asked"]["value"] <= 1
    for result in read_lines(folder / "results.jsonl"):
        parts = result["parts"]
        assert result["reward"] >= -1 + 0.2 * parts["well_asked"]
    assert (folder / "report.html").stat().st_size > 0


def test_the_tool_answers_with_the_listed_prices(task):
    prices = json.loads((task / "prices.json").read_text(encoding="utf-8"))
    count = 0
    for traced in read_trees(task / "eval-rl" / "trees.jsonl"):
        (trajectory,) = traced.tree.trajectories
        for call, result in trajectory.exchanges:
            if call.name == "price" and result.status is ToolStatus.OK:
                item = call.arguments["item"]
                known = item in prices
                assert result.text == (f"- {item} {prices[item]}" if known else "- not found")
                count += known
    assert count > 0


def test_the_recipe_for_a_real_model_trains_another_model(task, model_folder, monkeypatch):
    monkeypatch.chdir(task.parent)
    recipe = ["mytask/real_sft.toml", "-s", f"model.path={model_folder}", "-s", "run.threads=1"]
    assert main(["sft", *recipe, "--max-steps", "1"]) == 0
    assert (task.parent / "runs" / "real" / "sft" / "checkpoints" / "step-000001").is_dir()
    manifest = json.loads((task.parent / "runs" / "real" / "sft" / "manifest.json").read_text())
    assert set(manifest["made_from"]["tools"]) == {"price"}


def test_rl_learned_from_groups_whose_rewards_differ(task):
    preflight = json.loads((task / "rl" / "preflight" / "report.json").read_text(encoding="utf-8"))
    assert preflight["groups_that_differ"] > 0
    assert preflight["call_rate"] > 0
    steps = read_lines(task / "rl" / "metrics.jsonl")
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["update/grad_norm"] > 0 for row in steps)
    assert all(row["reward/part/well_asked"] > 0 for row in steps)
