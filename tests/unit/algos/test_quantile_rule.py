"""The rule that branches at a constant rate, against the definition of its threshold."""

from dataclasses import replace

import numpy as np
import pytest

from branch_cases import candidate
from ramify.algos.branch_controls import QuantileConfig
from ramify.algos.branch_rules import RuleSetup

SIZES = [3, 1, 7, 4, 10, 2, 6]
"""Candidates of steps 0 to 6."""


def build(**settings):
    setup = RuleSetup(2, 1000, lambda folder: 0.0, lambda folder: None)
    return QuantileConfig(probe_tokens=3, **settings).build(setup)


def at(step, index, delta):
    return replace(candidate(delta), slot=index, step=step)


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_the_threshold_is_the_quantile_of_the_deltas_of_so_many_earlier_steps(rate, steps):
    deltas = [np.random.default_rng(number).normal(size=size) for number, size in enumerate(SIZES)]
    rule = build(rate=rate, steps=steps, min_entropy_delta=0.5)
    for step, own in enumerate(deltas):
        earlier = np.concatenate(deltas[max(step - steps, 0) : step] or [[0.5]])
        expected = own > np.quantile(earlier, 1 - rate, method="inverted_cdf")
        branches = [rule.propose(at(step, index, delta), ()).children for index, delta in enumerate(own)]
        assert branches == expected.astype(int).tolist()


@pytest.mark.parametrize("rate", [0.7, 0.8])
def test_the_rate_is_that_of_decimal_fractions(rate):
    """10 x (1 - .7) is not 3 in floats."""
    rule = build(rate=rate)
    for step in (0, 1):
        branches = sum(rule.propose(at(step, index, float(index)), ()).children for index in range(10))
    assert branches == round(10 * rate)


def test_a_rule_restored_from_its_state_decides_alike():
    rule, restored = build(rate=0.3, steps=2), build(rate=0.3, steps=2)
    draws = np.random.default_rng(0).normal(size=(6, 9))
    for step in range(4):
        for index, delta in enumerate(draws[step]):
            rule.propose(at(step, index, delta), ())
    restored.restore(rule.state())
    later = [at(step, index, delta) for step in (4, 5) for index, delta in enumerate(draws[step])]
    assert [restored.propose(each, ()) for each in later] == [rule.propose(each, ()) for each in later]
