"""Paths, masses and statistics of a batch; credit, and the denominators of a loss."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.algos.ops import (
    BatchStatistics,
    effective_leaves,
    leaf_masses,
    num_paths,
    sums_of,
    token_weights,
)
from ramify.core.errors import ConfigError
from ramify.core.tree import Source
from random_trees import forked_tree, node, random_tree, training, tree_of


def hand_tree():
    """Two roots; the first branches in three after its tool result, and one of those in two.

    Leaves: 0.0.0.0.0, 0.0.0.0.1, 0.0.1, 0.0.2, 1 with masses 1/6, 1/6, 1/3, 1/3, 1.
    """
    policy, tool = Source.POLICY, Source.TOOL
    return tree_of(
        [
            node((), Source.PROMPT, [5, 5]),
            node((0,), policy, [1, 2]),
            node((0, 0), tool, [9]),
            node((0, 0, 0), policy, [3]),
            node((0, 0, 0, 0), tool, [9]),
            node((0, 0, 0, 0, 0), policy, [4], leaf=True),
            node((0, 0, 0, 0, 1), policy, [4, 4], leaf=True),
            node((0, 0, 1), policy, [3], leaf=True),
            node((0, 0, 2), policy, [3], leaf=True),
            node((1,), policy, [1], leaf=True),
        ]
    )


def constant(tree, values):
    return [np.full(t.num_written, v) for t, v in zip(tree.trajectories, values, strict=True)]


VALUES = [6.0, -3.0, 1.0, -2.0, 0.5]


def test_paths_and_masses_by_hand():
    tree = hand_tree()
    counts = num_paths(tree)
    assert [counts[k] for k in ("", "0", "0.0", "0.0.0", "0.0.0.0.1", "0.0.2", "1")] == [5, 4, 4, 2, 1, 1, 1]
    assert leaf_masses(tree) == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3, 1])


@pytest.mark.parametrize(
    ("shared", "weight", "plus", "minus"),
    [("repeat", 4, 7, -5), ("split", 1, 7 / 4, -5 / 4), ("mass", 1, 6 / 6 + 1 / 3, -3 / 6 - 2 / 3)],
)
def test_soft_credit_of_a_trunk_by_hand(shared, weight, plus, minus):
    tree = hand_tree()
    trunk = credit(training(tree, constant(tree, VALUES)), Weighting(shared))["0"]
    assert trunk.s_plus == pytest.approx([plus] * 2)
    assert trunk.s_minus == pytest.approx([minus] * 2)
    assert trunk.weight == pytest.approx([weight] * 2)
    assert trunk.num_paths == pytest.approx([4, 4])


@pytest.mark.parametrize(
    ("shared", "total", "mean"), [("repeat", 4, 2 / 4), ("split", 1, 2 / 4), ("mass", 1, 3 / 6 - 1 / 3)]
)
def test_hard_credit_of_a_trunk_is_that_of_the_mean(shared, total, mean):
    tree = hand_tree()
    trunk = credit(training(tree, constant(tree, VALUES)), Weighting(shared, "hard"))["0"]
    assert trunk.s_plus == pytest.approx([total * mean] * 2)
    assert trunk.s_minus.tolist() == [0, 0]


def test_leaves_have_their_own_credit_of_one_sign():
    tree = hand_tree()
    for sharing in ("soft", "hard"):
        credits = credit(training(tree, constant(tree, VALUES)), Weighting("repeat", sharing))
        assert credits["0.0.0.0.1"].s_minus.tolist() == [-3, -3]
        assert credits["0.0.0.0.1"].s_plus.tolist() == [0, 0]
        assert credits["1"].s_plus.tolist() == [0.5]
    assert credit(training(tree, constant(tree, VALUES)), Weighting("mass"))["0.0.1"].s_plus == pytest.approx(
        [1 / 3]
    )


def test_advantages_of_each_token_stay_with_their_token():
    tree = hand_tree()
    values = [np.arange(t.num_written, dtype=float) + 10 * j for j, t in enumerate(tree.trajectories)]
    credits = credit(training(tree, values), Weighting())
    assert credits["0"].s_plus.tolist() == [0 + 10 + 20 + 30, 1 + 11 + 21 + 31]
    assert credits["0.0.0.0.1"].s_plus.tolist() == [13, 14]


def test_token_denominators_count_every_token_dead_or_not():
    tree = hand_tree()
    written = np.array([t.num_written for t in tree.trajectories])
    assert denominator([tree], Weighting("repeat")) == written.sum()
    unique = sum(len(n.token_ids) for n in tree.nodes if n.source is Source.POLICY)
    assert denominator([tree, tree], Weighting("split")) == 2 * unique
    assert denominator([tree], Weighting("mass")) == pytest.approx((leaf_masses(tree) * written).sum())


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
def test_token_denominators_are_the_sum_of_the_weights(shared):
    tree = random_tree(np.random.default_rng(3), depth=4)
    weighting = Weighting(shared)
    credits = credit(training(tree, constant(tree, [1.0] * len(tree.trajectories))), weighting)
    assert denominator([tree], weighting) == pytest.approx(sum(c.weight.sum() for c in credits.values()))


def test_sequence_means_weigh_a_trajectory_by_its_leaf_and_its_tokens_by_its_length():
    tree = hand_tree()
    leaves = len(tree.trajectories)
    assert denominator([tree], Weighting(aggregation="sequence_mean")) == leaves
    assert denominator([tree], Weighting("mass", aggregation="sequence_mean")) == len(tree.children[""])
    assert denominator([tree], Weighting(aggregation="fixed_length", fixed_length=50)) == 50 * leaves
    by_node = credit(training(tree, constant(tree, [1.0] * leaves)), Weighting(aggregation="sequence_mean"))
    assert sum(c.s_plus.sum() for c in by_node.values()) == pytest.approx(leaves)


@pytest.mark.parametrize("sharing", ["soft", "hard"])
def test_a_masked_trajectory_weighs_nothing_and_stays_in_the_denominator(sharing):
    tree = hand_tree()
    counted = np.ones(len(tree.trajectories), dtype=bool)
    counted[0] = False
    values = constant(tree, VALUES)
    weighting = Weighting("repeat", sharing)
    masked = credit(training(tree, values, None, counted), weighting)
    alone = tree.trajectories[0].leaf.id
    assert not masked[alone].s_plus.any()
    assert not masked[alone].s_minus.any()
    assert not masked[alone].weight.any()
    shared = next(
        n.id for n in tree.trajectories[0].nodes if num_paths(tree)[n.id] > 1 and n.source is Source.POLICY
    )
    others = [i for i, t in enumerate(tree.trajectories) if i and shared in [n.id for n in t.nodes]]
    assert (masked[shared].s_plus + masked[shared].s_minus)[0] == pytest.approx(
        sum(VALUES[i] for i in others)
    )
    assert masked[shared].num_paths[0] == len(others)


def test_corrections_multiply_the_advantage_and_not_the_weight():
    tree = hand_tree()
    values = constant(tree, VALUES)
    rho = [np.full(t.num_written, 0.5) for t in tree.trajectories]
    plain, corrected = (
        credit(training(tree, values), Weighting()),
        credit(training(tree, values, rho), Weighting()),
    )
    for key, c in plain.items():
        assert corrected[key].s_plus == pytest.approx(0.5 * c.s_plus)
        assert corrected[key].s_minus == pytest.approx(0.5 * c.s_minus)
        assert corrected[key].weight == pytest.approx(c.weight)


def test_whole_paths_have_one_advantage_each():
    tree = hand_tree()
    values = constant(tree, VALUES)
    paths = path_credit([training(tree, values)] * 2, Weighting("mass"))
    assert paths.advantages == pytest.approx([*VALUES, *VALUES])
    assert paths.weights == pytest.approx([*leaf_masses(tree), *leaf_masses(tree)])
    assert paths.tree.tolist() == [0] * len(VALUES) + [1] * len(VALUES)
    assert paths.num_written.tolist() == [t.num_written for t in tree.trajectories] * 2
    for weighting in (Weighting("split"), Weighting(sharing="hard")):
        with pytest.raises(ConfigError, match="whole trajectories"):
            path_credit([training(tree, values)], weighting)
    values[0] = np.arange(len(values[0]), dtype=float)
    with pytest.raises(ValueError, match="one advantage"):
        path_credit([training(tree, values)], Weighting())


def test_advantages_of_the_wrong_length_are_refused():
    tree = hand_tree()
    with pytest.raises(ValueError, match=r"'0\.0\.0\.0\.0': 3 advantages for 4 written"):
        credit(training(tree, [np.zeros(3)] * 5), Weighting())


def test_effective_leaves():
    assert effective_leaves(np.full(7, 0.5)) == pytest.approx(7)
    assert effective_leaves(leaf_masses(hand_tree())) == pytest.approx(2**2 / (2 / 36 + 2 / 9 + 1))


def statistics_of(values, weights=None):
    values = [np.array(v, dtype=float) for v in values]
    weights = [np.ones(len(v)) for v in values] if weights is None else [np.array(w) for w in weights]
    return BatchStatistics.of(sums_of(values, weights))


def test_weights_are_corrected_for_their_effective_count():
    statistics = statistics_of([[1.0, 3.0]], [[1.0, 0.5]])
    mean = 2.5 / 1.5
    assert statistics.mean == pytest.approx(mean)
    variance = ((1 - mean) ** 2 + 0.5 * (3 - mean) ** 2) / (1.5 - 1.25 / 1.5)
    assert statistics.std == pytest.approx(variance**0.5)


@pytest.mark.parametrize(("value", "count"), [(0.0, 5), (0.1, 1000), (-1.0, 3), (1e8, 77), (3.3e-9, 10)])
def test_equal_values_have_no_deviation_however_their_sums_round(value, count):
    assert statistics_of([[value] * count]).std == 0
    assert statistics_of([[value] * count], [np.linspace(0.1, 1, count)]).std == 0


def test_a_deviation_above_the_rounding_is_kept():
    assert statistics_of([[1.0, 1.0 + 1e-5]]).std == pytest.approx(1e-5 / 2**0.5, rel=1e-4)


@pytest.mark.parametrize("values", [[], [[]], [[0.7]]])
def test_nothing_and_a_single_value_have_no_deviation(values):
    statistics = statistics_of(values)
    assert statistics.std == 0
    assert statistics.mean == pytest.approx(0.7 if any(values) else 0.0)


@given(st.lists(st.lists(st.floats(-100, 100), max_size=6), max_size=8), st.integers(0, 8), st.randoms())
def test_sums_of_parts_add_up_to_those_of_the_whole_in_any_order(arrays, cut, random):
    values = [np.array(v) for v in arrays]
    weights = [1 / (1 + np.arange(len(v))) for v in values]
    whole = sums_of(values, weights)
    order = list(range(len(values)))
    random.shuffle(order)
    assert sums_of([values[i] for i in order], [weights[i] for i in order]) == whole
    parts = [sums_of(values[part], weights[part]) for part in (slice(cut), slice(cut, None))]
    assert astuple(parts[0] + parts[1]) == pytest.approx(astuple(whole), rel=1e-12, abs=1e-9)


def test_a_shared_token_counts_by_paths_once_or_by_mass():
    tree = forked_tree([3], [3], root=[])
    assert [w.tolist() for w in token_weights(tree, "repeat")] == [[1, 1, 1], [1, 1, 1], []]
    assert [w.tolist() for w in token_weights(tree, "split")] == [[0.5, 0.5, 1], [0.5, 0.5, 1], []]
    assert [w.tolist() for w in token_weights(tree, "mass")] == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], []]


def test_a_masked_trajectory_has_no_weight_in_a_loss_on_trajectories():
    tree = hand_tree()
    masked = replace(
        training(tree, constant(tree, VALUES)), loss_mask=np.array([True, False, True, True, False])
    )
    assert path_credit([masked], Weighting()).weights.tolist() == [1, 0, 1, 1, 0]
