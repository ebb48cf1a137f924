"""The budget of branches, spent in logical time; numbers of a rule that cannot be; who is served first; what a branch inherits."""

import random
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_controls import YokedBrancher
from ramify.algos.branch_rules import NoQuota, RandomBrancher
from ramify.algos.paired_run import PairedRun, PairedTree
from ramify.core.draws import stream, uniform
from ramify.core.errors import ConfigError
from ramify.core.records import BranchQuota, Proposal
from ramify.core.tree import BranchDecision, TreeKey
from ramify.engines.scripted import ScriptedTurn
from ramify.obs.branch_metrics import branch_metrics, rate_of_control
from ramify.rollout.branch_budget import BranchBudget, QuotaBudget
from ramify.rollout.plan import step_requests
from scripted_agents import (
    ANSWER,
    SEARCH,
    SlowSession,
    SlowTool,
    agent,
    grow,
    grow_one,
    grow_planned,
    plays,
    problem,
)

THREE_CALLS = plays(SEARCH, SEARCH, SEARCH, ANSWER, entropies=(0.5,))


@dataclass(frozen=True)
class Odd(NoQuota):
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
    ("rule", "message"),
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
def test_counts_that_do_not_fit_are_refused(tokenizer_folder, rule, message):
    parts = agent(tokenizer_folder, rule)
    with pytest.raises(ConfigError, match=f"^branching: {message}"):
        grow(parts)
    assert parts.live.value == 0


def test_counts_that_fit_are_taken(tokenizer_folder):
    for rule in (Odd(), Odd(first=8, roots=8), Odd(num_monitor=2), Odd(max_children=0, probe_tokens=0)):
        (tree,), _ = grow(agent(tokenizer_folder, rule))
        assert len(tree.trajectories) == 8
        assert len(tree.children[""]) >= rule.roots


def roots_that_branch(parts, attempt=0, count=6):
    """The roots whose first result branched, of each of some trees."""
    problems = [problem(f"p{i}") for i in range(count)]
    trees = grow_planned(parts, step_requests(problems, 0, attempt=attempt))
    return [[int(d.node[0]) for d in tree.decisions if d.taken and d.depth == 1] for tree in trees]


def test_roots_are_served_in_order_where_the_rule_says_so_and_in_a_drawn_one_elsewhere(tokenizer_folder):
    in_order = agent(tokenizer_folder, Odd(keeps_slot_order=True, first=4), THREE_CALLS, n=6)
    assert roots_that_branch(in_order) == [[0, 1]] * 6
    drawn = replace(in_order, brancher=Odd(first=4))
    first = roots_that_branch(drawn)
    assert all(len(roots) == 2 for roots in first)
    assert len({tuple(roots) for roots in first}) > 1
    assert roots_that_branch(drawn, attempt=1) != first == roots_that_branch(drawn)


@dataclass(frozen=True)
class Listening(Odd):
    """Keeps the candidates that it is asked about."""

    candidates: list = field(default_factory=list)

    def propose(self, candidate, history):
        self.candidates.append(candidate)
        return super().propose(candidate, history)


