"""Laws of every branching rule: proposals within bounds, from the candidate alone, and no budget of its own."""

from dataclasses import replace
from typing import get_args

import pytest

from ramify.config.build import build_brancher
from ramify.config.schema_parts import BranchingSection, RolloutSection
from ramify.core.records import BranchCandidate
from ramify.core.tree import BranchDecision, Entropy

NAMES = [get_args(s.model_fields["name"].annotation)[0] for s in get_args(get_args(BranchingSection)[0])]
DRAWS = [0.0, 0.2, 0.5, 0.8, 0.999999]
RISES = [-5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0]
HISTORY = (BranchDecision("0.0", 1, 0.3, 0.6, 1, 0, True),)


def rule(name, n=8, m=4):
    return build_brancher(
        RolloutSection(
            problems_per_step=1,
            n=n,
            m=m,
            max_tokens=9,
            max_calls=3,
            branching={"name": name, "probe_tokens": 3},
        )
    )


def candidate(rise, draw):
    baseline = Entropy(6.0, 6.5)
    entropy = Entropy(6.0 + rise, 7.0 + rise)
    return BranchCandidate((0, 0), 1, 0, (baseline, entropy), 0, draw)


def test_all_rules_are_here():
    assert {"none", "threshold", "bernoulli"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_roots_and_windows_are_within_bounds(name):
    for n, m in [(1, 1), (8, 4), (8, 8)]:
        brancher = rule(name, n, m)
        assert 1 <= brancher.num_roots(n, ()) <= n
        assert brancher.probe_tokens == 3
        assert brancher.num_monitor >= 0
        assert brancher.max_children >= 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("rise", RISES)
def test_a_proposal_is_within_bounds_and_repeatable(name, rise, draw):
    brancher = rule(name)
    proposal = brancher.propose(candidate(rise, draw), HISTORY)
    assert 0 <= proposal.children <= brancher.max_children
    assert 0.0 <= proposal.probability <= 1.0
    assert proposal.probability > 0 or proposal.children == 0
    assert proposal.probability < 1 or proposal.children > 0
    assert brancher.propose(candidate(rise, draw), HISTORY) == proposal
    assert rule(name).propose(candidate(rise, draw), HISTORY) == proposal


@pytest.mark.parametrize("name", NAMES)
def test_more_entropy_never_makes_a_branch_less_likely(name):
    probabilities = [rule(name).propose(candidate(rise, 0.5), ()).probability for rise in RISES]
    assert probabilities == sorted(probabilities)
    assert (probabilities[0] < probabilities[-1]) == (name != "none")


@pytest.mark.parametrize("name", NAMES)
def test_entropy_acted_means_that_the_decision_differs_from_that_at_no_rise(name):
    for draw in DRAWS:
        level = rule(name).propose(candidate(0.0, draw), ())
        for rise in RISES:
            proposal = rule(name).propose(candidate(rise, draw), ())
            assert proposal.entropy_acted == (bool(proposal.children) != bool(level.children))


@pytest.mark.parametrize("name", NAMES)
def test_where_the_tool_result_hangs_changes_nothing(name):
    here = candidate(0.4, 0.5)
    assert rule(name).propose(here, ()) == rule(name).propose(replace(here, path=(7, 0, 1, 0), depth=2), ())
