from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.algos.credit import Weighting, credit
from ramify.core.errors import DataError
from ramify.core.records import NodeAnnotations
from ramify.core.tree import Cut, Source, make_tree
from ramify.learner.pack import cut_at_branches, pack
from random_trees import (
    credited,
    node,
    random_advantages,
    random_tree,
    supervised_credit,
    training,
    tree_of,
    with_behavior,
)


def contexts(tree):
    """Every distinct context of a tree as (nodes and how much of them, token ids, written)."""
    result = {}
    for trajectory in tree.trajectories:
        for segment in trajectory.segments:
            result[tuple((n.id, size) for n, size in segment.parts)] = (segment.token_ids, segment.written)
    return result


def read_back(row):
    """For each segment without children, the tokens and written flags that attention would see."""
    flags = np.zeros(len(row.token_ids), dtype=bool)
    flags[row.written] = True
    parents = {segment.parent for segment in row.segments}
    result = []
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
        result.append((tuple(row.token_ids[index].tolist()), tuple(flags[index].tolist())))
    return result


def size_of(tree):
    return sum(len(n.token_ids) for n in tree.nodes)


def written_in(rows, credits, name):
    """An array over the written tokens of all trees, node by node in the order of the rows."""
    return np.concatenate([getattr(credits[s.tree][s.node], name) for row in rows for s in row.spans])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), budget=st.integers(1, 200))
def test_rows_hold_each_context_and_train_each_token_once(seed, count, budget):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, depth=int(rng.integers(1, 5))) for _ in range(count)]
    credits = [credit(training(tree, random_advantages(rng, tree)), Weighting()) for tree in trees]
    rows = pack(credited(trees, credits), budget)
    contexts_of_rows = [tokens for row in rows for tokens, _ in read_back(row)]
    whole = [tokens for tree in trees for tokens, _ in contexts(tree).values()]
    assert set(contexts_of_rows) <= set(whole)
    covered = {tokens[:i] for tokens in contexts_of_rows for i in range(len(tokens) + 1)}
    assert set(whole) <= covered
    spans = [(s.tree, s.node, s.stop - s.start) for row in rows for s in row.spans]
    expected = [
        (i, n.id, len(n.token_ids)) for i, t in enumerate(trees) for n in t.nodes if n.behavior_logprobs
    ]
    assert sorted(spans) == sorted(expected)
    unique = sum(map(size_of, trees))
    assert sum(len(row.token_ids) for row in rows) == unique
    assert sum(row.num_repeated for row in rows) == 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 200))
def test_segments_cover_rows_and_a_row_is_within_the_budget_or_one_tree(seed, budget):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng) for _ in range(5)]
    credits = [
        credit(training(tree, random_advantages(rng, tree)), Weighting("mass", "hard")) for tree in trees
    ]
    rows = pack(credited(trees, credits), budget)
    largest = max(map(size_of, trees))
    for row in rows:
        assert [s.start for s in row.segments] == [0, *(s.stop for s in row.segments[:-1])]
        assert row.segments[-1].stop == len(row.token_ids) <= max(budget, largest)
        assert all(s.parent < i and s.start < s.stop for i, s in enumerate(row.segments))
        assert [s.start for s in row.spans] == [0, *(s.stop for s in row.spans[:-1])]
        assert row.spans[-1].stop == len(row.written)
    for name in ("s_plus", "s_minus", "weight", "num_paths"):
        packed = np.concatenate([getattr(row, name) for row in rows])
        assert packed.tolist() == written_in(rows, credits, name).tolist()


def test_small_trees_share_rows_in_order():
    rng = np.random.default_rng(1)
    trees = [random_tree(rng) for _ in range(5)]
    sizes = [size_of(tree) for tree in trees]
    rows = pack(credited(trees, [supervised_credit(tree) for tree in trees]), sizes[0] + sizes[1])
    assert len(rows[0].token_ids) == sizes[0] + sizes[1]
    assert [span.tree for row in rows for span in row.spans] == sorted(
        span.tree for row in rows for span in row.spans
    )


def test_without_shared_prefixes_a_row_repeats_what_is_above_it():
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3]),
            node((0,), Source.POLICY, [4, 5]),
            node((0, 0), Source.TOOL, [6]),
            node((0, 0, 0), Source.POLICY, [7], leaf=True),
            node((0, 0, 1), Source.POLICY, [8, 9], leaf=True),
            node((1,), Source.POLICY, [7, 7, 7], leaf=True),
        ]
    )
    rows = pack(credited([tree], [supervised_credit(tree)]), 1000, share_prefixes=False)
    assert [row.token_ids.tolist() for row in rows] == [
        [2, 3, 4, 5, 6, 7],
        [2, 3, 4, 5, 6, 8, 9],
        [2, 3, 7, 7, 7],
    ]
    assert [[span.node for span in row.spans] for row in rows] == [["0", "0.0.0"], ["0.0.1"], ["1"]]
    assert [row.num_repeated for row in rows] == [0, 5, 2]
    assert [row.written.tolist() for row in rows] == [[2, 3, 5], [5, 6], [2, 3, 4]]
    assert [span.paths.tolist() for row in rows for span in row.spans] == [[0, 1], [0], [1], [2]]
    assert all(len(row.segments) == 1 for row in rows)


