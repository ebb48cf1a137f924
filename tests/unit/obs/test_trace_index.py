"""An index says what the trees say, whether it is there or not, and never about other trees."""

import json
from dataclasses import asdict, replace

import pytest
from obs_trees import HOSTILE, SMALL_REWARDS, big_tree, problem, small_tree

from ramify.core.errors import DataError
from ramify.core.records import Reward
from ramify.core.tree import TreeKey
from ramify.obs.trace import TracedTree, write_trees
from ramify.obs.trace_index import index_path, read_index, read_tree, trace_files, write_index, write_indexed

TREES = (
    TracedTree(small_tree("a"), SMALL_REWARDS, mask=(True, False, True)),
    big_tree(),
    big_tree("c", seed=1),
)


@pytest.fixture
def path(tmp_path):
    write_indexed(tmp_path / "000001.jsonl", TREES)
    return tmp_path / "000001.jsonl"


def test_a_summary_says_what_its_tree_says(path):
    summary = asdict(read_index(path)[0])
    assert (summary.pop("offset"), summary.pop("length")) == (0, len(path.read_bytes().splitlines()[0]) + 1)
    assert summary == {
        "row": 1,
        **{"step": 3, "slot": 1, "attempt": 0},
        **{"problem": "a", "question": "what is the age of Laru ?", "answer": ("41",), "kind": "lookup"},
        **{
            "mean": 2.1 / 3,
            "spread": 1.1,
            "right": 2,
            "trajectories": 3,
            "stops": {"answered": 2, "tokens": 1},
        },
        "flags": ("entropy_flipped", "malformed", "mask", "mixed", "right", "truncated", "wrong"),
        # Two trajectories go through nodes "0" and "0.0", and all three through the prompt.
        **{"written": 10, "prompt": 5, "results": 3, "shared": 4 + 3 + 2 * 5},
        **{"calls": 1, "failed_calls": 0, "branches": 1, "depth": 1},
    }


def test_rewards_that_do_not_count_are_neither_right_nor_wrong(tmp_path):
    rewards = tuple(Reward(1.0, {}, counts=False) for _ in SMALL_REWARDS)
    write_indexed(tmp_path / "1.jsonl", [TracedTree(small_tree(), rewards)])
    (summary,) = read_index(tmp_path / "1.jsonl")
    assert (summary.mean, summary.spread, summary.right) == (None, None, 0)
    assert not {"right", "wrong", "mixed"} & set(summary.flags)


def test_trees_are_read_alone_and_the_index_may_be_absent(path):
    summaries = read_index(path)
    assert tuple(read_tree(path, summary) for summary in summaries[::-1]) == TREES[::-1]
    assert trace_files(path.parent) == (path,)
    written = index_path(path).read_bytes()
    index_path(path).unlink()
    assert read_index(path) == summaries
    write_index(path)
    assert index_path(path).read_bytes() == written


def test_a_trace_that_grows_is_read_on_and_a_cut_line_is_noted(path):
    summaries, notes = read_index(path), []
    whole = path.read_bytes()
    path.write_bytes(whole + whole)
    assert [summary.problem for summary in read_index(path)] == ["a", "p16", "c"] * 2
    path.write_bytes(whole + whole[:100])
    assert read_index(path, notes.append) == summaries
    assert notes == [f"{path} row 4: the line is cut off or still being written. Its tree is left out."]


@pytest.mark.parametrize(
    "trees", [TREES[:2], TREES[1:], (replace(TREES[0], tree=small_tree("other")), *TREES[1:]), ()]
)
def test_an_index_of_other_trees_misleads_nobody(path, trees):
    old = read_index(path)
    write_trees(path, trees)
    fresh = read_index(path)
    assert [summary.problem for summary in fresh] == [each.tree.problem.id for each in trees]
    for summary in old:
        if summary not in fresh:
            with pytest.raises(DataError, match=r"000001.jsonl row \d: .* Remove "):
                read_tree(path, summary)


@pytest.mark.parametrize("damage", [b"\xff", b"{}\n", b'{"row": 1}\n', b"[]\n", b'{"row":', b"null\n"])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_a_damaged_index_is_no_index(path, damage, side):
    summaries, index = read_index(path), index_path(path)
    whole = index.read_bytes()
    index.write_bytes(damage + whole if side == "before" else whole + damage)
    assert read_index(path) == summaries


def test_hostile_texts_and_long_questions_stay_text(tmp_path):
    nasty = replace(problem(HOSTILE, "\ud800" + HOSTILE * 50), info={"kind": HOSTILE})
    tree = replace(small_tree(), problem=nasty, key=TreeKey(0, 0, 2))
    write_indexed(tmp_path / "1.jsonl", [TracedTree(tree, SMALL_REWARDS)])
    (summary,) = read_index(tmp_path / "1.jsonl")
    assert (summary.problem, summary.kind, summary.attempt) == (HOSTILE, HOSTILE, 2)
    assert summary.question == ("\ud800" + HOSTILE * 50)[:200]
    assert read_tree(tmp_path / "1.jsonl", summary).tree.problem == nasty


def test_an_older_schema_is_refused_by_name_with_an_index_too(path):
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**line, "schema": 6}) + "\n")
    with pytest.raises(DataError, match=r"schema 6 is older than schema 7.* at commit 6e97799$"):
        read_index(path)
