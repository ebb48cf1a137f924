import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from branch_cases import (
    EVEN_DRAWS,
    balanced,
    bernoulli,
    candidate,
    frequency,
    monitored,
    released_aepo,
    released_arpo,
    statistic,
    threshold,
    wanted,
)
from ramify.algos.branch_aepo import steps_in_a_row
from ramify.algos.branch_controls import ShuffledBrancher
from ramify.algos.branch_rules import FlatBrancher, RandomBrancher, matched_rate
from ramify.algos.paired_run import PairedRun, PairedTree
from ramify.core.errors import ConfigError
from ramify.core.tree import BranchDecision, TreeKey


def test_threshold_branches_where_the_rise_exceeds_the_minimum():
    rule = threshold(min_entropy_delta=0.25, children=2)
    assert [rule.propose(candidate(r), ()).children for r in (-1.0, 0.0, 0.24, 0.26)] == [0, 0, 0, 2]
    assert [rule.propose(candidate(r), ()).probability for r in (0.24, 0.26)] == [0.0, 1.0]
    assert threshold().propose(candidate(0.0), ()).children == 0


@pytest.mark.parametrize(
    ("min_entropy_delta", "entropy_delta", "acted"),
    [(0.25, 0.3, True), (0.25, 0.2, False), (-0.1, 0.0, False), (0.0, 0.1, True), (0.0, -0.1, False)],
)
def test_threshold_says_whether_entropy_decided(min_entropy_delta, entropy_delta, acted):
    rule = threshold(min_entropy_delta=min_entropy_delta)
    assert rule.propose(candidate(entropy_delta), ()).entropy_acted is acted


def test_the_lower_ends_of_the_brackets_decide():
    assert threshold(min_entropy_delta=0.1).propose(candidate(0.2, width=5.0), ()).children == 1


@pytest.mark.parametrize("entropy_delta", [-2.0, -0.4, 0.0, 0.4, 2.0])
def test_bernoulli_branches_at_its_rate(entropy_delta):
    rule = bernoulli()
    proposals = [rule.propose(candidate(entropy_delta, draw), ()) for draw in EVEN_DRAWS]
    expected = min(max(0.5 + 0.335 * entropy_delta, 0), 1)
    assert all(p.probability == pytest.approx(expected) for p in proposals)
    assert np.mean([p.children for p in proposals]) == pytest.approx(expected, abs=0.001)
    acted = np.mean([p.entropy_acted for p in proposals])
    assert acted == pytest.approx(abs(expected - 0.5), abs=0.001)


# roots


def test_roots():
    assert threshold(m=8).num_roots(16, ()) == 8
    assert bernoulli(m=16).num_roots(16, ()) == 16
    assert FlatBrancher(probe_tokens=6).num_roots(16, ()) == 16
    assert FlatBrancher(probe_tokens=6).propose(candidate(5.0, 0.0), ()).children == 0


RULES = [
    threshold(),
    bernoulli(),
    balanced(),
    RandomBrancher(m=8, rate=0.5, children=1, probe_tokens=6),
    released_arpo(statistic()),
    released_aepo(statistic()),
    FlatBrancher(probe_tokens=6),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_impossible_budgets_are_refused_by_name(rule):
    for roots in (rule.first_roots, lambda n: rule.num_roots(n, (monitored(1.0, 1.0),))):
        with pytest.raises(ConfigError, match="n = 0, expected at least 1"):
            roots(0)
        if hasattr(rule, "m"):
            with pytest.raises(ConfigError, match="m = 8 roots, expected at most n = 7"):
                roots(7)


def test_a_vocabulary_of_one_token_has_no_entropy():
    with pytest.raises(ConfigError, match="vocab_size = 1, expected at least 2"):
        statistic(vocab_size=1)


# AEPO


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 12, 16, 64])
def test_the_budget_split_is_within_bounds_and_monotone_in_the_gap(n):
    rule = balanced()
    proposals = [rule.num_roots(n, (monitored(8.0 + gap, 8.0),)) for gap in np.linspace(-8, 8, 65)]
    assert proposals == sorted(proposals)
    assert (proposals[0], proposals[-1]) == (rule.first_roots(n), n)
    assert rule.first_roots(n) == max(1, n // 4)
    assert 1 == rule.num_monitor <= rule.first_roots(n)


@pytest.mark.parametrize(
    ("root", "after", "m"),
    [
        (1.0, (1.0,), 8),
        (1.0, (0.6,), round(16 / (1 + math.exp(-0.84 * 0.4)))),
        (0.6, (1.0,), round(16 / (1 + math.exp(0.84 * 0.4)))),
        (1.0, (0.8, 1.4), round(16 / (1 + math.exp(0.84 * 0.1)))),
        (1.0, (None, 0.6), 9),
        (1.0, (None,), 16),
        (1.0, (), 16),
        (None, (), 16),
        (None, (1.0,), 16),
    ],
)
def test_the_budget_split_by_hand(root, after, m):
    assert balanced().num_roots(16, (monitored(root, *after),)) == m
    assert balanced().num_roots(16, (monitored(root, *after, split=True),)) == m
    assert balanced().num_roots(16, (monitored(root, *after, speaks=True),)) == m


def test_a_huge_weight_overflows_nothing():
    assert balanced(budget_beta=1000.0).num_roots(16, (monitored(9.0, 0.0),)) == 16
    assert balanced(budget_beta=1000.0).num_roots(16, (monitored(0.0, 9.0),)) == 4


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        ((), 0),
        ((wanted(),), 1),
        ((wanted(), wanted(), wanted()), 3),
        ((wanted(planned=0),), 0),
        ((wanted(entropy_delta=0.0),), 0),
        ((wanted(entropy_delta=-0.1),), 0),
        ((wanted(), wanted(planned=0), wanted()), 1),
        ((wanted(), wanted(), wanted(entropy_delta=-0.1)), 0),
    ],
)
def test_steps_in_a_row_count_back_to_the_first_that_did_not_branch_on_a_rise(history, steps):
    assert steps_in_a_row(history) == steps


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_balanced_compares_the_penalised_chance_with_tau(steps):
    # With alpha = tau the entropy_delta must make up for the penalty: 0, 0.08, 0.17, 0.26 nats at slope 0.05.
    needed = (0.5 / (1 - 0.05 * steps) - 0.5) / 0.335
    assert needed == pytest.approx([0, 0.0786, 0.1658, 0.2634][steps], abs=1e-4)
    history = (wanted(),) * steps
    proposals = [balanced().propose(candidate(needed + more), history) for more in (-1e-6, 1e-6)]
    assert [p.children for p in proposals] == [0, 1]
    assert [p.probability for p in proposals] == [0.0, 1.0]
    assert [p.entropy_acted for p in proposals] == [False, True]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("entropy_delta", [-0.5, 0.0, 0.5])
