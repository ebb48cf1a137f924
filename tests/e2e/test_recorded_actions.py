"""Acting on a run: its credit, and each command that a page offers, as it stands there."""

import json
import shlex
import shutil

import pytest

from e2e_runs import EVAL, PASSAGES, TRAIN, overrides, read_lines, write_lines, write_task
from ramify.cli import main
from ramify.obs.trace import read_trees
from ramify.runs.recorded_trees import tree_actions

STEPS = overrides("run.save_every=1", "learner.optimizer.rate=1e-4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, caller):
    recipe = write_task(tmp_path_factory.mktemp("trained") / "task", caller, TRAIN)
    assert main(["train", str(recipe), "--max-steps", "2", *STEPS]) == 0
    return recipe.parent / "run"


@pytest.fixture(scope="module")
def weighted(tmp_path_factory, caller):
    """A run with everything that acts on credit: batch statistics, entropies, importance weights, masked ends."""
    recipe = write_task(tmp_path_factory.mktemp("weighted") / "task", caller, TRAIN)
    algorithm = {
        "estimator.name": "reinforce_pp", "shared": "mass", "truncated": "mask", "old": "recompute",
        "correction.level": "token", "correction.kind": "truncate", "entropy_advantage.weight": 0.4,
    }  # fmt: skip
    settings = overrides({f"algorithm.{key}": value for key, value in algorithm.items()})
    assert main(["train", str(recipe), "--max-steps", "2", *STEPS, *settings]) == 0
    return recipe.parent / "run"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, caller):
    recipe = write_task(tmp_path_factory.mktemp("evaluated") / "task", caller, EVAL)
    assert main(["eval", str(recipe), *overrides("data.limit=4", "run.seed=5")]) == 0
    return recipe.parent / "run"


