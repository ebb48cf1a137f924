"""Back-pressure: trees in the order in which they asked, and never more trajectories than slots."""

import asyncio

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.engines.virtual_clock import run_virtual
from ramify.rollout.grow import SlotGate
from scripted_agents import WrappedEngine, agent, grow, problem, with_engine

RULE = ThresholdBrancher(m=3, min_entropy_delta=0.0, children=1, probe_tokens=3)


def play(slots, trees):
    """(name, size, seconds of each trajectory) -> (second, name, "in" or "out"), with the most held at once."""
    gate, log, held = SlotGate(slots), [], []

    async def tree(name, times):
        loop = asyncio.get_running_loop()
        async with gate.tree(len(times)) as ended:
            log.append((loop.time(), name, "in"))
            held.append(gate._held)
            for before, seconds in zip([0, *times], times, strict=False):
                await asyncio.sleep(seconds - before)
                ended()
        log.append((loop.time(), name, "out"))

    async def main():
        async with asyncio.TaskGroup() as group:
            for name, times in trees:
                group.create_task(tree(name, times))
        return gate._held

    left, _ = run_virtual(main())
    assert left == 0
    return log, max(held)


def test_a_tree_gives_its_slots_back_one_by_one():
    log, most = play(4, [("a", [1, 2, 3, 9]), ("b", [4, 5, 6]), ("c", [1])])
    assert [entry for entry in log if entry[2] == "in"] == [(0, "a", "in"), (3, "b", "in"), (7, "c", "in")]
    assert most == 4


def test_without_slots_all_are_let_in():
    assert {at for at, _, kind in play(None, [("a", [5] * 9), ("b", [5] * 9)])[0] if kind == "in"} == {0}


def test_a_tree_that_is_larger_than_the_engine_starts_alone():
    log, _ = play(2, [("a", [3]), ("b", [1, 2, 4, 9]), ("c", [1])])
    assert [(at, name) for at, name, kind in log if kind == "in"] == [(0, "a"), (3, "b"), (7, "c")]


def test_a_small_tree_does_not_overtake():
    log, _ = play(4, [("a", [5, 5, 5]), ("b", [1, 1]), ("c", [1])])
    assert [name for _, name, kind in log if kind == "in"] == ["a", "b", "c"]


def test_a_tree_that_fails_or_stops_waiting_gives_its_slots_back():
    async def main():
        gate = SlotGate(2)

        async def fail():
            async with gate.tree(2) as ended:
                ended()
                await asyncio.sleep(1)
                raise ValueError("broken")

        async def wait():
            async with gate.tree(2):
                pass

        failing, waiting, last = (asyncio.create_task(work()) for work in (fail, wait, wait))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.gather(failing, waiting, last, return_exceptions=True)
        assert isinstance(failing.exception(), ValueError)
        assert waiting.cancelled()
        assert last.exception() is None
        return gate._held

    assert run_virtual(main())[0] == 0


class Counting(WrappedEngine):
    """Counts requests in flight."""

    now = most = 0

    async def generate(self, request):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self.inner.generate(request)
        finally:
            self.now -= 1


@pytest.mark.parametrize("slots", [8, 12, 20])
def test_requests_in_flight_stay_within_the_slots_and_trees_are_the_same(tokenizer_folder, slots):
    problems = [problem(f"p{i}") for i in range(5)]
    free, _ = grow(agent(tokenizer_folder, RULE), problems)
    parts = with_engine(agent(tokenizer_folder, RULE, slots=slots), Counting)
    trees, _ = grow(parts, problems)
    assert trees == free
    assert 1 < parts.engine.most <= slots
