"""The rate at which coins are expected to be granted as many branches as a rule was."""

from itertools import product

import numpy as np
import pytest

from ramify.algos.branch_rules import matched_rate


@pytest.mark.parametrize(("candidates", "budget", "children"), [(5, 3, 1), (5, 4, 2), (4, 9, 2), (6, 5, 3)])
def test_a_matched_rate_is_expected_to_take_as_many(candidates, budget, children):
    def expected(rate):
        """By enumeration."""
        total = 0.0
        for coins in product((0, 1), repeat=candidates):
            chance = np.prod([rate if coin else 1 - rate for coin in coins])
            total += chance * min(budget, children * sum(coins))
        return total

    taken = 200 * expected(0.3)
    sizes = {(candidates, budget): 150, (candidates, 0): 50}
    found = matched_rate(sizes, children, round(taken * 0.75), 0.6)
    assert 150 * expected(found) == pytest.approx(1.01 * round(taken * 0.75), rel=1e-4)
    assert matched_rate(sizes, children, round(150 * expected(0.6)), 0.6) == 0.6
    assert 150 * expected(matched_rate(sizes, children, round(150 * expected(0.6)), 0.2)) == pytest.approx(
        0.99 * round(150 * expected(0.6)), rel=1e-4
    )


def test_rates_at_the_edges():
    assert matched_rate({(8, 4): 3}, 1, 0, 0.0) == 0.0
    assert matched_rate({(8, 4): 3}, 1, 12, 1.0) == 1.0
    # Every tree spends its budget at this rate and at any higher one.
    assert matched_rate({(4000, 8): 3}, 1, 24, 0.9) == 0.9
