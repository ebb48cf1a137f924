"""Sessions of tools: none is left behind, whatever a tool does when it opens, forks or closes."""

import asyncio

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.errors import EngineError, MachineError
from ramify.core.messages import ToolStatus
from ramify.core.tree import StopReason
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.grow import grow_trees
from ramify.rollout.sessions import SessionKeeper
from scripted_agents import ALWAYS, SEARCH, SlowTool, WrappedEngine, agent, grow, plays, problem, with_engine

RULE = ThresholdBrancher(m=4, min_entropy_delta=0.0, children=1, probe_tokens=3)


async def hang():
    await asyncio.Event().wait()


async def ignore_cancellation():
    try:
        await asyncio.sleep(1e6)
    except asyncio.CancelledError:
        await asyncio.sleep(1e6)


async def fail():
    raise OSError("no room")


def fail_at_once():
    raise OSError("no room")


async def cancel_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def give_nothing():
    return None


class Stubborn(SlowTool):
    """A tool of which one method of its sessions, or `open`, does something else."""

    def __init__(self, method, behavior):
        super().__init__("python", "code")
        self.method = method
        self.behavior = behavior
        self.times = 0

    async def open(self, problem):
        return await (self.misbehave() if self.method == "open" else super().open(problem))

    def session(self, calls):
        session = super().session(calls)
        if self.method == "close":
            # Closed as far as this counts; what matters is who waits for the answer.
            close = session.close

            async def close_badly():
                await close()
                return await self.misbehave()

            session.close = close_badly
        elif self.method == "fork":
            session.fork = self.misbehave
        return session

    def misbehave(self):
        self.times += 1
        return self.behavior()


BEHAVIORS = {
    "hangs": (hang, "it did not answer in time"),
    "ignores its cancellation": (ignore_cancellation, "it did not answer in time"),
    "raises": (fail, "OSError: no room"),
    "raises at once": (fail_at_once, "OSError: no room"),
    "cancels itself": (cancel_itself, "CancelledError"),
    "gives nothing": (give_nothing, "AttributeError"),
}


@pytest.mark.parametrize("behavior", BEHAVIORS)
@pytest.mark.parametrize("method", ["open", "fork"])
def test_a_session_that_cannot_be_had_answers_with_errors(tokenizer_folder, method, behavior):
    act, reason = BEHAVIORS[behavior]
    tool = Stubborn(method, act)
    parts = agent(tokenizer_folder, RULE, tools={"search": SlowTool("search", "query"), "python": tool})
    stuck = behavior == "ignores its cancellation"
    (tree,), seconds = grow(parts, left_tasks=None if stuck else 0)
    assert len(tree.trajectories) == 8
    assert any(decision.taken for decision in tree.decisions)
    results = [r for t in tree.trajectories for call, r in t.exchanges if call.name == "python"]
    broken = [result for result in results if result.status is ToolStatus.ERROR]
    assert broken
    assert all(reason in result.text for result in broken)
    assert method == "fork" or broken == results
    if reason == "it did not answer in time":
        assert 1000 < seconds < 6000


@pytest.mark.parametrize("behavior", BEHAVIORS)
def test_nobody_waits_for_a_tool_to_close(tokenizer_folder, behavior):
    """The policy takes as long as ever; the tree is done when the tool has had its time to close."""
    rule = ThresholdBrancher(m=4, min_entropy_delta=100.0, children=1, probe_tokens=3)
    plain = agent(tokenizer_folder, rule)
    (expected,), usual = grow(plain)
    tool = Stubborn("close", BEHAVIORS[behavior][0])
    parts = agent(tokenizer_folder, rule, tools={"search": SlowTool("search", "query"), "python": tool})
    stuck = behavior == "ignores its cancellation"
    (tree,), seconds = grow(parts, left_tasks=None if stuck else 0)
    assert tree.nodes == expected.nodes
    assert tool.times >= 8
    late = BEHAVIORS[behavior][1] == "it did not answer in time"
    assert seconds == pytest.approx(usual + (1000.0 if late else 0.0), abs=1.0)


class OpensLate(SlowTool):
    """Gives its sessions after it was told to stop."""

    async def open(self, problem):
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return self.session(0)


