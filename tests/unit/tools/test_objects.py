"""Classes as tools: one object for each trajectory, copied at a branch; and threads that are let go of."""

import asyncio
import copy
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError, ContentError, MachineError
from ramify.core.messages import Message, Problem, ToolCall, ToolStatus
from ramify.runtime import daemon_threads
from ramify.runtime.daemon_threads import DaemonThreads
from ramify.tools.functions import tool_from

PROBLEM = Problem("p7", (Message.of("user", "?"),), ("42",))


class Notes:
    """Keeps notes."""

    def __init__(self, problem, first: list[str] | None = None):
        self.lines = first if first is not None else [problem.id]
        self.closed = 0

    def notes(self, line: str) -> list[str]:
        """Adds a line and shows all of them.

        Args:
            line: To add.
        """
        self.lines.append(line)
        return self.lines

    def fork(self):
        return copy.deepcopy(self)

    def close(self):
        self.closed += 1


class AsyncNotes:
    """Keeps notes."""

    def __init__(self):
        self.lines = []
        self.closed = 0

    async def __call__(self, line: str) -> list[str]:
        before = list(self.lines)
        await asyncio.sleep(0)
        self.lines = [*before, line]
        return self.lines

    async def fork(self):
        other = AsyncNotes()
        other.lines = list(self.lines)
        return other

    async def close(self):
        self.closed += 1


def call(session, line):
    return session.call(ToolCall("c", "notes", {"line": line}))


@pytest.mark.parametrize(("source", "first"), [(Notes, '"p7",'), (AsyncNotes, "")])
def test_each_trajectory_has_an_object_that_a_branch_copies(source, first):
    tool = tool_from(source, name="notes")

    async def main():
        one, two = await tool.open(PROBLEM), await tool.open(PROBLEM)
        await call(one, "a")
        fork = await one.fork()
        texts = [(await call(session, text)).text for session, text in ((one, "b"), (fork, "c"), (two, "d"))]
        for session in (one, fork, two):
            await session.close()
            await session.close()
            assert session.instance.state.closed == 1
        return texts

    assert tool.spec.forks
    assert tool.spec.description in ("Adds a line and shows all of them.", "Keeps notes.")
    assert asyncio.run(main()) == [f"[{first}{rest}]" for rest in ('"a","b"', '"a","c"', '"d"')]


def test_calls_come_one_after_the_other_and_a_fork_between_them():
    async def main():
        session = await tool_from(AsyncNotes, name="notes").open(PROBLEM)
        answers = await asyncio.gather(call(session, "a"), session.fork(), call(session, "b"))
        return answers[1].instance.state.lines, answers[2].text

    assert asyncio.run(main()) == (["a"], '["a","b"]')


def test_values_that_are_given_belong_to_each_object():
    tool = tool_from(Notes, args={"first": ["x"]})

    async def main():
        return [(await call(await tool.open(PROBLEM), "a")).text for _ in range(2)]

    assert asyncio.run(main()) == ['["x","a"]'] * 2


class Plain:
    """Counts."""

    count = 0

    def plain(self) -> int:
        self.count += 1
        return self.count


def test_without_fork_and_close_it_does_not_branch():
    tool = tool_from(Plain)

    async def main():
        session = await tool.open(PROBLEM)
        results = [await session.call(ToolCall("c", "plain", {})) for _ in range(2)]
        await session.close()
        return [result.text for result in results]

    assert not tool.spec.forks
    assert asyncio.run(main()) == ["1", "2"]


class BadFork(Plain):
    def __init__(self, what: str):
        self.what = what

    def fork(self):
        return {"self": self, "none": None}[self.what]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("self", "fork returned the object itself, expected a copy"),
        ("none", "fork returned NoneType, expected a copy"),
        ("other", "fork failed: KeyError: 'other'"),
    ],
)
def test_a_fork_that_is_no_copy_is_an_error(what, told):
    async def main():
        session = await tool_from(BadFork, name="plain", args={"what": what}).open(PROBLEM)
        await session.fork()

    with pytest.raises(ContentError, match=f"{Path(__file__).name}: BadFork: {told}"):
        asyncio.run(main())


class Picky(Plain):
    def __init__(self, problem):
        if problem.id == "bad":
            raise ValueError("no such problem")
        if problem.id == "exit":
            sys.exit(3)


@pytest.mark.parametrize(("key", "told"), [("bad", "ValueError: no such problem"), ("exit", "SystemExit: 3")])
def test_an_object_that_cannot_be_made_of_a_problem_fails_that_problem(key, told):
    tool = tool_from(Picky, name="plain")
    message = f"{Path(__file__).name}: Picky: no object could be created: {told}"
    with pytest.raises(ContentError, match=message):
        asyncio.run(tool.open(replace(PROBLEM, id=key)))


class Never(Plain):
    def __init__(self):
        raise OSError("no licence")