def test_balanced_tosses_a_coin_of_the_penalised_chance(steps, entropy_delta):
    rule, history = balanced(tau=None), (wanted(),) * steps
    expected = (0.5 + 0.335 * entropy_delta) * (1 - 0.05 * steps)
    assert rule.propose(candidate(entropy_delta), history).probability == pytest.approx(expected)
    assert frequency(rule, lambda draw: candidate(entropy_delta, draw), history) == pytest.approx(
        expected, abs=0.001
    )


def test_a_penalty_beyond_everything_never_branches():
    rule = balanced(slope=0.5, tau=None)
    for entropy_delta in (-9.0, 9.0):
        assert rule.propose(candidate(entropy_delta, 0.0), (wanted(),) * 3).probability == 0.0


def test_entropy_acted_is_judged_at_the_same_penalty():
    rule = balanced(alpha=0.52)
    assert rule.propose(candidate(0.1), ()).entropy_acted is False
    assert rule.propose(candidate(0.3), (wanted(),)).entropy_acted is True


# the control


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_branches_at_its_rate_whatever_the_entropy(rate):
    rule = RandomBrancher(m=8, rate=rate, children=2, probe_tokens=6)
    for entropy_delta in (-9.0, 0.0, 9.0):
        assert frequency(
            rule, lambda draw, entropy_delta=entropy_delta: candidate(entropy_delta, draw)
        ) == pytest.approx(2 * rate, abs=0.002)
        assert rule.propose(candidate(entropy_delta), ()).probability == rate
        assert rule.propose(candidate(entropy_delta), ()).entropy_acted is False


def test_a_shuffled_rule_counts_what_it_decided_by_and_not_what_was_measured(tmp_path):
    decision = BranchDecision("0.0", 1, 0.4, 1.0, 1, 1, True)
    run = PairedRun(tmp_path, (PairedTree(TreeKey(0, 0), "p", (decision,)),))
    rule = ShuffledBrancher(inner=balanced(tau=None), run=run)
    chances = [
        rule.propose(candidate(-3.0), [wanted(measured)] * 4).probability for measured in (-2.0, 0.0, 2.0)
    ]
    assert chances == [pytest.approx((0.5 + 0.335 * 0.4) * (1 - 0.05 * 4))] * 3


# the released arithmetic


@pytest.mark.parametrize("slot_order", [True, False])
def test_who_is_served_first(slot_order):
    assert released_arpo(statistic(), slot_order=slot_order).keeps_slot_order is slot_order
    assert released_aepo(statistic(), slot_order=slot_order).keeps_slot_order is slot_order
    assert not balanced().keeps_slot_order


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
    rate_of_match = matched_rate(sizes, children, round(taken * 0.75), 0.6)
    assert 150 * expected(rate_of_match) == pytest.approx(1.01 * round(taken * 0.75), rel=1e-4)
    assert matched_rate(sizes, children, round(150 * expected(0.6)), 0.6) == 0.6
    assert 150 * expected(matched_rate(sizes, children, round(150 * expected(0.6)), 0.2)) == pytest.approx(
        0.99 * round(150 * expected(0.6)), rel=1e-4
    )


def test_rates_at_the_edges():
    assert matched_rate({(8, 4): 3}, 1, 0, 0.0) == 0.0
    assert matched_rate({(8, 4): 3}, 1, 12, 1.0) == 1.0
    # Every tree spends its budget at this rate and at any higher one.
    assert matched_rate({(4000, 8): 3}, 1, 24, 0.9) == 0.9


def test_rules_load_without_torch():
    modules = [f"branch_{name}" for name in ("arpo", "aepo", "rules", "seed_compat")]
    code = f"import sys, {', '.join(f'ramify.algos.{m}' for m in [*modules, 'ops', 'credit', 'estimators', 'losses', 'corrections'])}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
