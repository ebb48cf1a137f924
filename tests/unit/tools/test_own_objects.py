"""Objects of the user's own: one for each trajectory, copied at a branch, with draws of its own from the global generators."""

# ruff: noqa: NPY002 - the legacy functions of numpy are what some tests are about

import asyncio
import copy
import random
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.errors import ConfigError, ContentError
from ramify.core.messages import ToolCall
from ramify.tools.class_environment import environment_from
from ramify.tools.functions import tool_from
from ramify.tools.own_objects import SessionRandom, install_session_random
from scripted_agents import problem

TASK = problem("p7")


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
        first_session, second_session = await tool.open(TASK), await tool.open(TASK)
        await call(first_session, "a")
        fork = await first_session.fork()
        texts = [
            (await call(session, text)).text
            for session, text in ((first_session, "b"), (fork, "c"), (second_session, "d"))
        ]
        for session in (first_session, fork, second_session):
            await session.close()
            await session.close()
            assert session.instance.state.closed == 1
        return texts

    assert tool.spec.forks
    assert tool.spec.description in ("Adds a line and shows all of them.", "Keeps notes.")
    assert asyncio.run(main()) == [f"[{first}{lines}]" for lines in ('"a","b"', '"a","c"', '"d"')]


def test_calls_come_one_after_the_other_and_a_fork_between_them():
    async def main():
        session = await tool_from(AsyncNotes, name="notes").open(TASK)
        answers = await asyncio.gather(call(session, "a"), session.fork(), call(session, "b"))
        return answers[1].instance.state.lines, answers[2].text

    assert asyncio.run(main()) == (["a"], '["a","b"]')


def test_values_that_are_given_belong_to_each_object():
    tool = tool_from(Notes, args={"first": ["x"]})

    async def main():
        return [(await call(await tool.open(TASK), "a")).text for _ in range(2)]

    assert asyncio.run(main()) == ['["x","a"]'] * 2


class Plain:
    """Counts."""

    count = 0

    def plain(self) -> int:
        self.count += 1
        return self.count


def test_an_object_that_is_made_too_late_is_closed():
    class Late:
        """Counts."""

        closed = 0

        def __init__(self):
            time.sleep(0.3)

        def late(self) -> int:
            return 1

        def close(self):
            type(self).closed += 1

    async def main():
        async with asyncio.timeout(0.1):
            await tool_from(Late).open(TASK)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert Late.closed == 1


def test_without_fork_and_close_it_does_not_branch():
    tool = tool_from(Plain)

    async def main():
        session = await tool.open(TASK)
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
    ("what", "message"),
    [
        ("self", "fork returned the object itself, expected a copy"),
        ("none", "fork returned NoneType, expected a copy"),
        ("other", "fork failed: KeyError: 'other'"),
    ],
)
def test_a_fork_that_is_no_copy_is_an_error(what, message):
    async def main():
        session = await tool_from(BadFork, name="plain", args={"what": what}).open(TASK)
        await session.fork()

    with pytest.raises(ContentError, match=f"{Path(__file__).name}: BadFork: {message}"):
        asyncio.run(main())


class Picky(Plain):
    def __init__(self, problem):
        if problem.id == "bad":
            raise ValueError("no such problem")
        if problem.id == "exit":
            sys.exit(3)


@pytest.mark.parametrize(
    ("key", "reason"), [("bad", "ValueError: no such problem"), ("exit", "SystemExit: 3")]
)
def test_an_object_that_cannot_be_made_of_a_problem_fails_that_problem(key, reason):
    tool = tool_from(Picky, name="plain")
    message = f"{Path(__file__).name}: Picky: no object could be created: {reason}"
    with pytest.raises(ContentError, match=message):
        asyncio.run(tool.open(replace(TASK, id=key)))


class Never(Plain):
    def __init__(self):
        raise OSError("no licence")


def test_a_class_of_which_no_object_could_ever_be_made_is_an_error_of_the_recipe():
    message = f"{Path(__file__).name}: Never: no object could be created: OSError: no licence"
    with pytest.raises(ConfigError, match=message):
        asyncio.run(tool_from(Never, name="plain").open(TASK))


def test_a_class_that_fails_later_fails_in_its_own_words():
    tool = tool_from(Picky, name="plain")

    async def main():
        await tool.open(TASK)
        await tool.open(replace(TASK, id="bad"))

    with pytest.raises(ValueError, match="no such problem"):
        asyncio.run(main())