@pytest.mark.parametrize("limits", [{}, {"trajectory_seconds": 50.0}, {"step_seconds": 998.0}])
def test_a_session_that_comes_too_late_is_closed(tokenizer_folder, limits):
    tool = OpensLate("search", "query")
    opened = []
    session = tool.session
    tool.session = lambda calls: opened.append(session(calls)) or opened[-1]
    parts = agent(tokenizer_folder, RULE, tools={"search": tool}, limits=limits)

    async def main():
        (tree,) = await grow_trees(parts, [problem()], 0)
        await asyncio.sleep(10)
        return tree

    tree, _ = run_virtual(main())
    assert len(tree.trajectories) == 8
    assert len(opened) >= 4
    assert all(session.closed for session in opened)
    assert tool.open_sessions == 0


def test_after_the_deadline_no_session_is_opened(tokenizer_folder):
    tool = SlowTool("search", "query")
    opened = []
    session = tool.session
    tool.session = lambda calls: opened.append(session(calls)) or opened[-1]
    parts = agent(
        tokenizer_folder, RULE, plays(SEARCH), tools={"search": tool}, limits={"trajectory_seconds": 1e-9}
    )
    (tree,), _ = grow(parts)
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.DEADLINE}
    assert opened == []


class Breaking(WrappedEngine):
    """Fails at the second turn of every root, when `meet` says so."""

    def __init__(self, inner, meet):
        super().__init__(inner)
        self.meet = meet

    async def generate(self, request):
        if request.priority[1] == 0 and len(request.priority) > 2:
            await self.meet.wait()
            raise EngineError("the engine broke")
        return await self.inner.inner.generate(request)


class Meeting(SlowTool):
    """Forks in the turn of the event loop in which the engine breaks."""

    def __init__(self, name, argument, meet):
        super().__init__(name, argument)
        self.meet = meet

    def session(self, calls):
        session = super().session(calls)

        async def fork():
            asyncio.get_running_loop().call_later(1.0, self.meet.set)
            await self.meet.wait()
            return self.session(calls)

        session.fork = fork
        return session


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_a_failure_in_the_moment_of_a_branch_leaves_nothing_behind(tokenizer_folder, branch_at):
    meet = asyncio.Event()
    tools = {"search": Meeting("search", "query", meet), "python": SlowTool("python", "code")}
    parts = agent(tokenizer_folder, ALWAYS, plays(SEARCH), n=6, tools=tools, branch_at=branch_at)

    async def main():
        with pytest.raises(EngineError, match="the engine broke"):
            await grow_trees(with_engine(parts, Breaking, meet), [problem(), problem("p1")], 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())
    assert parts.live.value == 0
    assert [tool.open_sessions for tool in tools.values()] == [0, 0]


@pytest.mark.parametrize("seconds", [0.05, 5.0, 60.0, 120.0])
def test_a_step_that_is_cancelled_leaves_nothing_behind(tokenizer_folder, seconds):
    parts = agent(tokenizer_folder, ALWAYS, slots=8)

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await grow_trees(parts, [problem(f"p{i}") for i in range(3)], 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())
    assert parts.live.value == 0
    assert parts.waits.describe(0.0) == ""
    assert [tool.open_sessions for tool in parts.environment.members.values()] == [0, 0]


def test_an_error_of_ours_while_opening_stops_the_run(tokenizer_folder):
    async def break_down():
        raise MachineError("no sandbox")

    tools = {"search": SlowTool("search", "query"), "python": Stubborn("open", break_down)}
    parts = agent(tokenizer_folder, RULE, tools=tools)
    with pytest.raises(MachineError, match="no sandbox"):
        grow(parts)
    assert [tool.open_sessions for tool in tools.values()] == [0, 0]
    assert parts.live.value == 0


def test_a_session_that_opens_after_the_end_is_closed():
    class Slow:
        seconds = None

        async def open(self, problem, seed):
            await ready.wait()
            return self

        async def close(self):
            closed.append(self)

    ready, closed = asyncio.Event(), []

    async def main():
        keeper = SessionKeeper(Slow(), problem(), 0)
        opening = asyncio.create_task(keeper.open())
        await asyncio.sleep(0)
        await keeper.close_all()
        ready.set()
        await opening

    asyncio.run(main())
    assert len(closed) == 1