def test_a_class_of_which_no_object_could_ever_be_made_is_an_error_of_the_recipe():
    message = f"{Path(__file__).name}: Never: no object could be created: OSError: no licence"
    with pytest.raises(ConfigError, match=message):
        asyncio.run(tool_from(Never, name="plain").open(PROBLEM))


def test_a_class_that_fails_later_fails_in_its_own_words():
    tool = tool_from(Picky, name="plain")

    async def main():
        await tool.open(PROBLEM)
        await tool.open(replace(PROBLEM, id="bad"))

    with pytest.raises(ValueError, match="no such problem"):
        asyncio.run(main())


class Both(Plain):
    def both(self) -> int:
        """One."""
        return 1

    __call__ = both


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (Plain, {"name": "other"}, "other: expected class Plain to have one of .* it has neither"),
        (Both, {}, "both: expected class Both to have one of .* it has both"),
        (Plain, {"hedge_seconds": 1.0}, "plain: hedge_seconds: an object's call cannot be made twice"),
        (Notes, {"args": {"last": []}}, "notes: Notes.__init__: args: no parameter 'last'. It takes first."),
        (Notes, {"args": {"first": 3}}, "notes: Notes.__init__: args: first: Input should be a valid list"),
        (BadFork, {"name": "plain"}, "plain: BadFork.__init__: args: expected a value for 'what'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_start(source, options, told):
    with pytest.raises(ConfigError, match=told):
        tool_from(source, **options)


# threads


def test_a_call_that_is_late_is_let_go_of_and_what_comes_next_waits_for_it():
    gate = threading.Event()
    steps = []

    class Slow:
        """Is slow."""

        def slow(self, wait: bool) -> str:
            steps.append("in")
            if wait:
                gate.wait()
            steps.append("out")
            return "done"

    tool = tool_from(Slow)

    async def main():
        session = await tool.open(PROBLEM)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call(ToolCall("a", "slow", {"wait": True})), 0.05)
        assert tool.threads.late == 1
        following = asyncio.ensure_future(session.call(ToolCall("b", "slow", {"wait": False})))
        await asyncio.sleep(0.05)
        assert steps == ["in"]
        gate.set()
        return await following

    result = asyncio.run(main())
    assert (result.call_id, result.text, steps) == ("b", "done", ["in", "out"] * 2)


def test_late_threads_leave_their_place_to_others():
    gate = threading.Event()

    def wait(on: bool) -> str:
        """Waits."""
        if on:
            gate.wait()
        return threading.current_thread().name

    tool = tool_from(wait, max_threads=1)

    async def main():
        session = await tool.open(PROBLEM)
        late = [asyncio.ensure_future(session.call(ToolCall("c", "wait", {"on": True}))) for _ in range(3)]
        await asyncio.sleep(0.05)
        # One runs, two wait for it: only the first has a thread to be let go of.
        late[2].cancel()
        late[0].cancel()
        await asyncio.sleep(0.05)
        late[1].cancel()
        await asyncio.wait(late)
        return await session.call(ToolCall("c", "wait", {"on": False}))

    result = asyncio.run(main())
    gate.set()
    assert (result.status, result.text) == (ToolStatus.OK, "tool wait")
    assert tool.threads.late == 2


def test_threads_are_bounded():
    running, most, lock = 0, 0, threading.Lock()
    meet = threading.Barrier(4)

    def work(i: int) -> int:
        """Works."""
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(10)
        with lock:
            running -= 1
        return i

    tool = tool_from(work, max_threads=4)

    async def main():
        session = await tool.open(PROBLEM)
        calls = (session.call(ToolCall(str(i), "work", {"i": i})) for i in range(40))
        return [result.text for result in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [str(i) for i in range(40)]
    assert most == 4


def test_too_many_late_threads_end_the_run(monkeypatch):
    monkeypatch.setattr(daemon_threads, "MOST_LATE", 2)
    gate = threading.Event()
    threads = DaemonThreads("tool x", 8)

    async def main():
        for _ in range(2):
            job = threads.submit(gate.wait)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(threads.result(job), 0.01)
        with pytest.raises(MachineError, match="tool x: 2 calls still run long after their deadline"):
            threads.submit(gate.wait)
        gate.set()
        while threads._running_late:
            await asyncio.sleep(0.001)
        return await threads.result(threads.submit(lambda: 7))

    assert asyncio.run(main()) == 7


def test_a_thread_that_hangs_does_not_keep_the_process_alive():
    code = """
import asyncio, threading
from ramify.core.messages import Message, Problem, ToolCall
from ramify.tools.functions import tool_from

def hang() -> str:
    "Hangs."
    threading.Event().wait()

async def main():
    tool = tool_from(hang)
    call = (await tool.open(Problem("p", (), ()))).call(ToolCall("c", "hang", {}))
    try:
        await asyncio.wait_for(call, 0.05)
    except TimeoutError:
        print("late", tool.threads.late)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "late 1\n", "")