def test_without_shared_prefixes_each_context_is_a_row_and_trains_its_tokens_once():
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3]),
            node((0,), Source.POLICY, [4]),
            node((0, 0), Source.TOOL, [6, 6], context="fresh"),
            node((0, 0, 0), Source.POLICY, [7], leaf=True),
            node((0, 0, 1), Source.POLICY, [8, 9], leaf=True),
            node((1,), Source.POLICY, [5]),
            node((1, 0), Source.TOOL, [6], context="fresh"),
            node((1, 0, 0), Source.POLICY, [9], leaf=True),
        ]
    )
    rows = pack(credited([tree], [supervised_credit(tree)]), 1000, share_prefixes=False)
    assert [r.token_ids.tolist() for r in rows] == [[2, 3, 4], [6, 6, 7], [6, 6, 8, 9], [2, 3, 5], [6, 9]]
    assert [[span.node for span in row.spans] for row in rows] == [
        ["0"],
        ["0.0.0"],
        ["0.0.1"],
        ["1"],
        ["1.0.0"],
    ]
    assert [span.paths.tolist() for row in rows for span in row.spans] == [[0, 1], [0], [1], [2], [2]]
    assert [row.num_repeated for row in rows] == [0, 0, 2, 2, 0]
    assert all(row.positions.tolist() == list(range(len(row.token_ids))) for row in rows)
    last = credit(training(tree, [np.zeros(2), np.zeros(3), np.array([0.0, 1.0])]), Weighting())
    (row,) = pack(credited([tree], [last]), 1000, share_prefixes=False)
    assert row.token_ids.tolist() == [6, 9]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_without_shared_prefixes_every_written_token_is_in_one_row_of_one_context(seed):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, split_turns=True) for _ in range(2)]
    rows = pack(credited(trees, [supervised_credit(tree) for tree in trees]), 1, share_prefixes=False)
    whole = {tokens for tree in trees for tokens, _ in contexts(tree).values()}
    assert {tuple(row.token_ids.tolist()) for row in rows} <= whole
    assert all(row.positions.tolist() == list(range(len(row.token_ids))) for row in rows)
    spans = [(s.tree, s.node, s.stop - s.start) for row in rows for s in row.spans]
    expected = [
        (i, n.id, len(n.token_ids)) for i, t in enumerate(trees) for n in t.nodes if n.behavior_logprobs
    ]
    assert sorted(spans) == sorted(expected)


def test_paths_are_numbered_over_all_trees_dead_ones_included():
    rng = np.random.default_rng(2)
    dead, live = random_tree(rng), random_tree(rng)
    credits = [
        credit(training(dead, [np.zeros(t.num_written) for t in dead.trajectories]), Weighting()),
        supervised_credit(live),
    ]
    (row,) = pack(credited([dead, live], credits), 1000)
    first = len(dead.trajectories)
    numbers = {int(path) for span in row.spans for path in span.paths}
    assert numbers == set(range(first, first + len(live.trajectories)))


def test_notes_become_the_old_and_the_reference_logprobs():
    rng = np.random.default_rng(3)
    tree = random_tree(rng)
    policy = [n for n in tree.nodes if n.source is Source.POLICY]
    notes = {
        n.id: NodeAnnotations(rng.random(len(n.token_ids)), rng.random(len(n.token_ids))) for n in policy
    }
    (row,) = pack(credited([tree], [supervised_credit(tree)], [notes]), 1000)
    order = [span.node for span in row.spans]
    assert sorted(order) == sorted(n.id for n in policy)
    assert row.old_logprobs.tolist() == [x for name in order for x in notes[name].old_logprobs]
    assert row.ref_logprobs.tolist() == [x for name in order for x in notes[name].ref_logprobs]
    (row,) = pack(credited([tree], [supervised_credit(tree)]), 1000)
    assert row.old_logprobs.tolist() == row.behavior_logprobs.tolist()
    assert row.ref_logprobs is None


def test_credit_that_is_only_negative_is_trained_on():
    tree = tree_of([node((), Source.PROMPT, [2]), node((0,), Source.POLICY, [4, 5], leaf=True)])
    (row,) = pack(credited([tree], [credit(training(tree, [np.array([-0.5, 0.0])]), Weighting())]), 100)
    assert row.s_minus.tolist() == [-0.5, 0.0]
    assert not row.s_plus.any()


