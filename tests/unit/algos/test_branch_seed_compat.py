import math
from dataclasses import replace

import numpy as np
import pytest

from branch_cases import (
    V,
    bernoulli,
    candidate,
    frequency,
    monitored,
    released_aepo,
    released_arpo,
    statistic,
    wanted,
)
from ramify.core.records import BranchCandidate
from ramify.core.tree import Entropy


def staged(*means, own_from=0, path=(0, 0, 0, 0), slot=0, depth=None, draw=0.5, count=20):
    turns = tuple(Entropy(mean, mean, count) for mean in means)
    return BranchCandidate(path, depth or len(means) - 1, slot, turns, own_from, draw)


@pytest.mark.parametrize(
    ("switches", "entropy_delta"),
    [
        ({}, 1.1 - 0.3),
        ({"stale_segment": True}, 0.7 - 0.3),
        ({"child_baseline_after_branch": True}, 1.1 - 0.5),
        ({"stale_segment": True, "child_baseline_after_branch": True}, 0.7 - 0.5),
        ({"summed_over_tokens": True}, (1.1 - 0.3) * 20 / math.log(V)),
    ],
)
def test_each_switch_moves_the_statistic(switches, entropy_delta):
    assert statistic(**switches).entropy_delta(staged(0.3, 0.5, 0.7, 1.1, own_from=1)) == pytest.approx(
        entropy_delta
    )


def test_without_switches_the_statistic_is_the_rise_of_the_other_rules():
    here = staged(0.3, 0.5, 1.1, own_from=1)
    assert statistic().entropy_delta(here) == here.entropy_delta


def test_the_first_segment_of_a_trajectory_has_no_rise_when_it_is_its_own_baseline():
    stale = statistic(stale_segment=True, child_baseline_after_branch=True)
    assert stale.entropy_delta(staged(0.3, 1.1)) == 0.0
    assert stale.entropy_delta(staged(0.3, 0.5, 0.7, 1.1, own_from=2)) == 0.0
    # A branch behind its parent's probe has no turn of its own yet.
    assert stale.entropy_delta(staged(0.3, 0.5, 1.1, own_from=2)) == 0.0


def test_short_segments_score_lower_when_summed():
    rule = statistic(summed_over_tokens=True)
    long, short = (
        rule.entropy_delta(staged(0.0, 1.0, count=20)),
        rule.entropy_delta(staged(0.0, 1.0, count=5)),
    )
    assert long == pytest.approx(4 * short)


def test_a_baseline_that_is_never_reset_belongs_to_another_problem_from_the_second_step_on():
    rule = statistic(baseline_never_reset=True)
    assert rule.entropy_delta(staged(0.3, 1.0)) == pytest.approx(0.7)
    assert rule.entropy_delta(staged(0.6, 1.0)) == pytest.approx(0.7)
    assert rule.entropy_delta(staged(0.6, 1.0, slot=1)) == pytest.approx(0.4)
    assert rule.entropy_delta(staged(0.6, 1.0, path=(1, 0))) == pytest.approx(0.4)
    assert statistic(baseline_never_reset=True).entropy_delta(staged(0.6, 1.0)) == pytest.approx(0.4)


def test_a_branch_keeps_a_baseline_of_its_own_where_it_left_its_parent():
    rule = statistic(baseline_never_reset=True, child_baseline_after_branch=True)
    assert rule.entropy_delta(staged(0.3, 1.0, path=(0, 0))) == pytest.approx(0.7)
    first = staged(0.3, 0.5, 1.0, own_from=1, path=(0, 0, 1, 0))
    assert rule.entropy_delta(first) == pytest.approx(0.5)
    later = staged(0.3, 0.9, 0.8, 1.0, own_from=1, path=(0, 0, 1, 0, 0, 0))
    assert rule.entropy_delta(later) == pytest.approx(0.5)


def test_baselines_are_those_of_the_tree_without_the_switch():
    """Two batches with the problems in another order: the same rises."""
    batch = [staged(0.3, 1.0), staged(0.6, 1.0), staged(0.1, 0.2)]
    rule = statistic()
    first = [rule.entropy_delta(replace(each, slot=slot)) for slot, each in enumerate(batch)]
    second = [rule.entropy_delta(replace(each, slot=slot)) for slot, each in enumerate(reversed(batch))]
    assert first == second[::-1]


