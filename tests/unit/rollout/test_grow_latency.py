"""Nothing depends on arrival order: one tree and one set of requests under all latencies (below the deadlines)."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from ramify.algos.branch_aepo import BalancedBrancher
from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.core.draws import stream
from scripted_agents import (
    FLAT,
    RecordingEngine,
    WrappedEngine,
    agent,
    grow,
    grow_one,
    problem,
    with_engine,
    with_latencies,
)

RULES = {
    "threshold": ThresholdBrancher(m=3, min_entropy_delta=-0.2, children=1, probe_tokens=3),
    "bernoulli": BernoulliBrancher(m=2, alpha=0.5, beta=0.3, children=2, probe_tokens=3),
    "balanced": BalancedBrancher(
        alpha=0.5, gamma=0.3, slope=0.3, tau=None, budget_beta=0.3, children=1, probe_tokens=3
    ),
}
PERMUTATIONS = 50
"""For each of three rules and two places to branch at: three hundred."""


def timed(parts):
    """With deadlines that are never reached, and with slow calls issued twice."""
    for tool in parts.environment.members.values():
        tool.spec = replace(tool.spec, hedge_seconds=40.0, timeout_seconds=101.0)
    limits = replace(parts.limits, trajectory_seconds=5000.0, step_seconds=9000.0)
    return replace(parts, limits=limits)


ALL_CASES = [(rule, slot) for slot in ("before_probe", "after_probe") for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "branch_at"),
    # A second or two each, so that only one of them is for a unit test.
    [
        pytest.param(*ALL_CASES[0]),
        *(pytest.param(*case, marks=pytest.mark.integration) for case in ALL_CASES[1:]),
    ],
)
def test_one_tree_and_one_set_of_requests_under_all_latencies(tokenizer_folder, rule, branch_at):
    def agent_of(hurried):
        parts = agent(tokenizer_folder, RULES[rule], n=6, branch_at=branch_at)
        return with_engine(timed(parts) if hurried else parts, RecordingEngine)

    def requests(parts):
        ordered = sorted(parts.engine.requests, key=lambda request: (request.priority, request.stop_context))
        parts.engine.requests.clear()
        return ordered

    kinds = [agent_of(False), agent_of(True)]
    first, first_requests = grow_one(kinds[0]), requests(kinds[0])
    assert any(decision.taken for decision in first.decisions)
    assert any(decision.planned > decision.taken for decision in first.decisions)
    assert {decision.had_budget for decision in first.decisions} == {True, False}
    seconds = set()
    for seed in range(1, PERMUTATIONS + 1):
        parts = kinds[seed % 2]
        parts.engine.inner.latency_seed = seed
        for tool in parts.environment.members.values():
            tool.latency_seed = seed
        (tree,), took = grow(parts)
        seconds.add(took)
        assert tree == first
        assert requests(parts) == first_requests
    assert len(seconds) == PERMUTATIONS
    assert all(
        any(count > 1 for count in tool.issued.values()) for tool in kinds[1].environment.members.values()
    )


@dataclass(frozen=True)
class ServesInOrder:
    """A rule whose roots are served first to last whatever the draws."""

    rule: ThresholdBrancher
    keeps_slot_order: bool = True

    def __getattr__(self, name):
        return getattr(self.rule, name)


class EqualDraws(WrappedEngine):
    """Draws of a node that depend on its problem and its path, not on the step and the slot."""

    def __init__(self, inner, prompt_tokens):
        super().__init__(inner)
        self.prompt_tokens = prompt_tokens

    async def generate(self, request):
        prompt = request.token_ids[: self.prompt_tokens]
        return await super().generate(replace(request, seed=stream(prompt, request.priority[1:])))


def test_baselines_do_not_leak_between_problems_or_batches(tokenizer_folder):
    """Two consecutive batches with the problems in another order: the same rises on every trajectory."""
    rule = ServesInOrder(RULES["threshold"])
    parts = agent(tokenizer_folder, rule)
    problems = [problem(f"p{i}", f"what is {i} plus 30 ?") for i in range(5)]
    (size,) = {len(parts.renderer.render_prompt(each, parts.tools)) for each in problems}
    parts = with_engine(parts, EqualDraws, size)
    order = [3, 0, 4, 2, 1]
    first, _ = grow(parts, problems, step=0)
    second, _ = grow(parts, [problems[i] for i in order], step=1)
    assert any(tree.decisions for tree in first)
    assert len({tree.decisions for tree in first}) == 5
    for slot, i in enumerate(order):
        # The draws are those of another step, which a threshold does not look at.
        drawn = [replace(each, draw=0.0) for each in second[slot].decisions]
        assert drawn == [replace(each, draw=0.0) for each in first[i].decisions]
        assert second[slot].nodes == first[i].nodes


class Stopwatch(RecordingEngine):
    """Keeps the time that the requests of each node took, by its path."""

    def __init__(self, inner):
        super().__init__(inner)
        self.seconds = Counter()

    async def generate(self, request):
        loop = asyncio.get_running_loop()
        started = loop.time()
        done = await super().generate(request)
        self.seconds[request.priority[1:]] += loop.time() - started
        return done


def rounds_of(trajectories, turns, calls):
    """Seconds of a rollout in rounds: all turns, then all calls, then all turns again."""
    rounds = {}
    for trajectory in trajectories:
        for depth, node in enumerate(trajectory.policy_nodes):
            turn, call = rounds.get(depth, (0.0, 0.0))
            rounds[depth] = max(turn, turns[node.path]), max(call, calls.get(node.id, 0.0))
    return sum(map(sum, rounds.values()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", [FLAT, RULES["threshold"]], ids=["none", "threshold"])
def test_the_makespan_is_below_that_of_rounds_with_a_barrier(tokenizer_folder, rule, seed):
    parts = with_latencies(agent(tokenizer_folder, rule, n=16), seed)
    parts = with_engine(parts, Stopwatch)
    (tree,), seconds = grow(parts)
    turns = parts.engine.seconds
    calls = {e.node: e.seconds for e in parts.events.events if e.kind.startswith("tool/")}
    longest = max(
        sum(turns[node.path] + calls.get(node.id, 0.0) for node in trajectory.policy_nodes)
        for trajectory in tree.trajectories
    )
    first = rule.num_roots(16, ())
    waves = [[t for t in tree.trajectories if (t.leaf.path[0] < first) == early] for early in (True, False)]
    assert longest < seconds < sum(rounds_of(wave, turns, calls) for wave in waves)
    if rule.max_children == 0:
        assert seconds == pytest.approx(longest, abs=0.2)
