import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ramify.algos.branch_aepo import BalancedBrancher, steps_in_a_row
from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.algos.branch_none import FlatBrancher
from ramify.algos.branch_random import RandomBrancher
from ramify.algos.branch_seed_compat import ReleasedAepoBrancher, ReleasedArpoBrancher, ReleasedStatistic
from ramify.core.draws import stream, uniforms
from ramify.core.errors import ConfigError
from ramify.core.messages import Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.records import BranchCandidate
from ramify.core.tree import BranchDecision, Entropy, Node, Source, StopReason, Trajectory, node_id

V = 151_936


def candidate(rise, draw=0.5, width=0.0):
    turns = (Entropy(1.0, 1.0 + width), Entropy(1.0 + rise, 1.0 + rise + width))
    return BranchCandidate((0, 0), 1, 0, turns, 0, draw)


def wanted(rise=0.3, planned=1):
    return BranchDecision("0.0", 1, rise, 0.6, planned, 0, True)


def monitored(root, *after, split=False):
    """Root 0 with a turn of each entropy (None: it has none), tool results between them.

    `split`: each turn after a result is two nodes, as where branches share its first tokens.
    """
    message = (Message.of("user", "?"),)
    nodes = [Node("", (), None, Source.PROMPT, (1,), "?"), turn((0,), root)]
    for entropy in after:
        path = (*nodes[-1].path, 0)
        call = ToolCall(nodes[-1].id, "search", {"query": "?"})
        nodes[-1] = replace(nodes[-1], calls=(call,))
        result = ToolResult(call.id, ToolStatus.OK, "!")
        nodes.append(Node(node_id(path), path, node_id(path[:-1]), Source.TOOL, (2,), "!", results=(result,)))
        nodes.append(turn((*path, 0), entropy))
        if split:
            nodes.append(turn((*path, 0, 0), None))
    nodes[-1] = replace(nodes[-1], stop=StopReason.ANSWERED)
    return Trajectory(Problem("p", message, ("!",)), tuple(nodes))


def turn(path, entropy):
    known = None if entropy is None else Entropy(entropy, entropy + 0.5, 20)
    parent = node_id(path[:-1])
    return Node(node_id(path), path, parent, Source.POLICY, (3,), "t", (-0.1,), known, policy_version=0)


def threshold(**changes):
    return ThresholdBrancher(**({"m": 8, "min_rise": 0.0, "children": 1, "probe_tokens": 6} | changes))


def bernoulli(**changes):
    settings = {"m": 8, "alpha": 0.5, "beta": 0.335, "children": 1, "probe_tokens": 6}
    return BernoulliBrancher(**(settings | changes))


def balanced(**changes):
    settings = {"alpha": 0.5, "gamma": 0.335, "slope": 0.05, "tau": 0.5, "budget_beta": 0.84}
    return BalancedBrancher(**(settings | {"children": 1, "probe_tokens": 20} | changes))


def statistic(**switches):
    off = {"stale_segment": False, "summed_over_tokens": False, "child_baseline_after_branch": False}
    return ReleasedStatistic(**({"vocab_size": V, "baseline_never_reset": False} | off | switches))


def released_arpo(stat, **changes):
    settings = {"m": 8, "branch_probability": 0.5, "entropy_weight": 0.2, "slot_order": True}
    return ReleasedArpoBrancher(statistic=stat, **(settings | {"children": 1, "probe_tokens": 20} | changes))


def released_aepo(stat, **changes):
    settings = {"m": 8, "branch_probability": 0.5, "entropy_weight": 0.2, "slot_order": True}
    switches = {
        "budget_beta": 0.5,
        "root_segment_in_average": False,
        "penalty_per_prompt": True,
        "probe_tokens": 20,
    }
    return ReleasedAepoBrancher(statistic=stat, **(settings | switches | changes))


def frequency(rule, make, history=()):
    draws = uniforms(np.full(20_000, stream("rate"), np.uint64), np.arange(20_000, dtype=np.uint64))
    return np.mean([rule.propose(make(draw), history).children for draw in draws])


# ARPO


def test_threshold_branches_where_the_rise_exceeds_the_minimum():
    rule = threshold(min_rise=0.25, children=2)
    assert [rule.propose(candidate(r), ()).children for r in (-1.0, 0.0, 0.24, 0.26)] == [0, 0, 0, 2]
    assert [rule.propose(candidate(r), ()).probability for r in (0.24, 0.26)] == [0.0, 1.0]
    assert threshold().propose(candidate(0.0), ()).children == 0