def test_one_node_whose_tokens_were_made_from_text_is_enough_to_refuse_a_tree():
    tree = random_tree(np.random.default_rng(4))
    last = replace(tree.nodes[-1], exact_ids=False)
    inexact = make_tree(tree.problem, tree.key, [*tree.nodes[:-1], last])
    with pytest.raises(DataError, match="its tokens were encoded again from an engine's text"):
        pack(credited([inexact], [supervised_credit(inexact)]), 1000)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_not_trained_on(bad):
    tree = tree_of([node((), Source.PROMPT, [2]), node((0,), Source.POLICY, [4, 5], leaf=True)])
    with pytest.raises(DataError, match="a sampled logprob is not a finite number"):
        pack(credited([with_behavior(tree, {"0": [-1.0, bad], "": []})], [supervised_credit(tree)]), 100)
    with pytest.raises(DataError, match="an advantage is not a finite number"):
        pack(credited([tree], [credit(training(tree, [np.array([0.5, bad])]), Weighting())]), 100)


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
    (row,) = pack(credited([tree], [supervised_credit(tree)]), 100)
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
            node((0, 0), Source.TOOL, [6, 6], context="fresh"),
            node((0, 0, 0), Source.POLICY, [7], leaf=True),
        ]
    )
    (row,) = pack(credited([tree], [supervised_credit(tree)]), 100)
    assert row.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert [s.parent for s in row.segments] == [-1, -1]


def test_contexts_go_on_from_inside_a_node_and_no_token_is_there_twice():
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3]),
            node((0,), Source.POLICY, [4, 5, 6]),
            node((0, 0), Source.TOOL, [7]),
            node((0, 0, 0), Source.TOOL, [8], context=Cut("0", 2)),
            node((0, 0, 0, 0), Source.POLICY, [9], leaf=True),
            node((0, 0, 1), Source.TOOL, [], context=Cut("0", 1)),
            node((0, 0, 1, 0), Source.POLICY, [10, 11], leaf=True),
            node((0, 0, 2), Source.POLICY, [12], leaf=True),
        ]
    )
    (row,) = pack(credited([tree], [supervised_credit(tree)]), 100)
    assert row.token_ids.tolist() == [2, 3, 4, 5, 6, 7, 12, 8, 9, 10, 11]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 4, 5, 3, 4]
    assert [(s.parent, s.start, s.stop) for s in row.segments] == [
        (-1, 0, 3),
        (0, 3, 4),
        (1, 4, 7),
        (1, 7, 9),
        (0, 9, 11),
    ]
    assert [(span.node, span.paths.tolist()) for span in row.spans] == [
        ("0", [0, 1, 2]),
        ("0.0.2", [2]),
        ("0.0.0.0", [0]),
        ("0.0.1.0", [1]),
    ]
    assert row.predictor.tolist() == [1, 2, 3, 5, 7, 2, 9]
    alone = pack(credited([tree], [supervised_credit(tree)]), 100, share_prefixes=False)
    assert [r.token_ids.tolist() for r in alone] == [
        [2, 3, 4, 5, 6, 7],
        [2, 3, 4, 5, 8, 9],
        [2, 3, 4, 10, 11],
        [2, 3, 4, 5, 6, 7, 12],
    ]
    assert [r.num_repeated for r in alone] == [0, 4, 3, 6]


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
    (row,) = pack(credited([tree], [supervised_credit(tree)]), 100)
    assert [(s.parent, s.start, s.stop) for s in row.segments] == [(-1, 0, 2), (0, 2, 3), (0, 3, 4)]
    assert row.predictor.tolist() == [0, 1, 1]


def test_dead_trees_are_left_out_supervised_ones_never():
    rng = np.random.default_rng(0)
    tree = random_tree(rng)
    zeros = [np.zeros(t.num_written) for t in tree.trajectories]
    assert pack(credited([tree], [credit(training(tree, zeros), Weighting())]), 100) == ()
    assert (
        len(
            pack(
                credited([tree, tree], [credit(training(tree, zeros), Weighting()), supervised_credit(tree)]),
                100,
            )
        )
        == 1
    )


def test_credit_that_does_not_fit_the_tree_is_refused():
    tree = tree_of([node((), Source.PROMPT, [2]), node((0,), Source.POLICY, [4, 5], leaf=True)])
    other = tree_of([node((), Source.PROMPT, [2]), node((0,), Source.POLICY, [4], leaf=True)])
    with pytest.raises(ValueError, match="node '0': credit and logprobs of 1"):
        pack(credited([tree], [supervised_credit(other)]), 100)
    with pytest.raises(ValueError, match="expected credit for each policy node"):
        pack(credited([tree], [{"1": supervised_credit(tree)["0"]}]), 100)
    bare = tree_of([node((), Source.PROMPT, []), node((0,), Source.POLICY, [4], leaf=True)])
    with pytest.raises(ValueError, match="no token predicts it"):
        pack(credited([bare], [supervised_credit(bare)]), 100)


def test_a_piece_may_have_just_as_many_tokens_as_allowed():
    tree = random_tree(np.random.default_rng(0), depth=3)
    size = sum(len(n.token_ids) for n in tree.nodes)
    assert len(list(cut_at_branches(tree, size))) == 1
    assert len(list(cut_at_branches(tree, size - 1))) > 1
