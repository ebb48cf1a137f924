"""The trace comes back as it was written, and what cannot be read is named."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obs_trees import SMALL_REWARDS, big_tree, prompt, small_tree

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.core.records import Reward
from ramify.core.tree import Cut, Node, Source, StopReason, TreeKey, make_tree
from ramify.obs.trace import TracedTree, read_trees, write_trees
from random_trees import random_tree


def test_round_trip_is_exact(tmp_path):
    graded = (
        TracedTree(small_tree(), SMALL_REWARDS, (0.5, -1.0, 0.25)),
        big_tree(),
        TracedTree(small_tree("p1"), SMALL_REWARDS),
    )
    path = tmp_path / "trees" / "3.jsonl"
    write_trees(path, graded)
    assert read_trees(path) == graded
    assert [entry.name for entry in path.parent.iterdir()] == ["3.jsonl"]
    first = path.read_bytes()
    write_trees(path, read_trees(path))
    assert path.read_bytes() == first


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    text=st.text(st.characters(codec=None)),
    info=st.dictionaries(st.text(), json_values, max_size=3),
    logprob=st.floats(max_value=0, allow_infinity=False),
    value=st.floats(allow_nan=False, allow_infinity=False),
    counts=st.booleans(),
)
def test_any_text_and_number_comes_back(tmp_path_factory, text, info, logprob, value, counts):
    leaf = Node(
        "0", (0,), "", Source.POLICY, (7,), text, (logprob,), policy_version=0, stop=StopReason.ANSWERED
    )
    tree = make_tree(Problem("p", (), (text,), info), TreeKey(0, 0), [prompt(), leaf])
    graded = (TracedTree(tree, (Reward(value, {text: value}, {"0": value}, counts),)),)
    path = tmp_path_factory.mktemp("trace") / "0.jsonl"
    write_trees(path, graded)
    assert read_trees(path) == graded


@pytest.mark.parametrize("bad", [(1, 2), {3: "x"}, object(), float("nan")])
def test_info_that_json_would_change_is_refused(tmp_path, bad):
    tree = dataclasses.replace(small_tree(), problem=Problem("p7", (), (), {"level": bad}))
    path = tmp_path / "0.jsonl"
    with pytest.raises(DataError, match="problem 'p7'"):
        write_trees(path, [TracedTree(tree, SMALL_REWARDS)])
    assert not path.exists()


@pytest.mark.parametrize("seed", range(5))
def test_contexts_come_back(tmp_path, seed):
    tree = random_tree(np.random.default_rng(seed), depth=4)
    assert {type(n.context) for n in tree.nodes} == {str, Cut}
    traced = (TracedTree(tree, (Reward(0.0, {}),) * len(tree.trajectories)),)
    write_trees(tmp_path / "0.jsonl", traced)
    assert read_trees(tmp_path / "0.jsonl") == traced


def test_rewards_must_match_the_leaves():
    with pytest.raises(ValueError, match="3 leaves, 2 rewards"):
        TracedTree(small_tree(), SMALL_REWARDS[:2])


@pytest.mark.parametrize(("schema", "age"), [(8, "newer"), (6, "older")])
def test_another_schema_is_refused_by_name(tmp_path, schema, age):
    path = tmp_path / "0.jsonl"
    write_trees(path, [TracedTree(small_tree(), SMALL_REWARDS)])
    path.write_text(path.read_text().replace('"schema":7', f'"schema":{schema}', 1))
    with pytest.raises(
        DataError, match=rf"0\.jsonl row 1: tree trace schema {schema} is {age} than schema 7"
    ):
        read_trees(path)


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_cut_off_line_is_named(tmp_path, keep):
    path = tmp_path / "0.jsonl"
    write_trees(path, [TracedTree(small_tree(name), SMALL_REWARDS) for name in ("a", "b")])
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[: int(keep * len(second))])
    with pytest.raises(DataError, match=r"0\.jsonl row 2: the line is cut off"):
        read_trees(path)
    path.write_text(first + second[: int(keep * len(second)) - 5] + "\n")
    with pytest.raises(DataError, match=r"0\.jsonl row 2: the line is cut off"):
        read_trees(path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda r: r.pop("rewards"), "lacks the field 'rewards'"),
        (lambda r: r["nodes"].pop(), "a stop reason|leaves"),
        (lambda r: r["rewards"][0].pop("value"), r"rewards\[0\].* 'value'"),
        (lambda r: r["rewards"][0].update(counts=1), r"rewards\[0\]\.counts: expected true or false"),
        (lambda r: r["rewards"][0].update(value="1"), r"rewards\[0\]\.value: expected a finite number"),
        (
            lambda r: r["rewards"][0].update(parts={"correct": True}),
            r"rewards\[0\]\.parts\.correct: expected a finite number",
        ),
        (lambda r: r["nodes"][1].update(source="robot"), "robot"),
        (
            lambda r: r["nodes"][1].update(behavior_logprobs="AAAA"),
            "expected 4 numbers in base64, got 3 bytes",
        ),
        (
            lambda r: r["nodes"][1].update(behavior_logprobs="?"),
            "behavior_logprobs: expected numbers in base64",
        ),
        (lambda r: r["nodes"][1].update(token_entropies="AADAfwAAwH8AAMB/AADAfw=="), "not finite"),
        (lambda r: r["nodes"][1].update(id="-1"), "the id of a node"),
        (lambda r: r.update(mask=[True]), "3 rewards, 1 values of its mask"),
        (lambda r: r.update(old_logprobs={"7": ""}), "there is no node '7'"),
        (lambda r: r.update(old_logprobs={"0": ""}), "node '0': 0 old logprobs"),
        (
            lambda r: r["nodes"][1].update(context="elsewhere"),
            'context: expected "parent", "fresh", or a node',
        ),
        (lambda r: r["nodes"][1].update(context={"node": "9", "tokens": 1}), "which is not above it"),
        (lambda r: r["key"].update(rank=1), "rank"),
        (lambda r: r.pop("schema"), "'schema' number"),
    ],
)
def test_wrong_record_is_named(tmp_path, change, complaint):
    path = tmp_path / "0.jsonl"
    write_trees(path, [TracedTree(small_tree(), SMALL_REWARDS)])
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=rf"row 1: .*({complaint})"):
        read_trees(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_trees(tmp_path / "9.jsonl")