def credit(capsys, *words):
    capsys.readouterr()
    assert main(["credit", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("run", ["trained", "weighted"])
def test_the_runs_own_credit_has_the_recorded_advantages_to_the_last_bit(request, capsys, run, step):
    folder = request.getfixturevalue(run)
    result = credit(capsys, folder, "--step", step)
    recorded = [traced.advantages for traced in read_trees(folder / "trees" / f"{step:06d}.jsonl")]
    assert any(any(each) for each in recorded)
    for tree, advantages in zip(result["trees"], recorded, strict=True):
        assert tuple(each["advantage"] for each in tree["trajectories"]) == advantages
        assert tree["nodes"] == tree["own_nodes"]


def test_another_algorithm_changes_the_credit_of_the_same_tokens(trained, capsys):
    trace = trained / "trees" / "000001.jsonl"
    whole = credit(capsys, trace, "--algorithm", "node_value_reasoning_7b", "-s", "algorithm.kl=")
    assert whole["algorithm"]["estimator"]["name"] == "node_value"
    only = credit(capsys, trace, "--tree", 1, "-s", "algorithm.aggregation=sequence_mean")["trees"]
    assert [tree["tree"] for tree in only] == [1]
    for tree in (*whole["trees"], *only):
        assert tree["nodes"].keys() == tree["own_nodes"].keys()
        sizes = {name: len(own["weight"]) for name, own in tree["own_nodes"].items()}
        assert all(len(numbers["s_plus"]) == sizes[name] for name, numbers in tree["nodes"].items())
    assert any(tree["nodes"] != tree["own_nodes"] for tree in whole["trees"])
    assert only[0]["nodes"] != only[0]["own_nodes"]


def test_the_table_names_each_trajectory_and_each_node_that_was_written(trained, capsys):
    capsys.readouterr()
    assert (
        main(["credit", str(trained), "--step", "1", "--tree", "0", "--algorithm", "arpo_hard_reasoning_7b"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    traced = read_trees(trained / "trees" / "000001.jsonl")[0]
    rows = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("  node")]
    expected = [n.id for t in traced.tree.trajectories for n in t.policy_nodes if n.token_ids]
    assert rows == expected
    assert main(["credit", str(trained)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "9"], "has steps 1 to 2"),
        (["--tree", "2"], "has trees 0 to 1"),
        (["--tree", "x"], "at least 0"),
        (["--algorithm", "reinforce_pp_reasoning_7b"], "-s algorithm.kl="),
        (["--algorithm", "quickstart_sft"], "algorithm"),
        (["-s", "rollout.n=3"], "rollout"),
    ],
)
def test_a_credit_that_cannot_be_is_one_line(trained, refused, words, message):
    assert message in refused("credit", trained, *words)


def test_an_evaluation_has_no_algorithm_of_its_own(evaluated, capsys):
    capsys.readouterr()
    assert main(["credit", str(evaluated)]) == 2
    assert "--algorithm" in capsys.readouterr().err
    result = credit(capsys, evaluated, "--algorithm", "arpo_reasoning_7b")
    assert all(tree["own_nodes"] is None for tree in result["trees"])


def test_a_run_whose_own_credit_no_trace_can_give_is_compared_with_nothing(trained, tmp_path, capsys):
    shutil.copytree(trained / "trees", tmp_path / "trees")
    charged = '[algorithm.kl]\nplace = "reward"\nestimator = "k1"\ncoefficient = 0.1\n'
    (tmp_path / "recipe.toml").write_text((trained / "recipe.toml").read_text() + charged)
    capsys.readouterr()
    assert main(["credit", str(tmp_path), "--algorithm", "arpo_hard_reasoning_7b"]) == 0
    out = capsys.readouterr().out
    assert "no comparison with the algorithm of the run: algorithm.kl" in out
    assert "in brackets" not in out
    assert main(["credit", str(tmp_path)]) == 2
    assert "algorithm.kl" in capsys.readouterr().err


def commands(trace, tree):
    """The offered commands by name, with their blanks filled in."""
    traced = read_trees(trace)[tree].tree
    leaves = [trajectory.leaf.id for trajectory in traced.trajectories]
    node = next((n.id for n in traced.nodes if n.results and n.stop is None), "")
    blanks = {"node": node, "leaf": leaves[0], "other": leaves[-1]}
    return {a.name: shlex.split(a.template.format(**blanks)) for a in tree_actions(trace, tree)}


def test_every_command_that_a_page_offers_for_a_trained_tree_runs(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trace = trained / "trees" / "000002.jsonl"
    offered = commands(trace, 1)
    assert list(offered) == ["grow again from here", "rescore", "make a pair", "turn into a test"]
    assert offered["grow again from here"][-1] == f"model.path={trained}/checkpoints/step-000001"
    traced = read_trees(trace)[1]
    for words in offered.values():
        capsys.readouterr()
        assert words[0] == "ramify"
        assert main(words[1:]) == 0
        if "--reward" in words:
            rows = json.loads(capsys.readouterr().out)["trajectories"]
    assert [row["old"] for row in rows] == [row["new"] for row in rows] == [r.value for r in traced.rewards]
    (again,) = read_trees(tmp_path / "again-000002-1" / "trees" / "000001.jsonl")
    assert again.tree.problem == traced.tree.problem
    (pair,) = read_lines(tmp_path / "pair-000002-1.jsonl")
    leaves = [trajectory.leaf.id for trajectory in traced.tree.trajectories]
    assert [pair["recorded"][side] for side in ("chosen", "rejected")] == [leaves[0], leaves[-1]]
    assert main(["case", "case-000002-1"]) == 0


def test_every_command_that_a_page_offers_for_an_attempt_runs(evaluated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    offered = commands(evaluated / "trees.jsonl", 0)
    assert list(offered) == ["rescore", "make a pair", "turn into a test"]
    for name in ("rescore", "turn into a test"):
        assert main(offered[name][1:]) == 0
    # A case is found by its own folder's name, wherever that lies.
    (tmp_path / "case-trees-0").rename(tmp_path / "moved")
    assert main(["case", "moved"]) == 0


def test_another_reward_changes_what_a_trace_is_worth(trained, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    capsys.readouterr()
    # A run that is named twice counts once.
    words = ["score", trained, f"{trained}/", "--reward", trained / "recipe.toml", "-s", "reward.name=answer"]
    assert main([*map(str, words), "--out", str(out)]) == 0
    summary, rows = json.loads(capsys.readouterr().out), read_lines(out)
    trees = [traced for step in (1, 2) for traced in read_trees(trained / "trees" / f"{step:06d}.jsonl")]
    assert [row["old"] for row in rows] == [r.value for traced in trees for r in traced.rewards]
    assert summary["n"] == len(rows)
    assert summary["changed"] == sum(row["old"] != row["new"] for row in rows) > 0
    assert {"correct", "format"} <= rows[0]["parts"].keys()


def test_a_case_says_which_call_has_another_result(trained, tmp_path, capsys):
    run = trained
    wanted = (
        (step, number, trajectory.leaf.id)
        for step in (1, 2)
        for number, traced in enumerate(read_trees(run / "trees" / f"{step:06d}.jsonl"))
        for trajectory in traced.tree.trajectories
        if any(call.name == "search" and result.text for call, result in trajectory.exchanges)
    )
    step, number, leaf = next(wanted)
    case = tmp_path / "case"
    words = ["case", run, "--step", step, "--tree", number, "--leaf", leaf, "--out", case]
    assert main([*map(str, words)]) == 0
    assert main(["case", str(case)]) == 0
    other = write_lines(tmp_path / "other.jsonl", [{"text": f"Not so: {text}"} for text in PASSAGES])
    recipe = case / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(f"{run.parent}/passages.jsonl", f"{other}"))
    capsys.readouterr()
    assert main(["case", str(case)]) == 1
    assert "text: expected" in capsys.readouterr().out
    (row,) = read_lines(case / "case.jsonl")
    row["expected"] |= {"reward": 7.5, "answer": "no such", "calls": []}
    write_lines(case / "case.jsonl", [row])
    assert main(["case", str(case)]) == 1
    out = capsys.readouterr().out
    assert all(
        f"{key}: expected {value}" in out
        for key, value in (("reward", "7.5"), ("answer", "'no such'"), ("calls", 0))
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["case", "{run}", "--tree", "0"], "--leaf"),
        (["case", "{run}", "--tree", "0", "--leaf", "9", "--out", "{tmp}/c"], "no leaf '9'"),
        (["case", "{tmp}"], "no case"),
        (["pairs", "{run}", "--out", "{tmp}/p", "--tree", "0", "--chosen", "0"], "--rejected"),
        (["pairs", "{run}", "--out", "{tmp}/p", "--tree", "7", "--chosen", "0", "--rejected", "1"], "it has no tree 7"),
        (["score", "{run}", "--reward", "{run}/recipe.toml", "--task", "qa"], "--reward"),
        (["score", "{run}", "--task", "qa", "--tree", "0"], "--reward"),
        (["score", "{tmp}", "--reward", "{run}/recipe.toml"], "expected a run folder with trees"),
        (["credit", "{run}", "-s", "rollout.n=3"], "-s rollout.n=3: only keys of algorithm are read"),
    ],
)  # fmt: skip
def test_a_mistake_about_a_recorded_tree_is_one_line(trained, tmp_path, refused, words, message):
    assert message in refused(*(word.format(run=trained, tmp=tmp_path) for word in words))
    assert not list(tmp_path.iterdir())
