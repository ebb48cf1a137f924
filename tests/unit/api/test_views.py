"""Trees that show themselves: paths, tables of tokens, short reprs and HTML without scripts."""

import multiprocessing
import shutil
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

import ramify as rf
from ramify.core.errors import DataError
from ramify.core.records import Reward
from random_trees import random_tree, sampled
from viewed_runs import two_calls, write_training

COLUMNS = ("node", "token", "id", "source", "mask", "logprob", "entropy", "advantage", "S+", "S-", "W")


@pytest.fixture
def tree():
    rng = np.random.default_rng(5)
    return sampled(rng, random_tree(rng), -1.0)


def scored(tree, rng=None):
    rng = rng or np.random.default_rng(0)
    rewards = tuple(
        Reward(float(value), {"correct": float(value > 0)})
        for value in rng.normal(size=len(tree.trajectories))
    )
    return rf.Tree(tree, rewards)


def test_a_node_a_trajectory_and_the_best(tree):
    view = scored(tree)
    for node in tree.nodes:
        assert view[node.id].text == node.text
        assert view[node.id].tokens.column("id") == list(node.token_ids)
    values = [reward.value for reward in view.rewards]
    assert view.best.reward == max(values)
    assert view.best.id == tree.trajectories[int(np.argmax(values))].leaf.id
    assert view.mean == pytest.approx(np.mean(values))
    with pytest.raises(KeyError, match=r"'9\.9': the tree has no such node\. It has ''"):
        view["9.9"]
    with pytest.raises(DataError, match=r"the tree has no rewards\. Score it with ramify\.score"):
        rf.Tree(tree).best  # noqa: B018


def test_tokens_have_what_the_tree_was_credited_with(tree):
    (credited,) = rf.credit([scored(tree)], "arpo")
    table = credited.tokens
    assert table.columns == COLUMNS
    assert len(table) == sum(len(node.token_ids) for node in tree.nodes)
    by_node = {node.id: node for node in tree.nodes}
    for row in table:
        is_policy = by_node[row["node"]].source == "policy"
        assert row["mask"] == is_policy
        assert (row["W"] is not None) == is_policy
        if is_policy:
            # With `repeat` the weight is the number of trajectories through the token.
            assert row["advantage"] * row["W"] == pytest.approx(row["S+"] + row["S-"])
    # With `repeat` the trajectories' own advantages add up to the credit of each token.
    total = sum(row["advantage"] for each in credited.trajectories for row in each.tokens if row["mask"])
    assert total == pytest.approx(sum(row["S+"] + row["S-"] for row in table if row["mask"]))


def test_everything_is_short_and_has_no_script(tree):
    hostile = "</pre><script>alert(1)</script>" * 40
    core = replace(tree, nodes=tuple(replace(node, text=hostile) for node in tree.nodes))
    view = scored(core)
    objects = [view, view[""], view.best, view.tokens, rf.Trees([view] * 50), rf.Problems([tree.problem] * 9)]
    for each in objects:
        assert len(repr(each)) < 200, each
    for each in objects[:-1]:
        page = each._repr_html_()
        assert "<script" not in page
        assert page.startswith(("<pre>", "<table>"))


def test_a_forked_process_has_a_loop_of_its_own(tree):
    assert rf.score(rf.Tree(tree), length).mean > 0
    child = multiprocessing.get_context("fork").Process(target=rf.score, args=(rf.Tree(tree), length))
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


def length(completions):
    return [len(text) + 1 for text in completions]


def test_frames_if_pandas_is_there(tree, monkeypatch):
    pandas = pytest.importorskip("pandas")
    view = scored(tree)
    assert tuple(view.to_pandas().columns) == COLUMNS
    assert len(rf.Trees([view]).to_pandas()) == len(tree.trajectories)
    rows = [{"prompt": f"what is {n} ?", "answer": n, "kind": None if n else "x"} for n in range(3)]
    assert list(rf.problems(pandas.DataFrame(rows))) == list(rf.problems(rows))


def test_credit_of_a_run_leaves_out_what_it_did_not_train_on(tmp_path):
    traced = [two_calls(cycle(["a", "b"]), f"p{slot}", slot=slot) for slot in range(2)]
    folder = write_training(tmp_path / "run", {1: [traced[0], replace(traced[1], advantages=None)]})
    (folder / "recipe.toml").write_text('[model]\npath = "no/such/model"\n')
    trees = rf.open_run(folder).trees(1)
    assert [tree.credit is not None for tree in rf.credit(trees, "arpo")] == [True, False]
    scored = rf.score(trees, lambda completions: list(range(len(completions))))
    assert [tree.credit is not None for tree in rf.credit(scored, "arpo")] == [True, True]


def test_a_run_shows_its_tokens_without_a_model(tmp_path, tokenizer_folder):
    folder = write_training(tmp_path / "run", {1: [two_calls(cycle(["a", "b"]))]})
    (folder / "recipe.toml").write_text('[model]\npath = "no/such/model"\n')
    run = rf.open_run(folder)
    assert run.trees(1)[0].tokens.column("token")[0] is None
    shutil.copytree(tokenizer_folder, folder / "tokenizer")
    run = rf.open_run(folder)
    assert None not in run.trees(1)[0].tokens.column("token")
