"""Numbers of a branching rule that cannot be; who is served first; what a branch inherits."""

from dataclasses import dataclass, field, replace

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.errors import ConfigError
from ramify.core.records import Proposal
from ramify.engines.scripted import ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.grow import grow_requests
from ramify.rollout.plan import step_requests
from scripted_agents import SlowSession, SlowTool, agent, grow, grow_one, problem


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
        (ThresholdBrancher(m=9, min_entropy_delta=0.0, children=1, probe_tokens=3), "m = 9 roots"),
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
def test_counts_that_do_not_fit_are_refused(tokenizer_folder, rule, told):
    parts = agent(tokenizer_folder, rule)
    with pytest.raises(ConfigError, match=f"^branching: {told}"):
        grow(parts)
    assert parts.live.value == 0
    assert [tool.open_sessions for tool in parts.environment.members.values()] == [0, 0]


def test_counts_that_fit_are_taken(tokenizer_folder):
    for rule in (Odd(), Odd(first=8, roots=8), Odd(num_monitor=2), Odd(max_children=0, probe_tokens=0)):
        (tree,), _ = grow(agent(tokenizer_folder, rule))
        assert len(tree.trajectories) == 8
        assert len(tree.children[""]) >= rule.roots


def three_calls(context, seed):
    """Every trajectory calls three times."""
    if context.count("\n</result>") < 3:
        return ScriptedTurn("<search> what next </search>", (0.5,))
    return ScriptedTurn("<answer> \\boxed{ 42 } </answer>", (0.5,))


def roots_that_branch(parts, attempt=0, count=6):
    """Of each of some trees, the roots whose first result branched."""
    problems = [problem(f"p{i}") for i in range(count)]

    async def whole(tree, _seconds):
        return tree

    trees, _ = run_virtual(grow_requests(parts, step_requests(problems, 0, attempt=attempt), whole))
    return [[int(d.node[0]) for d in tree.decisions if d.taken and d.depth == 1] for tree in trees]


def test_roots_are_served_in_order_where_the_rule_says_so_and_in_a_drawn_one_elsewhere(tokenizer_folder):
    in_order = agent(tokenizer_folder, Odd(keeps_slot_order=True, first=4), three_calls, n=6)
    assert roots_that_branch(in_order) == [[0, 1]] * 6
    drawn = replace(in_order, brancher=Odd(first=4))
    first = roots_that_branch(drawn)
    assert all(len(roots) == 2 for roots in first)
    assert len({tuple(roots) for roots in first}) > 1
    assert roots_that_branch(drawn, attempt=1) != first == roots_that_branch(drawn)


@dataclass(frozen=True)
class Listening(Odd):
    """Keeps the candidates that it is asked about."""

    heard: list = field(default_factory=list)

    def propose(self, candidate, history):
        self.heard.append(candidate)
        return super().propose(candidate, history)


def test_a_branch_knows_which_turns_it_inherited(tokenizer_folder):
    rule = Listening(first=1, roots=1)
    tree = grow_one(agent(tokenizer_folder, rule, three_calls, n=4))
    assert len(tree.trajectories) == 4
    for candidate in rule.heard:
        branches = [depth for depth, index in enumerate(candidate.path[1:]) if index]
        # Turns and results alternate below the root, and a branch replaces the turn after a result.
        assert candidate.own_from == (branches[-1] // 2 + 1 if branches else 0)
    assert {candidate.own_from for candidate in rule.heard} >= {0, 1, 2}


class WatchedTool(SlowTool):
    """Notes how many of its sessions are open at each call."""

    def __init__(self, name, argument):
        super().__init__(name, argument)
        self.open_at_calls = []

    def session(self, calls):
        self.open_sessions += 1
        return WatchedSession(self, calls)


class WatchedSession(SlowSession):
    async def call(self, call):
        self.tool.open_at_calls.append(self.tool.open_sessions)
        return await super().call(call)

    async def fork(self):
        return self.tool.session(self.calls)


def test_copies_for_branches_that_are_refused_are_closed_at_once(tokenizer_folder):
    tool = WatchedTool("search", "query")
    rule = Odd(first=2, roots=2, max_children=2, wanted=2)
    grow(agent(tokenizer_folder, rule, three_calls, n=3, tools={"search": tool}))
    # The first result wants two branches, for which two copies are made, and gets one: n = 3 trajectories in all.
    assert max(tool.open_at_calls) == 3
