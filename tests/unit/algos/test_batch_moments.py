from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.algos.ops import BatchStatistics, sums_of, token_weights
from ramify.core.tree import Source
from random_trees import node, tree_of

floats = st.floats(-100, 100)


def moments(values, weights=None):
    values = [np.array(v, dtype=float) for v in values]
    weights = [np.ones(len(v)) for v in values] if weights is None else [np.array(w) for w in weights]
    return BatchStatistics.of(sums_of(values, weights))


def test_equal_weights_give_the_sample_mean_and_deviation():
    found = moments([[1.0, 2.0], [4.0], []])
    assert found.mean == pytest.approx(7 / 3)
    assert found.std == pytest.approx(np.std([1, 2, 4], ddof=1))


def test_weights_are_corrected_for_their_effective_count():
    found = moments([[1.0, 3.0]], [[1.0, 0.5]])
    mean = 2.5 / 1.5
    assert found.mean == pytest.approx(mean)
    variance = ((1 - mean) ** 2 + 0.5 * (3 - mean) ** 2) / (1.5 - 1.25 / 1.5)
    assert found.std == pytest.approx(variance**0.5)


@pytest.mark.parametrize(("value", "count"), [(0.0, 5), (0.1, 1000), (-1.0, 3), (1e8, 77), (3.3e-9, 10)])
def test_equal_values_have_no_deviation_however_their_sums_round(value, count):
    assert moments([[value] * count]).std == 0
    assert moments([[value] * count], [np.linspace(0.1, 1, count)]).std == 0


def test_a_deviation_above_the_rounding_is_kept():
    assert moments([[1.0, 1.0 + 1e-5]]).std == pytest.approx(1e-5 / 2**0.5, rel=1e-4)


@pytest.mark.parametrize("values", [[], [[]], [[0.7]]])
def test_nothing_and_a_single_value_have_no_deviation(values):
    found = moments(values)
    assert found.std == 0
    assert found.mean == pytest.approx(0.7 if any(values) else 0.0)


@given(st.lists(st.lists(floats, max_size=6), max_size=8), st.integers(0, 8), st.randoms())
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
    tree = tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3], leaf=True),
            node((0, 0, 1), Source.POLICY, [3], leaf=True),
            node((1,), Source.POLICY, [], leaf=True),
        ]
    )
    assert [w.tolist() for w in token_weights(tree, "repeat")] == [[1, 1, 1], [1, 1, 1], []]
    assert [w.tolist() for w in token_weights(tree, "split")] == [[0.5, 0.5, 1], [0.5, 0.5, 1], []]
    assert [w.tolist() for w in token_weights(tree, "mass")] == [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], []]
