import asyncio

import pytest
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.rollout.schedule_engine import CapacityEngine, EngineCosts, PrefixCache

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.records import Finish, Request
from ramify.engines.virtual_clock import run_virtual

COSTS = EngineCosts(step=1.0, context_token=0.01, prefill_token=0.1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder, 0)
    return ChatTokenizer(folder)


def request(first, size, budget=100):
    return Request(tuple(range(first, first + size)), seed=first, max_new_tokens=budget)


def play(engine, arrivals):
    """Seconds at which each of (second of arrival, request) was done."""

    async def run_one(second, sent):
        await asyncio.sleep(second)
        done = await engine.generate(sent)
        return asyncio.get_running_loop().time(), done

    async def main():
        results = await asyncio.gather(*(run_one(*arrival) for arrival in arrivals))
        await engine.close()
        return results

    return run_virtual(main())[0]


def test_a_step_takes_the_weights_once_and_the_context_of_everybody(tokenizer):
    engine = CapacityEngine(COSTS, 16, lambda _: range(3), tokenizer)
    results = play(engine, [(0, request(0, 10)), (0, request(1000, 20))])
    read = (10 + 20) + (11 + 21) + (12 + 22)
    assert [second for second, _ in results] == pytest.approx([0.1 * 30 + 3 * 1.0 + 0.01 * read] * 2)
    assert engine.work.busy_seconds == pytest.approx(results[0][0])
    assert (engine.work.written, engine.work.prefilled, engine.work.steps) == (6, 30, 3)


def test_who_arrives_joins_after_the_step_that_is_under_way(tokenizer):
    engine = CapacityEngine(EngineCosts(1.0, 0.0, 0.1), 16, lambda _: range(4), tokenizer)
    first, second = play(engine, [(0, request(0, 10)), (2.5, request(1000, 10))])
    # Prefill until 1, steps until 3 (the arrival at 2.5 waits), prefill until 4, two steps together, two alone.
    assert (first[0], second[0]) == pytest.approx((6.0, 8.0))


def test_a_cancelled_request_frees_its_place_after_the_step_that_is_under_way(tokenizer):
    engine = CapacityEngine(EngineCosts(1.0, 0.0, 0.0), 16, lambda _: range(50), tokenizer)

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.5):
                await engine.generate(request(0, 10))
        await asyncio.sleep(10)
        busy = engine.work.busy_seconds
        done = await engine.generate(request(1000, 10, budget=2))
        await engine.close()
        return busy, done.finish

    assert run_virtual(main()) == ((4.0, Finish.LENGTH), 15.5)


def test_the_prefix_cache_knows_whole_pages():
    cache = PrefixCache(page=4)
    assert cache.feed(tuple(range(10))) == 10
    assert cache.feed((*range(10), 77, 78)) == 4
    assert cache.feed(tuple(range(8))) == 1
    assert cache.feed((9, 9, 9, 9, 4, 5, 6, 7)) == 8
