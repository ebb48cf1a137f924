"""One step of a released recipe on rows of its own data file: the model's own turns, then a script with real tools."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from e2e_runs import overrides, write_task
from ramify.algos.credit import Weighting, credit
from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.learner.pack import pack
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from random_trees import credited, training

RECIPE = Path(__file__).parents[2] / "recipes" / "arpo_reasoning_7b.toml"


@pytest.fixture(scope="module")
def settings(shared_dir, model_folder, tmp_path_factory):
    task = write_task(tmp_path_factory.mktemp("task"), model_folder).parent
    return {
        "model.path": model_folder,
        "model.dtype": "float32",
        "engine.name": "local",
        "data.train": shared_dir / "data" / "rl" / "train_10k.parquet",
        "rollout.problems_per_step": 8,
        "tools.search.provider": "local",
        "tools.search.corpus": task / "passages.jsonl",
        "reward.name": "length",
        "rollout.max_tokens": 100,
    }


@pytest.fixture(scope="module")
def scripted(settings):
    script = settings["tools.search.corpus"].with_name("script.toml")
    # A script's logprobs are not the model's; to train on them all the same is an explicit choice.
    return settings | {
        "engine.name": "scripted",
        "engine.script": script,
        "rollout.max_tokens": 600,
        "algorithm.max_mismatch": 100.0,
    }


@pytest.fixture(scope="module")
def scripted_run(scripted, tmp_path_factory):
    run = tmp_path_factory.mktemp("scripted") / "run"
    assert main(["train", *arguments(scripted, run), "--max-steps", "1"]) == 0
    return run


def arguments(settings, run):
    return [str(RECIPE), *overrides(settings | {"run.dir": run})]


def check_group(tree):
    """Sixteen leaves with ids of their own; what two of them share is one object, and nothing else is equal."""
    assert len(tree.trajectories) == 16
    assert len({trajectory.leaf.id for trajectory in tree.trajectories}) == 16
    for first, other in itertools.combinations(tree.trajectories, 2):
        together = [a for a, b in zip(first.nodes, other.nodes, strict=False) if a.id == b.id]
        assert together[0].source is Source.PROMPT
        assert all(a is b for a, b in zip(together, other.nodes, strict=False))
        assert len(together) < min(len(first.nodes), len(other.nodes))


def test_one_step_of_the_recipe(settings, tmp_path, capsys):
    assert main(["train", *arguments(settings, tmp_path / "run"), "--max-steps", "1"]) == 0
    output = capsys.readouterr().out
    assert "repaired \\boxed in 10000 prompts" in output
    assert "dropped 1 row with a blank answer: row 5274" in output
    assert "the ratio is 1: algorithm.loss.dual_clip does not act" in output
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert row["update/grad_norm"] > 0
    assert row["update/steps"] == 1
    assert row["update/mismatch_max"] < 1e-4
    traced = read_trees(tmp_path / "run" / "trees" / "000001.jsonl")
    assert len(traced) == len({item.tree.problem.id for item in traced}) == 8
    for item in traced:
        check_group(item.tree)
        assert "\b" not in item.tree.problem.messages[0].text
        # Equal draws would write equal texts: each leaf has a seed of its own.
        assert len({trajectory.leaf.token_ids for trajectory in item.tree.trajectories}) == 16
    unique = sum(len(node.token_ids) for item in traced for node in item.tree.nodes)
    assert row["update/tokens"] == row["tokens/unique"] == unique
    assert (tmp_path / "run" / "checkpoints" / "step-000001" / "model.safetensors").is_file()


def test_the_same_rows_with_scripted_calls(scripted_run):
    (row,) = read_metrics(scripted_run / "metrics.jsonl")
    assert row["branch/planned"] >= row["branch/taken"] > 0
    assert row["calls/per_trajectory"] == 2
    assert row["calls/ok_rate"] == 1
    assert row["update/grad_norm"] > 0
    trees = [item.tree for item in read_trees(scripted_run / "trees" / "000001.jsonl")]
    for tree in trees:
        check_group(tree)
        check_calls(tree)
    written = sum(len(n.token_ids) for tree in trees for n in tree.nodes if n.source is Source.POLICY)
    assert row["tokens/written"] == written < row["tokens/unique"]
    check_only_turns_are_trained(trees)


def check_calls(tree):
    texts = set()
    for trajectory in tree.trajectories:
        assert trajectory.stop is StopReason.ANSWERED
        for call, result in trajectory.exchanges:
            assert result.status is ToolStatus.OK
            assert result.info.get("sandbox_level", 1) >= 1
            texts.add((call.name, result.text.splitlines()[0]))
    answers = {("python", "42"), ("search", "Page 1: Paris is the capital of France.")}
    assert answers <= texts <= answers | {("search", "Page 1: 12 plus 30 is 42.")}


def check_only_turns_are_trained(trees):
    """In the packed rows the loss sees each token of a turn once and no token of a result."""
    for tree in trees:
        ones = [[1.0] * trajectory.num_written for trajectory in tree.trajectories]
        (row,) = pack(credited([tree], [credit(training(tree, ones), Weighting())]), 1 << 20)
        turns = [token for node in tree.nodes if node.source is Source.POLICY for token in node.token_ids]
        assert sorted(row.token_ids[row.written]) == sorted(turns)
        assert len(row.token_ids) == sum(len(node.token_ids) for node in tree.nodes)
        assert len(set(row.written.tolist())) == len(turns)


def test_a_rollout_grows_the_trees_of_the_first_step_without_weights(
    scripted, scripted_run, tmp_path, model_folder, capsys
):
    bare = tmp_path / "bare"
    shutil.copytree(model_folder, bare)
    (bare / "model.safetensors").unlink()
    (bare / "config.json").unlink()
    words = arguments(scripted | {"model.path": bare}, tmp_path / "run")
    assert main(["rollout", *words, "--problems", "3"]) == 0
    trees = [item.tree for item in read_trees(tmp_path / "run" / "trees" / "000001.jsonl")]
    trained = [item.tree for item in read_trees(scripted_run / "trees" / "000001.jsonl")]
    assert trees == trained[:3]
    branches = sum(decision.taken for tree in trees for decision in tree.decisions)
    summary = capsys.readouterr().out.splitlines()[-1]
    assert f"branches {branches} taken" in summary
    assert f"trees in {tmp_path / 'run'}" in summary
    timing = (tmp_path / "run" / "timing" / "000001.jsonl").read_text().splitlines()
    calls = sum(len(node.results) for tree in trees for node in tree.nodes)
    assert len([line for line in timing if json.loads(line)["kind"].startswith("tool/")]) == calls