def test_a_branch_knows_which_turns_it_inherited(tokenizer_folder):
    rule = Listening(first=1, roots=1)
    tree = grow_one(agent(tokenizer_folder, rule, THREE_CALLS, n=4))
    assert len(tree.trajectories) == 4
    for candidate in rule.candidates:
        branches = [depth for depth, index in enumerate(candidate.path[1:]) if index]
        # Turns and results alternate below the root, and a branch replaces the turn after a result.
        assert candidate.own_from == (branches[-1] // 2 + 1 if branches else 0)
    assert {candidate.own_from for candidate in rule.candidates} >= {0, 1, 2}


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
    grow(agent(tokenizer_folder, rule, THREE_CALLS, n=3, tools={"search": tool}))
    # The first result wants two branches, for which two copies are made, and gets one: n = 3 trajectories in all.
    assert max(tool.open_at_calls) == 3


MAX_DEPTH = 3


def wanted(seed, key, depth, fanout):
    draw = uniform(stream(seed, key, depth, "want"))
    return 0 if draw < 0.5 else 1 + int(draw * 1000) % fanout


def length(seed, key, start):
    depth = start
    while depth < MAX_DEPTH and uniform(stream(seed, key, depth, "more")) < 0.8:
        depth += 1
    return depth


def play(seed, roots, budget, fanout, order):
    """Grow with events in a random order: what was granted where, the number of top-ups, and what was left for whom."""
    book = BranchBudget(MAX_DEPTH, fanout)
    alive = {}
    granted, candidates, tops = {}, [], 0

    def allocate():
        nonlocal tops
        allocation = book.allocate()
        for branch in allocation.branches:
            if branch.children:
                granted[branch.key, branch.depth] = branch.children
            alive.update(dict.fromkeys(branch.child_keys, branch.depth))
        tops += allocation.top_ups

    for root in range(roots):
        book.start_root((root,))
        alive[root,] = 0
    book.open(budget)
    allocate()
    while alive:
        key = order.choice(sorted(alive))
        depth = alive[key]
        origin = key[-2] if len(key) > 1 else 0
        if depth < length(seed, key, origin):
            alive[key] = depth + 1
            candidates.append((key, depth + 1))
            book.resolve(key, depth + 1, wanted(seed, key, depth + 1, fanout))
        else:
            del alive[key]
            book.finish(key)
        allocate()
        assert sum(granted.values()) + tops <= budget
    return granted, tops, {candidate: book.left_for(*candidate) for candidate in candidates}


def offline(seed, roots, budget, fanout):
    """The same with everything known: one candidate after the other in the order of their keys."""
    open_candidates = [((root,), 1, length(seed, (root,), 0)) for root in range(roots)]
    granted, left_for, left = {}, {}, budget
    for depth in range(1, MAX_DEPTH + 1):
        for key, start, end in sorted(open_candidates):
            if start <= depth <= end:
                children = min(wanted(seed, key, depth, fanout), left)
                left_for[key, depth] = left
                left -= children
                if children:
                    granted[key, depth] = children
                for index in range(1, children + 1):
                    child = (*key, depth, index)
                    open_candidates.append((child, depth + 1, length(seed, child, depth)))
    return granted, left, left_for


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(0, 8),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_grants_do_not_depend_on_the_order_of_events(seed, roots, budget, fanout, order):
    first = play(seed, roots, budget, fanout, random.Random(0))
    assert play(seed, roots, budget, fanout, order) == first == offline(seed, roots, budget, fanout)
    assert sum(first[0].values()) + first[1] == budget


@pytest.mark.parametrize("max_depth", [0, 2])
def test_top_ups_start_once_branches_cannot_use_the_budget(max_depth):
    book = BranchBudget(max_depth=max_depth, fanout=1)
    book.start_root((0,))
    book.open(3)
    assert book.allocate().top_ups == (3 if max_depth == 0 else 0)
    book.resolve((0,), 1, 0)
    at_depth_one = book.allocate().top_ups
    book.finish((0,))
    assert at_depth_one + book.allocate().top_ups + (3 if max_depth == 0 else 0) == 3


def test_a_small_wish_does_not_overtake_a_large_one_that_waits():
    book = BranchBudget(max_depth=1, fanout=3)
    for root in range(3):
        book.start_root((root,))
    book.open(5)
    book.resolve((1,), 1, 3)
    book.resolve((2,), 1, 1)
    # Root 0 may still want three, which leaves root 1 two of the three that it wants and root 2 none.
    assert book.allocate().branches == ()
    book.resolve((0,), 1, 3)
    assert [(branch.key, branch.children) for branch in book.allocate().branches] == [
        ((0,), 3),
        ((1,), 2),
        ((2,), 0),
    ]


SIZES = {"m": 4, "children": 1, "probe_tokens": 2}


def some_problems_are_less_certain(context, seed, goes_on=0.85):
    """Up to three calls; entropy after a result differs between problems more than within one."""
    done = context.count("\n</result>")
    stops, chance = (uniform(seed, index) for index in range(2))
    level = int(re.search(r"what is (\d+) plus", context).group(1)) % 4 / 4
    entropies = ((level + 0.3 * chance) if done else 0.0,) * 2
    if done < 3 and stops < goes_on:
        return ScriptedTurn(SEARCH, entropies)
    return ScriptedTurn(ANSWER, entropies)


def run_of(folder, rule):
    """The metrics of a run of one step, and its decisions."""
    parts = agent(folder, rule, some_problems_are_less_certain)
    trees, _ = grow(parts, [problem(f"p{i}", f"what is {i} plus 30 ?") for i in range(80)])
    return {"step": 1, **branch_metrics(trees)}, [d for tree in trees for d in tree.decisions]


def yoked_to(trees):
    run = PairedRun(
        Path("run"), tuple(PairedTree(tree.key, tree.problem.id, tree.decisions) for tree in trees)
    )
    return YokedBrancher(run=run, **SIZES)


@pytest.mark.integration
@pytest.mark.parametrize("goes_on", [0.9, 0.75])
def test_a_yoked_run_of_another_policy_has_the_branches_of_its_pair_problem_by_problem(
    tokenizer_folder, goes_on
):
    problems = [problem(f"p{i}", f"what is {i} plus 30 ?") for i in range(50)]
    rule = ThresholdBrancher(min_entropy_delta=0.5, **SIZES)
    pair, _ = grow(agent(tokenizer_folder, rule, some_problems_are_less_certain), problems)
    play = partial(some_problems_are_less_certain, goes_on=goes_on)
    trees, _ = grow(agent(tokenizer_folder, yoked_to(pair), play), problems)
    branches = np.array([[sum(d.taken for d in tree.decisions) for tree in run] for run in (pair, trees)])
    assert branches[1].sum() == pytest.approx(branches[0].sum(), rel=0.05)
    assert np.mean(branches[0] == branches[1]) > 0.9
    assert (branches[1] <= branches[0]).all()
    # Chance, and neither the order of a tree's results nor entropy, picks the results that branch.
    decisions = [decision for tree in trees for decision in tree.decisions if decision.had_budget]
    rates = [np.mean([d.taken for d in decisions if d.depth == depth]) for depth in (1, 2)]
    assert all(0.1 < rate < 0.9 for rate in rates)
    surplus = [
        np.mean([d.entropy_delta for d in tree.decisions if d.depth == 1 and d.taken])
        - np.mean([d.entropy_delta for d in tree.decisions if d.depth == 1])
        for tree in trees
        if any(d.taken for d in tree.decisions if d.depth == 1)
    ]
    assert np.mean(surplus) == pytest.approx(0.0, abs=0.03)
    assert all((d.planned, d.entropy_acted) == (d.taken, False) for tree in trees for d in tree.decisions)


def learned(context, seed, step, goes_on):
    """A policy that becomes surer, and calls more, or less, from step to step."""
    turn = some_problems_are_less_certain(context, seed, goes_on)
    return replace(turn, entropies=tuple(entropy * (1 - step / 12) for entropy in turn.entropies))


@pytest.mark.integration
def test_over_a_whole_run_a_yoked_one_has_its_rule_s_branches_problem_by_problem_in_each_step(
    tokenizer_folder,
):
    problems, steps = [problem(f"p{i}", f"what is {i} plus 30 ?") for i in range(6)], range(8)

    def run(rule, drift):
        plays = [partial(learned, step=step, goes_on=0.8 + drift * step) for step in steps]
        return [grow(agent(tokenizer_folder, rule, plays[step]), problems, step)[0] for step in steps]

    pair = run(ThresholdBrancher(min_entropy_delta=0.4, **SIZES), 0.02)
    # The control learns other things.
    yoked = run(yoked_to([tree for trees in pair for tree in trees]), -0.01)
    branches = np.array(
        [
            [[sum(d.taken for d in tree.decisions) for tree in trees] for trees in each]
            for each in (pair, yoked)
        ]
    )
    # As the policy becomes surer, the rule branches less; so does its control, where and when it does.
    assert branches[0, 0].sum() > 1.2 * branches[0, -1].sum() > 0
    assert branches[1].sum() == pytest.approx(branches[0].sum(), rel=0.05)
    assert np.abs(branches[1] - branches[0]).sum() <= 0.05 * branches[0].sum()


@pytest.mark.parametrize("children", [1, 2, 3])
@pytest.mark.parametrize("quota", [1, 3, 4])
def test_the_recorded_chance_of_a_yoked_candidate_is_that_of_a_branch(children, quota):
    roots, chances, branched = [(i,) for i in range(4)], [], []
    for number in range(200):
        budget = QuotaBudget(
            max_depth=2, fanout=children, quota=BranchQuota(quota, (4, 4)), rounding=(number + 0.5) / 200
        )
        budget.open(12)
        for root in roots:
            budget.start_root(root)
        for root in roots:
            budget.resolve(root, 1, children, draw=float(root[0]))
        branches = budget.allocate().branches
        chances += [budget.chance(root, 1) for root in roots]
        branched += [sum(branch.children > 0 for branch in branches) / len(roots)]
    assert np.mean(branched) == pytest.approx(np.mean(chances))
    assert min(chances) == max(chances)


def test_a_tree_with_fewer_results_than_its_quota_gets_fresh_trajectories_instead(tokenizer_folder):
    paired = [BranchDecision("0.0", depth, 0.1, 1.0, 1, 1, True, budget_left=1) for depth in (1, 1, 2, 2)]
    run = PairedRun(Path("run"), (PairedTree(TreeKey(0, 0, 0), "p0", tuple(paired)),))
    once = plays(SEARCH, ANSWER)
    tree = grow_one(agent(tokenizer_folder, YokedBrancher(run=run, **SIZES | {"m": 2}), once))
    assert [decision.taken for decision in tree.decisions] == [1, 1]
    assert len(tree.children[""]) == 6
    with pytest.raises(ConfigError, match="run grew no tree of problem 'other'"):
        grow(agent(tokenizer_folder, YokedBrancher(run=run, **SIZES), once), [problem("other")])


@pytest.mark.integration
def test_the_control_branches_as_often_as_the_rule_whose_run_it_is_matched_to(tokenizer_folder):
    rule, decisions = run_of(tokenizer_folder, ThresholdBrancher(min_entropy_delta=0.5, **SIZES))
    control, _ = run_of(tokenizer_folder, RandomBrancher(rate=rate_of_control([rule]), **SIZES))
    assert control["branch/taken"] == pytest.approx(rule["branch/taken"], rel=0.05)
    # Neither of the shares that a rule wants is a match: what it wants beyond the budget of a tree is not granted.
    assert rule["branch/after_budget"] > 0.2 * len(decisions)
    for share in (rule["branch/rate"], np.mean([decision.planned > 0 for decision in decisions])):
        other, _ = run_of(tokenizer_folder, RandomBrancher(rate=share, **SIZES))
        assert other["branch/taken"] > 1.1 * rule["branch/taken"]
