"""Deadlines of trajectories and of steps: whatever hangs, n leaves with a reason come back in time."""

import asyncio
from dataclasses import replace

import pytest

from ramify.algos.branch_aepo import BalancedBrancher
from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.messages import ToolResult, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from scripted_agents import (
    ALWAYS,
    ANSWER,
    FLAT,
    SEARCH,
    SlowTool,
    WrappedEngine,
    agent,
    grow,
    grow_one,
    plays,
    problem,
    with_engine,
)

RULES = {
    "threshold": ThresholdBrancher(m=3, min_entropy_delta=-0.2, children=1, probe_tokens=3),
    "two children": ThresholdBrancher(m=2, min_entropy_delta=-0.2, children=2, probe_tokens=3),
    "roots known late": BalancedBrancher(
        alpha=0.8, gamma=0.3, slope=0.3, tau=None, budget_beta=0.3, children=1, probe_tokens=3
    ),
}


def quick(parts):
    """Without the engine's own time, so that moments can be named."""
    return replace(parts, engine=parts.engine.inner)


class WrappedRule:
    """Another rule with something changed."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Taking(SlowTool):
    """A tool whose calls take `seconds(call)`, and that opens, forks and closes at once."""

    def __init__(self, seconds):
        super().__init__("search", "query")
        self.seconds = seconds

    async def open(self, problem):
        return self.session(0)

    def session(self, calls):
        session = super().session(calls)

        async def call(call):
            await asyncio.sleep(self.seconds(call))
            return ToolResult(call.id, ToolStatus.OK, "Paris")

        async def fork():
            return self.session(session.calls)

        session.call, session.fork = call, fork
        return session


def test_a_trajectory_that_is_cut_in_mid_generation_has_a_leaf_without_tokens(tokenizer_folder):
    def play(context, seed):
        return ScriptedTurn(SEARCH, seconds_per_token=0.1 if "</result>" not in context else 100.0)

    parts = agent(
        tokenizer_folder,
        FLAT,
        play,
        n=2,
        tools={"search": Taking(lambda _: 1)},
        limits={"trajectory_seconds": 30.0},
    )
    (tree,), seconds = grow(quick(parts))
    assert seconds == pytest.approx(30.0, abs=1e-6)
    for trajectory in tree.trajectories:
        assert [node.source for node in trajectory.nodes[1:]] == [Source.POLICY, Source.TOOL, Source.POLICY]
        leaf = trajectory.leaf
        assert (leaf.token_ids, leaf.text, leaf.behavior_logprobs) == ((), "", ())
        assert (leaf.entropy, leaf.stop) == (None, StopReason.DEADLINE)
        assert len(trajectory.exchanges) == 1


def test_a_trajectory_that_is_cut_in_mid_call_keeps_the_written_turn(tokenizer_folder):
    parts = agent(
        tokenizer_folder,
        FLAT,
        plays(SEARCH, seconds_per_token=0.1),
        n=2,
        tools={"search": Taking(lambda _: 300)},
        limits={"trajectory_seconds": 30.0},
    )
    (tree,), seconds = grow(quick(parts))
    assert seconds == pytest.approx(30.0, abs=1e-6)
    for trajectory in tree.trajectories:
        assert trajectory.stop is StopReason.DEADLINE
        assert trajectory.leaf.text == SEARCH
        assert trajectory.num_written == len(trajectory.leaf.token_ids) > 0
        assert [call.name for call in trajectory.leaf.calls] == ["search"]
        assert trajectory.exchanges == ()


def test_an_answer_that_is_written_in_time_counts(tokenizer_folder):
    parts = agent(tokenizer_folder, FLAT, plays(ANSWER), n=2, limits={"step_seconds": 1e-6})
    parts.environment.members.clear()
    tree = grow_one(quick(parts))
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.ANSWERED}


@pytest.mark.integration
@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("slots", [None, 5])
def test_a_step_ends_in_time_with_n_leaves_wherever_its_trees_were(tokenizer_folder, rule, branch_at, slots):
    """Before any root, while the number of roots is unknown, with waiting candidates, trees not yet let in."""
    problems = [problem("p0"), problem("p1")]
    parts = agent(tokenizer_folder, RULES[rule], n=5, branch_at=branch_at, slots=slots)
    whole, longest = grow(parts, problems)
    cut_nodes = set()
    for part in (1e-9, 1e-4, *(i / 20 for i in range(1, 20)), 1.01):
        limited = replace(parts, limits=replace(parts.limits, step_seconds=part * longest))
        trees, seconds = grow(limited, problems)
        assert seconds <= part * longest + 1e-6
        for tree in trees:
            assert len(tree.trajectories) == 5
            assert len(tree.children[""]) + sum(decision.taken for decision in tree.decisions) == 5
            stops = [trajectory.stop for trajectory in tree.trajectories]
            cut_nodes.add(sum(stop is StopReason.DEADLINE for stop in stops))
        if part < 1e-3:
            assert {len(node.token_ids) for tree in trees for node in tree.nodes[1:]} == {0}
        if part > 1:
            assert trees == whole
    assert cut_nodes >= {0, 5}
    assert len(cut_nodes) >= 4


class HangingEngine(WrappedEngine):
    """Never answers; it may not even agree to be cancelled."""

    def __init__(self, inner, agrees):
        super().__init__(inner)
        self.agrees = agrees

    async def generate(self, request):
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            if self.agrees:
                raise
            await asyncio.sleep(1e6)
            return await self.inner.generate(request)


@pytest.mark.parametrize("kind", ["trajectory_seconds", "step_seconds"])
@pytest.mark.parametrize("agrees", [True, False])
def test_an_engine_that_never_answers_costs_no_more_than_the_deadline(tokenizer_folder, kind, agrees):
    parts = agent(tokenizer_folder, RULES["threshold"], n=5, limits={kind: 30.0})
    # Top-ups start when the roots have ended: their own time begins then, that of the step does not.
    waves, pending = (2, 5) if kind == "trajectory_seconds" else (1, 3)
    (tree,), seconds = grow(with_engine(parts, HangingEngine, agrees), left_tasks=0 if agrees else pending)
    assert seconds == pytest.approx(30.0 * waves, abs=1e-6)
    assert [trajectory.stop for trajectory in tree.trajectories] == [StopReason.DEADLINE] * 5
    assert {node.path for node in tree.nodes[1:]} == {(root,) for root in range(5)}


def waiting_branch(folder, limits, last_turn_seconds, branch_at):
    """Root B branches at second 1 but waits for root A, whose call takes 100 seconds; ends of trajectories by path."""
    ranks = {}

    def play(context, seed):
        if "</result>" in context:
            return ScriptedTurn("<think> done </think>" + ANSWER, seconds_per_token=last_turn_seconds)
        return ScriptedTurn(SEARCH)

    parts = agent(
        folder,
        ALWAYS,
        play,
        n=3,
        max_calls=1,
        branch_at=branch_at,
        tools={"search": Taking(lambda call: 100 if call.id == ranks["first"] else 1)},
        limits=limits,
    )
    # Which of the two roots is served first is drawn; the grants of a run in which both are equally fast tell.
    ranks["first"] = ""
    (served,) = [decision.node for decision in grow_one(quick(parts)).decisions if decision.taken]
    ranks["first"] = f"{served.split('.')[0]}:0"
    return quick(parts), served.split(".")[0]


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_a_branch_does_not_pay_for_its_wait(tokenizer_folder, branch_at):
    parts, first = waiting_branch(tokenizer_folder, {"trajectory_seconds": 50.0}, 1.0, branch_at)
    (tree,), seconds = grow(parts)
    # The first root is cut at second 50; only then may the other one branch, which takes a dozen seconds more.
    other = "1" if first == "0" else "0"
    (taken,) = [decision for decision in tree.decisions if decision.taken]
    assert taken.node.startswith(other)
    *_, event = (each for each in parts.events.events if each.kind == "grant")
    assert (event.node, event.fields) == (taken.node, {"children": 1})
    assert 35 < event.seconds < 50
    branch = tree.children[taken.node][1]
    stops = {trajectory.leaf.path[0]: trajectory.stop for trajectory in tree.trajectories}
    assert stops[int(first)] is StopReason.DEADLINE
    assert branch.stop is StopReason.ANSWERED
    assert 50 < seconds < 70


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_a_branch_has_the_time_that_its_parent_had_left(tokenizer_folder, branch_at):
    parts, _ = waiting_branch(tokenizer_folder, {"trajectory_seconds": 50.0}, 6.0, branch_at)
    (tree,), seconds = grow(parts)
    *_, event = (each for each in parts.events.events if each.kind == "grant")
    assert event.fields["children"] == 1
    branch = tree.children[event.node][1]
    assert (branch.stop, branch.token_ids) == (StopReason.DEADLINE, ())
    assert seconds == pytest.approx(50.0 + event.seconds, abs=1e-6)
    assert seconds < 100


def test_the_step_deadline_cuts_a_branch_that_has_waited(tokenizer_folder):
    parts, _ = waiting_branch(
        tokenizer_folder, {"trajectory_seconds": 50.0, "step_seconds": 55.0}, 1.0, "before_probe"
    )
    (tree,), seconds = grow(parts)
    assert seconds == pytest.approx(55.0, abs=1e-6)
    assert len(tree.trajectories) == 3


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_a_monitored_root_that_is_cut_while_its_tools_are_copied_has_ended(tokenizer_folder, branch_at):
    class NeverCopied(Taking):
        def session(self, calls):
            session = super().session(calls)

            async def fork():
                await asyncio.Event().wait()

            session.fork = fork
            return session

    ends = []

    class Monitoring(WrappedRule):
        num_monitor = 1

        def first_roots(self, n):
            return 1

        def num_roots(self, n, monitor):
            ends.append(monitor[0].stop)
            return 2

    always = Monitoring(replace(ALWAYS, m=1))
    parts = agent(
        tokenizer_folder,
        always,
        plays(SEARCH),
        n=4,
        branch_at=branch_at,
        tools={"search": NeverCopied(lambda _: 1)},
        limits={"trajectory_seconds": 30.0},
    )
    (tree,), _ = grow(quick(parts))
    assert ends == [StopReason.DEADLINE]
    assert len(tree.trajectories) == 4