@pytest.mark.parametrize("entropy_delta", [-4.0, -1.0, 0.0, 1.0, 4.0])
def test_released_arpo_branches_with_probability_p_plus_w_times_dh(entropy_delta):
    rule = released_arpo(statistic())
    expected = min(max(0.5 + 0.2 * entropy_delta, 0.0), 1.0)
    assert rule.propose(staged(5.0, 5.0 + entropy_delta), ()).probability == pytest.approx(expected)
    share = frequency(rule, lambda draw: staged(5.0, 5.0 + entropy_delta, draw=draw))
    assert share == pytest.approx(expected, abs=0.001)


def test_on_a_window_of_20_tokens_the_weight_per_nat_is_that_of_the_other_rules():
    summed = released_arpo(statistic(summed_over_tokens=True))
    for entropy_delta in (-0.4, 0.4):
        ours = bernoulli().propose(candidate(entropy_delta), ()).probability
        assert summed.propose(staged(1.0, 1.0 + entropy_delta), ()).probability == pytest.approx(
            ours, abs=2e-4
        )


@pytest.mark.parametrize(("steps", "expected"), [(0, 0.5), (1, 0.474), (2, 0.444), (3, 0.412)])
def test_released_aepo_penalty(steps, expected):
    per_prompt = released_aepo(statistic())
    here = staged(1.0, 1.0, depth=steps + 1)
    assert per_prompt.propose(here, ()).probability == pytest.approx(expected, abs=5e-4)
    share = frequency(per_prompt, lambda draw: replace(here, draw=draw))
    assert share == pytest.approx(expected, abs=0.001)
    per_path = released_aepo(statistic(), penalty_per_prompt=False)
    assert per_path.propose(here, (wanted(),) * steps).probability == pytest.approx(expected, abs=5e-4)
    assert per_path.propose(here, ()).probability == pytest.approx(0.5)


@pytest.mark.parametrize("entropy_delta", [-4.0, -1.0, 1.0, 4.0])
def test_released_aepo_chance_at_a_rise(entropy_delta):
    proposal = released_aepo(statistic()).propose(staged(5.0, 5.0 + entropy_delta, depth=2), ())
    assert proposal.probability == pytest.approx(min(max(1 + 0.2 * entropy_delta - 0.5 / 0.95, 0.0), 1.0))


def test_released_aepo_stops_when_the_penalty_is_everything():
    assert released_aepo(statistic()).propose(staged(1.0, 9.0, depth=22, draw=0.0), ()).probability == 0.0


@pytest.mark.parametrize(("n", "expected"), [(16, [5, 7, 9, 10, 12]), (12, [4, 5, 7, 8, 9])])
def test_released_budget_split(n, expected):
    rule = released_aepo(statistic(), m=None)
    assert rule.num_monitor == rule.first_roots(n) == 1
    gaps = [-2, -1, 0, 1, 2]
    assert [rule.num_roots(n, (monitored(3.0 + gap, 3.0),)) for gap in gaps] == expected
    summed = released_aepo(statistic(summed_over_tokens=True), m=None)
    per_nat = math.log(V) / 20
    assert [summed.num_roots(n, (monitored(3.0 + gap * per_nat, 3.0),)) for gap in gaps] == expected
    roots = [rule.num_roots(n, (monitored(8.0 + gap, 8.0),)) for gap in np.linspace(-8, 8, 65)]
    assert roots == sorted(roots)
    assert min(roots) >= 1
    assert max(roots) <= n


def test_the_first_segment_in_the_average_halves_the_gap_of_one_result():
    with_root = released_aepo(statistic(), m=None, root_segment_in_average=True)
    without = released_aepo(statistic(), m=None)
    assert with_root.num_roots(16, (monitored(5.0, 1.0),)) == without.num_roots(16, (monitored(3.0, 1.0),))
    assert with_root.num_roots(16, (monitored(5.0),)) == 9
    assert without.num_roots(16, (monitored(5.0),)) == 16
    assert with_root.num_roots(16, (monitored(None),)) == 16
