"""Numbers of a branching rule that cannot be: refused with the rule's own words."""

from dataclasses import dataclass

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.errors import ConfigError
from ramify.core.records import Proposal
from scripted_agents import agent, grow


@dataclass(frozen=True)
class Odd:
    """A rule with one number that is wrong."""

    first: int = 2
    roots: int = 4
    num_monitor: int = 0
    max_children: int = 1
    wanted: int = 1
    probe_tokens: int = 3
    keeps_slot_order: bool = False

    def first_roots(self, n):
        return self.first

    def num_roots(self, n, monitor):
        return self.roots

    def propose(self, candidate, history):
        return Proposal(self.wanted, 1.0, False)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (ThresholdBrancher(m=9, min_rise=0.0, children=1, probe_tokens=3), "m = 9 roots"),
        (Odd(first=0), "0 roots, expected 1 to n = 8"),
        (Odd(first=9), "9 roots, expected 1 to n = 8"),
        (Odd(first=1, num_monitor=2), "1 roots, expected 2 to n = 8"),
        (Odd(roots=1), "1 roots, expected 2 to n = 8"),
        (Odd(roots=9), "9 roots, expected 2 to n = 8"),
        (Odd(num_monitor=2, roots=9), "9 roots, expected 2 to n = 8"),
        (Odd(wanted=2), "2 children, expected 0 to 1"),
        (Odd(wanted=-1), "-1 children, expected 0 to 1"),
        (Odd(probe_tokens=0), "probe_tokens = 0, expected at least 1"),
    ],
)
def test_counts_that_do_not_fit_are_refused(model_folder, rule, told):
    parts = agent(model_folder, rule)
    with pytest.raises(ConfigError, match=f"^branching: {told}"):
        grow(parts)
    assert parts.live.value == 0
    assert [tool.open_sessions for tool in parts.tools.values()] == [0, 0]


def test_counts_that_fit_are_taken(model_folder):
    for rule in (Odd(), Odd(first=8, roots=8), Odd(num_monitor=2), Odd(max_children=0, probe_tokens=0)):
        (tree,), _ = grow(agent(model_folder, rule))
        assert len(tree.trajectories) == 8
        assert len(tree.children[""]) >= rule.roots