@pytest.mark.parametrize(
    ("min_rise", "rise", "acted"), [(0.25, 0.3, True), (0.25, 0.2, False), (-0.1, 0.0, False)]
)
def test_threshold_says_whether_entropy_decided(min_rise, rise, acted):
    assert threshold(min_rise=min_rise).propose(candidate(rise), ()).entropy_acted is acted


def test_the_lower_ends_of_the_brackets_decide():
    assert threshold(min_rise=0.1).propose(candidate(0.2, width=5.0), ()).children == 1


@pytest.mark.parametrize("rise", [-2.0, -0.4, 0.0, 0.4, 2.0])
def test_bernoulli_branches_at_its_rate(rise):
    rule = bernoulli()
    draws = uniforms(np.full(20_000, stream("rate"), np.uint64), np.arange(20_000, dtype=np.uint64))
    made = [rule.propose(candidate(rise, draw), ()) for draw in draws]
    expected = min(max(0.5 + 0.335 * rise, 0), 1)
    assert all(p.probability == pytest.approx(expected) for p in made)
    assert np.mean([p.children for p in made]) == pytest.approx(expected, abs=0.012)
    acted = np.mean([p.entropy_acted for p in made])
    assert acted == pytest.approx(abs(expected - 0.5), abs=0.012)


def test_probability_stays_in_the_unit_interval():
    assert bernoulli().propose(candidate(9.0, 0.999999), ()).probability == 1.0
    assert bernoulli().propose(candidate(-9.0, 0.0), ()).children == 0


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
    for name in ("m", "children", "probe_tokens"):
        if hasattr(rule, name) and not isinstance(rule, FlatBrancher):
            with pytest.raises(ConfigError, match=f"{name} = 0, expected at least 1"):
                replace(rule, **{name: 0})


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="probe_tokens = -1, expected at least 0"):
        FlatBrancher(probe_tokens=-1)
    with pytest.raises(ConfigError, match=r"rate = 1\.5, expected a number from 0 to 1"):
        RandomBrancher(m=8, rate=1.5, children=1, probe_tokens=6)
    with pytest.raises(ConfigError, match="slope = 2, expected a number from 0 to 1"):
        balanced(slope=2)
    with pytest.raises(ConfigError, match="budget_beta = -1, expected at least 0"):
        balanced(budget_beta=-1)
    with pytest.raises(ConfigError, match="vocab_size = 1, expected at least 2"):
        statistic(vocab_size=1)


# AEPO


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 12, 16, 64])
def test_the_budget_split_is_within_bounds_and_monotone_in_the_gap(n):
    rule = balanced()
    made = [rule.num_roots(n, (monitored(8.0 + gap, 8.0),)) for gap in np.linspace(-8, 8, 65)]
    assert made == sorted(made)
    assert (made[0], made[-1]) == (rule.first_roots(n), n)
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


def test_a_huge_weight_overflows_nothing():
    assert balanced(budget_beta=1e6).num_roots(16, (monitored(9.0, 0.0),)) == 16
    assert balanced(budget_beta=1e6).num_roots(16, (monitored(0.0, 9.0),)) == 4


@pytest.mark.parametrize(
    ("history", "steps"),
    [
        ((), 0),
        ((wanted(),), 1),
        ((wanted(), wanted(), wanted()), 3),
        ((wanted(planned=0),), 0),
        ((wanted(rise=0.0),), 0),
        ((wanted(rise=-0.1),), 0),
        ((wanted(), wanted(planned=0), wanted()), 1),
        ((wanted(), wanted(), wanted(rise=-0.1)), 0),
    ],
)
def test_steps_in_a_row_count_back_to_the_first_that_did_not_branch_on_a_rise(history, steps):
    assert steps_in_a_row(history) == steps


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_balanced_compares_the_penalised_chance_with_tau(steps):
    # With alpha = tau the rise must make up for the penalty: 0, 0.08, 0.17, 0.26 nats at slope 0.05.
    needed = (0.5 / (1 - 0.05 * steps) - 0.5) / 0.335
    assert needed == pytest.approx([0, 0.0786, 0.1658, 0.2634][steps], abs=1e-4)
    history = (wanted(),) * steps
    made = [balanced().propose(candidate(needed + more), history) for more in (-1e-6, 1e-6)]
    assert [p.children for p in made] == [0, 1]
    assert [p.probability for p in made] == [0.0, 1.0]
    assert [p.entropy_acted for p in made] == [False, True]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("rise", [-0.5, 0.0, 0.5])
