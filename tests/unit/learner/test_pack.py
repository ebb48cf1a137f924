from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.algos.ops import credit
from ramify.algos.sft import supervised_credit
from ramify.core.tree import Source
from ramify.learner.pack import pack
from random_trees import node, random_advantages, random_tree, tree_of


def contexts(tree):
    """Every distinct context of a tree as (node ids, token ids, written)."""
    found = {}
    for trajectory in tree.trajectories:
        for segment in trajectory.segments:
            found[tuple(n.id for n in segment.nodes)] = (segment.token_ids, segment.written)
    return found


def read_back(row):
    """For each segment without children, the tokens and written flags that attention would see."""
    flags = np.zeros(len(row.token_ids), dtype=bool)
    flags[row.written] = True
    parents = {segment.parent for segment in row.segments}
    seen = []
    for i, segment in enumerate(row.segments):
        if i in parents:
            continue
        index = []
        while True:
            index[:0] = range(segment.start, segment.stop)
            if segment.parent < 0:
                break
            segment = row.segments[segment.parent]
        assert row.positions[index].tolist() == list(range(len(index)))
        before = {int(b): a for a, b in pairwise(index)}
        for target, predictor in zip(row.written, row.predictor, strict=True):
            if target in before:
                assert before[target] == predictor
        seen.append((tuple(row.token_ids[index].tolist()), tuple(flags[index].tolist())))
    return seen


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), budget=st.integers(1, 200))
def test_rows_hold_each_context_once_and_nothing_else(seed, count, budget):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, depth=int(rng.integers(1, 5))) for _ in range(count)]
    credits = [credit(tree, random_advantages(rng, tree), "repeat", "soft") for tree in trees]
    rows = pack(trees, credits, budget)
    seen = [context for row in rows for context in read_back(row)]
    whole = [context for tree in trees for context in contexts(tree).values()]
    assert set(seen) <= set(whole)
    covered = {tokens[:i] for tokens, _ in seen for i in range(len(tokens) + 1)}
    assert {tokens for tokens, _ in whole} <= covered
    assert sum(len(row.token_ids) for row in rows) == sum(len(n.token_ids) for t in trees for n in t.nodes)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 200))
def test_spans_cover_rows_whole_trees_stay_together_and_budgets_hold(seed, budget):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng) for _ in range(5)]
    credits = [credit(tree, random_advantages(rng, tree), "mass", "hard") for tree in trees]
    rows = pack(trees, credits, budget)
    sizes = [sum(len(n.token_ids) for n in tree.nodes) for tree in trees]
    for row in rows:
        assert [s.start for s in row.segments] == [0, *(s.stop for s in row.segments[:-1])]
        assert row.segments[-1].stop == len(row.token_ids)
        assert all(s.parent < i and s.start < s.stop for i, s in enumerate(row.segments))
        taken = []
        while sum(taken) < len(row.token_ids):
            taken.append(sizes.pop(0))
        assert sum(taken) == len(row.token_ids)
        assert len(taken) == 1 or sum(taken) <= budget
        assert not sizes or sum(taken) + sizes[0] > budget
    for name in ("s_plus", "s_minus", "weight", "num_paths"):
        packed = np.concatenate([getattr(row, name) for row in rows])
        order = [
            getattr(c[n.id], name) for t, c in zip(trees, credits, strict=True) for n in t.nodes if n.id in c
        ]
        assert packed.tolist() == np.concatenate(order).tolist()


def test_a_chain_is_one_segment_and_a_fork_is_predicted_by_the_trunk():
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3]),
            node((0,), Source.POLICY, [4, 5]),
            node((0, 0), Source.TOOL, [6]),
            node((0, 0, 0), Source.POLICY, [7], leaf=True),
            node((0, 0, 1), Source.POLICY, [8, 9], leaf=True),
        ]
    )
    (row,) = pack([tree], [supervised_credit(tree)], 100)
    assert row.token_ids.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 5, 6]
    assert [(s.parent, s.start, s.stop) for s in row.segments] == [(-1, 0, 5), (0, 5, 6), (0, 6, 8)]
    assert row.written.tolist() == [2, 3, 5, 6, 7]
    assert row.predictor.tolist() == [1, 2, 4, 4, 6]


def test_a_new_context_starts_at_zero_without_ancestors():
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3]),
            node((0,), Source.POLICY, [4]),
            node((0, 0), Source.TOOL, [6, 6], opens_context=True),
            node((0, 0, 0), Source.POLICY, [7], leaf=True),
        ]
    )
    (row,) = pack([tree], [supervised_credit(tree)], 100)
    assert row.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert [s.parent for s in row.segments] == [-1, -1]


def test_an_empty_tool_result_at_a_fork_does_not_glue_a_branch_to_the_trunk():
    tree = tree_of(
        [
            node((), Source.PROMPT, [2]),
            node((0,), Source.POLICY, [4], leaf=False),
            node((0, 0), Source.TOOL, []),
            node((0, 0, 0), Source.POLICY, [7], leaf=True),
            node((0, 0, 1), Source.POLICY, [8], leaf=True),
        ]
    )
    (row,) = pack([tree], [supervised_credit(tree)], 100)
    assert [(s.parent, s.start, s.stop) for s in row.segments] == [(-1, 0, 2), (0, 2, 3), (0, 3, 4)]
    assert row.predictor.tolist() == [0, 1, 1]


def test_dead_trees_are_left_out_supervised_ones_never():
    rng = np.random.default_rng(0)
    tree = random_tree(rng)
    zeros = [np.zeros(t.num_written) for t in tree.trajectories]
    assert pack([tree], [credit(tree, zeros, "repeat", "soft")], 100) == ()
    assert len(pack([tree, tree], [credit(tree, zeros, "repeat", "soft"), supervised_credit(tree)], 100)) == 1


def test_credit_that_does_not_fit_the_tree_is_refused():
    tree = tree_of([node((), Source.PROMPT, [2]), node((0,), Source.POLICY, [4, 5], leaf=True)])
    other = tree_of([node((), Source.PROMPT, [2]), node((0,), Source.POLICY, [4], leaf=True)])
    with pytest.raises(ValueError, match="node '0': 2 tokens"):
        pack([tree], [supervised_credit(other)], 100)
    with pytest.raises(ValueError, match="credit belongs on policy nodes"):
        pack([tree], [{"1": supervised_credit(tree)["0"]}], 100)
    bare = tree_of([node((), Source.PROMPT, []), node((0,), Source.POLICY, [4], leaf=True)])
    with pytest.raises(ValueError, match="nothing predicts"):
        pack([bare], [supervised_credit(bare)], 100)
