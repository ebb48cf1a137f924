"""Rows are dealt by what they cost; trees that outweigh a share are cut, and what is computed again is counted."""

from types import SimpleNamespace

import numpy as np
import pytest

import build
from ramify.algos.sft import NegativeLogLikelihood, counted_once
from ramify.core.rank import Rank
from ramify.core.tree import Source
from ramify.learner.deal import EVEN, PARTS, Cost, deal_rows
from ramify.learner.pack import pack, tree_rows
from random_trees import node, random_tree, tree_of

COST = Cost(token=1000.0, written=100.0, pair=1.0)


def chain(prompt, written):
    rng = np.random.default_rng(prompt)
    return tree_of(
        [
            node((), Source.PROMPT, rng.integers(2, 50, prompt)),
            node((0,), Source.POLICY, rng.integers(2, 50, written), leaf=True),
        ]
    )


def bush(leaves, size, seed=0):
    """A prompt with so many leaves below two roots."""
    rng = np.random.default_rng(seed)
    words = lambda: rng.integers(2, 50, size)  # noqa: E731
    nodes = [node((), Source.PROMPT, words())]
    for root in range(2):
        nodes.append(node((root,), Source.POLICY, words()))
        nodes.append(node((root, 0), Source.TOOL, words()))
        nodes += [node((root, 0, leaf), Source.POLICY, words(), leaf=True) for leaf in range(leaves // 2)]
    return tree_of(nodes)


def row_of(tree):
    (row,) = pack([counted_once(tree)], 100_000)
    return row


def test_the_cost_of_a_row_is_that_of_a_plain_count():
    tree = random_tree(np.random.default_rng(3), contexts=False)
    row = row_of(tree)
    pairs = 0
    # Each unique token sees itself and everything above it in its node's path.
    depth = {}
    for part in tree.nodes:
        above = depth.get(part.parent, 0) if part.parent is not None else 0
        size = len(part.token_ids)
        pairs += sum(above + position + 1 for position in range(size))
        depth[part.id] = above + size
    expected = 1000.0 * len(row.token_ids) + 100.0 * len(row.written) + pairs
    assert COST(row) == pytest.approx(expected)


def test_costs_come_from_the_sizes_of_the_model():
    config = SimpleNamespace(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=2,
        intermediate_size=16,
        vocab_size=32,
    )
    attention = 8 * 8 + 2 * 8 * 4 + 8 * 8
    assert Cost.of(config) == Cost(token=2.0 * 2 * (attention + 3 * 8 * 16), written=2.0 * 8 * 32, pair=64.0)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_row_goes_to_one_rank(count):
    rows = [row_of(chain(5 + number, 3)) for number in range(11)]
    dealt = deal_rows(rows, count, COST)
    assert len(dealt.rows) == count
    assert sorted(map(id, dealt.all_rows)) == sorted(map(id, rows))
    assert dealt.passes == max(map(len, dealt.rows))
    loads = [sum(map(COST, mine)) for mine in dealt.rows]
    assert dealt.unevenness == pytest.approx(max(loads) / (sum(loads) / count))


def test_no_rows_are_dealt_to_nobody():
    dealt = deal_rows([], 3, COST)
    assert (dealt.rows, dealt.passes, dealt.unevenness) == (((), (), ()), 0, 1.0)


class Several:
    """A learner of one process that deals as one of `size` would."""

    def __new__(cls, size):
        learner = build.learner(build.tiny_model(), NegativeLogLikelihood())
        learner.ranks.rank = Rank(0, size)
        return learner


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_where_no_tree_is_a_fifth_of_a_share_shares_are_even_without_a_cut(size, seed):
    """Row: per optimizer step, in FLOPs, the largest share is at most 1.05 of the mean."""
    rng = np.random.default_rng(seed)
    trees = [counted_once(bush(4, int(rng.integers(4, 9)), number)) for number in range(12 * size)]
    dealt = Several(size).pack_and_deal(trees)
    tokens = [len(row.token_ids) for row in map(row_of, [tree.tree for tree in trees])]
    assert max(tokens) < 0.2 * sum(tokens) / size
    assert dealt.unevenness <= EVEN
    assert sum(row.num_repeated for row in dealt.all_rows) == 0


@pytest.mark.parametrize(("size", "most"), [(2, 1.05), (3, 1.2), (4, 1.4)])
def test_one_large_tree_is_cut_and_what_is_computed_again_is_counted(size, most):
    large = bush(64, 20)
    trees = [counted_once(large), *(counted_once(chain(20 + number, 10)) for number in range(3))]
    dealt = Several(size).pack_and_deal(trees)
    assert dealt.unevenness <= most
    unique = sum(len(row_of(tree.tree).token_ids) for tree in trees)
    computed = sum(len(row.token_ids) for row in dealt.all_rows)
    repeated = sum(row.num_repeated for row in dealt.all_rows)
    assert 0 < repeated == computed - unique
    written = sum(len(row.written) for row in dealt.all_rows)
    assert written == sum(len(row_of(tree.tree).written) for tree in trees)
    spans = sorted((span.tree, span.node) for row in dealt.all_rows for span in row.spans)
    assert len(set(spans)) == len(spans)


def searched(rng):
    """A tree as ARPO grows them: long results, a few roots, branches behind results."""
    words = lambda low, high: rng.integers(2, 50, rng.integers(low, high))  # noqa: E731
    nodes = [node((), Source.PROMPT, words(20, 60))]
    waiting = [((root,), 0) for root in range(int(rng.integers(1, 5)))]
    leaves = 0
    while waiting:
        path, depth = waiting.pop()
        ends = depth == 3 or leaves + len(waiting) > 12 or rng.random() < 0.3
        nodes.append(node(path, Source.POLICY, words(5, 40), leaf=ends))
        leaves += ends
        if not ends:
            nodes.append(node((*path, 0), Source.TOOL, words(10, 80)))
            waiting += [((*path, 0, child), depth + 1) for child in range(int(rng.integers(1, 4)))]
    return counted_once(tree_of(nodes))


@pytest.mark.parametrize("seed", range(12))
def test_the_slowest_rank_computes_no_more_than_with_whole_trees_or_with_any_other_cut(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.choice([2, 3, 8]))
    trees = [searched(rng) for _ in range(int(rng.integers(1, 4)) * size)]
    learner = Several(size)
    cost = Cost.of(learner.model.config)

    def largest(shares):
        return max(sum(map(cost, mine)) for mine in shares.rows)

    def cut(most_tokens):
        return tree_rows(trees, 100_000, keep_dead=False, share_prefixes=True, most_tokens=most_tokens)

    whole = cut(None)
    dealt = learner.pack_and_deal(trees)
    mean = sum(len(row.token_ids) for row in whole) // size
    others = [deal_rows(whole, size, cost)]
    if dealt.unevenness > EVEN:  # else the search ends at the first cut that is even enough
        others += [deal_rows(cut(mean // parts), size, cost) for parts in PARTS if mean >= parts]
    assert largest(dealt) <= min(map(largest, others))
    assert dealt.unevenness == pytest.approx(largest(dealt) * size / sum(map(cost, whole)))