class Both(Plain):
    def both(self) -> int:
        """One."""
        return 1

    __call__ = both


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Plain, {"name": "other"}, "other: expected class Plain to have one of .* it has neither"),
        (Both, {}, "both: expected class Both to have one of .* it has both"),
        (Plain, {"hedge_seconds": 1.0}, "plain: hedge_seconds: an object's call cannot be made twice"),
        (Notes, {"args": {"last": []}}, "notes: Notes.__init__: args: no parameter 'last'. It takes first."),
        (Notes, {"args": {"first": 3}}, "notes: Notes.__init__: args: first: Input should be a valid list"),
        (BadFork, {"name": "plain"}, "plain: BadFork.__init__: args: expected a value for 'what'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_start(source, options, message):
    with pytest.raises(ConfigError, match=message):
        tool_from(source, **options)


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
        session = await tool.open(TASK)
        first = asyncio.ensure_future(session.call(ToolCall("a", "slow", {"wait": True})))
        while not steps:
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.05)
        assert tool.threads.late == 1
        following = asyncio.ensure_future(session.call(ToolCall("b", "slow", {"wait": False})))
        await asyncio.sleep(0.05)
        assert steps == ["in"]
        gate.set()
        return await following

    result = asyncio.run(main())
    assert (result.call_id, result.text, steps) == ("b", "done", ["in", "out"] * 2)


# The global generators.

install_session_random()


DRAWS = {
    "random": lambda: random.random(),
    "randint": lambda: random.randint(1, 10**6),
    "choice": lambda: random.choice(range(1000)),
    "shuffled": lambda: tuple(random.sample(range(20), 20)),
    "gauss": lambda: random.gauss(0, 1),
    "bytes": lambda: random.randbytes(4),
    "numpy rand": lambda: tuple(np.random.rand(3)),
    "numpy randint": lambda: int(np.random.randint(10**6)),
    "numpy permutation": lambda: tuple(np.random.permutation(20)),
    "numpy sample": lambda: float(np.random.sample()),
    "seeded": lambda: (random.seed(7), random.random()),
    "numpy seeded": lambda: (np.random.seed(7), np.random.random()),
}


NAMES = st.lists(st.sampled_from(sorted(DRAWS)), min_size=1, max_size=6)


def drawn(names):
    return [DRAWS[name]() for name in names]


@given(NAMES, st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_a_session_repeats_its_draws_and_leaves_the_global_generators_alone(names, seed):
    before = random.getstate(), np.random.get_state()[1].tolist()
    with SessionRandom.of(seed).active():
        first = drawn(names)
    with SessionRandom.of(seed).active():
        assert drawn(names) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_outside_of_a_session_the_global_generators_draw():
    random.seed(5)
    np.random.seed(5)
    assert random.random() == random.Random(5).random()
    assert np.random.rand() == np.random.RandomState(5).rand()


class Draws:
    """Draws in every method, of which some block and some do not."""

    barrier = None

    def reset(self):
        self.drawn = [random.random()]
        if self.barrier is not None:
            self.barrier.wait(timeout=20)
        self.drawn.append(float(np.random.rand()))
        return str(self.drawn)

    def throw(self) -> str:
        """Throw a die."""
        return str(random.randint(1, 10**9))

    async def spin(self) -> str:
        """Spin a wheel."""
        first = random.random()
        await asyncio.sleep(0)
        return str((first, random.random()))

    def fork(self):
        return type(self)()


async def played(environment, seed):
    session = await environment.open(TASK, seed)
    results = [await session.call(ToolCall(str(i), name, {})) for i, name in enumerate(("throw", "spin") * 2)]
    branch = await session.fork(seed + 1)
    results.append(await branch.call(ToolCall("b", "throw", {})))
    return session.opening, [result.text for result in results]


def test_sessions_that_run_at_the_same_time_do_not_share_draws():
    alone = [asyncio.run(played(environment_from(Draws), seed)) for seed in (1, 2, 1)]

    async def together():
        return await asyncio.gather(*(played(environment_from(Meets), seed) for seed in (1, 2, 1)))

    class Meets(Draws):
        barrier = threading.Barrier(3)

    assert asyncio.run(together()) == alone
    assert alone[0] == alone[2] != alone[1]
