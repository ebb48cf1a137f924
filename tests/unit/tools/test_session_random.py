"""Each session of an environment draws from its own global generators, whatever else runs; other code from the real ones."""

# ruff: noqa: NPY002 - the legacy functions of numpy are what this is about

import asyncio
import random
import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.messages import Message, Problem, ToolCall
from ramify.tools.class_environment import environment_from
from ramify.tools.own_objects import SessionRandom, install_session_random

install_session_random()
PROBLEM = Problem("p", (Message.of("user", "Go."),), ())
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
    session = await environment.open(PROBLEM, seed)
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