def test_balanced_tosses_a_coin_of_the_penalised_chance(steps, rise):
    rule, history = balanced(tau=None), (wanted(),) * steps
    expected = (0.5 + 0.335 * rise) * (1 - 0.05 * steps)
    assert rule.propose(candidate(rise), history).probability == pytest.approx(expected)
    assert frequency(rule, lambda draw: candidate(rise, draw), history) == pytest.approx(expected, abs=0.012)


def test_a_penalty_beyond_everything_never_branches():
    rule = balanced(slope=0.5, tau=None)
    for rise in (-9.0, 9.0):
        assert rule.propose(candidate(rise, 0.0), (wanted(),) * 3).probability == 0.0


def test_entropy_acted_is_judged_at_the_same_penalty():
    rule = balanced(alpha=0.52)
    assert rule.propose(candidate(0.1), ()).entropy_acted is False
    assert rule.propose(candidate(0.3), (wanted(),)).entropy_acted is True


# the control


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_branches_at_its_rate_whatever_the_entropy(rate):
    rule = RandomBrancher(m=8, rate=rate, children=2, probe_tokens=6)
    for rise in (-9.0, 0.0, 9.0):
        assert frequency(rule, lambda draw, rise=rise: candidate(rise, draw)) == pytest.approx(
            2 * rate, abs=0.024
        )
        assert rule.propose(candidate(rise), ()).probability == rate
        assert rule.propose(candidate(rise), ()).entropy_acted is False


# the released arithmetic


def staged(*means, own_from=0, path=(0, 0, 0, 0), slot=0, depth=None, draw=0.5, count=20):
    turns = tuple(Entropy(mean, mean, count) for mean in means)
    return BranchCandidate(path, depth or len(means) - 1, slot, turns, own_from, draw)


@pytest.mark.parametrize(
    ("switches", "rise"),
    [
        ({}, 1.1 - 0.3),
        ({"stale_segment": True}, 0.7 - 0.3),
        ({"child_baseline_after_branch": True}, 1.1 - 0.5),
        ({"stale_segment": True, "child_baseline_after_branch": True}, 0.7 - 0.5),
        ({"summed_over_tokens": True}, (1.1 - 0.3) * 20 / math.log(V)),
    ],
)
def test_each_switch_moves_the_statistic(switches, rise):
    assert statistic(**switches).rise(staged(0.3, 0.5, 0.7, 1.1, own_from=1)) == pytest.approx(rise)


def test_without_switches_the_statistic_is_the_rise_of_the_other_rules():
    here = staged(0.3, 0.5, 1.1, own_from=1)
    assert statistic().rise(here) == here.rise


def test_the_first_segment_of_a_trajectory_has_no_rise_when_it_is_its_own_baseline():
    stale = statistic(stale_segment=True, child_baseline_after_branch=True)
    assert stale.rise(staged(0.3, 1.1)) == 0.0
    assert stale.rise(staged(0.3, 0.5, 0.7, 1.1, own_from=2)) == 0.0
    # A branch behind its parent's probe has no turn of its own yet.
    assert stale.rise(staged(0.3, 0.5, 1.1, own_from=2)) == 0.0


def test_short_segments_score_lower_when_summed():
    rule = statistic(summed_over_tokens=True)
    long, short = rule.rise(staged(0.0, 1.0, count=20)), rule.rise(staged(0.0, 1.0, count=5))
    assert long == pytest.approx(4 * short)


def test_a_baseline_that_is_never_reset_belongs_to_another_problem_from_the_second_step_on():
    kept = statistic(baseline_never_reset=True)
    assert kept.rise(staged(0.3, 1.0)) == pytest.approx(0.7)
    assert kept.rise(staged(0.6, 1.0)) == pytest.approx(0.7)
    assert kept.rise(staged(0.6, 1.0, slot=1)) == pytest.approx(0.4)
    assert kept.rise(staged(0.6, 1.0, path=(1, 0))) == pytest.approx(0.4)
    assert statistic(baseline_never_reset=True).rise(staged(0.6, 1.0)) == pytest.approx(0.4)


def test_a_branch_keeps_a_baseline_of_its_own_where_it_left_its_parent():
    kept = statistic(baseline_never_reset=True, child_baseline_after_branch=True)
    assert kept.rise(staged(0.3, 1.0, path=(0, 0))) == pytest.approx(0.7)
    first = staged(0.3, 0.5, 1.0, own_from=1, path=(0, 0, 1, 0))
    assert kept.rise(first) == pytest.approx(0.5)
    later = staged(0.3, 0.9, 0.8, 1.0, own_from=1, path=(0, 0, 1, 0, 0, 0))
    assert kept.rise(later) == pytest.approx(0.5)


def test_baselines_are_those_of_the_tree_without_the_switch():
    """Two batches with the problems in another order: the same rises."""
    batch = [staged(0.3, 1.0), staged(0.6, 1.0), staged(0.1, 0.2)]
    rule = statistic()
    first = [rule.rise(replace(one, slot=slot)) for slot, one in enumerate(batch)]
    second = [rule.rise(replace(one, slot=slot)) for slot, one in enumerate(reversed(batch))]
    assert first == second[::-1]


@pytest.mark.parametrize("rise", [-4.0, -1.0, 0.0, 1.0, 4.0])
def test_released_arpo_branches_with_probability_p_plus_w_times_dh(rise):
    rule = released_arpo(statistic())
    expected = min(max(0.5 + 0.2 * rise, 0.0), 1.0)
    assert rule.propose(staged(5.0, 5.0 + rise), ()).probability == pytest.approx(expected)
    found = frequency(rule, lambda draw: staged(5.0, 5.0 + rise, draw=draw))
    assert found == pytest.approx(expected, abs=0.012)


def test_on_a_window_of_20_tokens_the_weight_per_nat_is_that_of_the_other_rules():
    summed = released_arpo(statistic(summed_over_tokens=True))
    for rise in (-0.4, 0.4):
        ours = bernoulli().propose(candidate(rise), ()).probability
        assert summed.propose(staged(1.0, 1.0 + rise), ()).probability == pytest.approx(ours, abs=2e-4)


@pytest.mark.parametrize(("steps", "expected"), [(0, 0.5), (1, 0.474), (2, 0.444), (3, 0.412)])
def test_released_aepo_penalty(steps, expected):
    per_prompt = released_aepo(statistic())
    here = staged(1.0, 1.0, depth=steps + 1)
    assert per_prompt.propose(here, ()).probability == pytest.approx(expected, abs=5e-4)
    found = frequency(per_prompt, lambda draw: replace(here, draw=draw))
    assert found == pytest.approx(expected, abs=0.012)
    per_path = released_aepo(statistic(), penalty_per_prompt=False)
    assert per_path.propose(here, (wanted(),) * steps).probability == pytest.approx(expected, abs=5e-4)
    assert per_path.propose(here, ()).probability == pytest.approx(0.5)


@pytest.mark.parametrize("rise", [-4.0, -1.0, 1.0, 4.0])
def test_released_aepo_chance_at_a_rise(rise):
    made = released_aepo(statistic()).propose(staged(5.0, 5.0 + rise, depth=2), ())
    assert made.probability == pytest.approx(min(max(1 + 0.2 * rise - 0.5 / 0.95, 0.0), 1.0))


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
    made = [rule.num_roots(n, (monitored(8.0 + gap, 8.0),)) for gap in np.linspace(-8, 8, 65)]
    assert made == sorted(made)
    assert min(made) >= 1
    assert max(made) <= n


def test_the_first_segment_in_the_average_halves_the_gap_of_one_result():
    with_root = released_aepo(statistic(), m=None, root_segment_in_average=True)
    without = released_aepo(statistic(), m=None)
    assert with_root.num_roots(16, (monitored(5.0, 1.0),)) == without.num_roots(16, (monitored(3.0, 1.0),))
    assert with_root.num_roots(16, (monitored(5.0),)) == 9
    assert without.num_roots(16, (monitored(5.0),)) == 16
    assert with_root.num_roots(16, (monitored(None),)) == 16


@pytest.mark.parametrize("slot_order", [True, False])
def test_who_is_served_first(slot_order):
    assert released_arpo(statistic(), slot_order=slot_order).keeps_slot_order is slot_order
    assert released_aepo(statistic(), slot_order=slot_order).keeps_slot_order is slot_order
    assert not balanced().keeps_slot_order


def test_rules_load_without_torch():
    modules = [f"branch_{name}" for name in ("arpo", "aepo", "none", "random", "roots", "seed_compat")]
    code = f"import sys, {', '.join(f'ramify.algos.{m}' for m in [*modules, 'arpo'])}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
