import asyncio
import contextlib

from ramify.tools.search_service import FairTurns


async def queue(
    turns: FairTurns, order: list[str], asked: list[tuple[str, str, str]]
) -> list[asyncio.Task[None]]:
    """Tasks that wait in this order for a place, each with its client and its request."""

    async def one(client: str, request: str, name: str) -> None:
        async with turns.slot(client, request):
            order.append(name)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(one(*each)) for each in asked]
    await asyncio.sleep(0)
    return tasks


def test_clients_take_turns_and_so_do_their_requests() -> None:
    order: list[str] = []

    async def main() -> None:
        turns = FairTurns(1)
        large = [("a", "a1", f"a1.{i}") for i in range(4)] + [("a", "a2", f"a2.{i}") for i in range(3)]
        await asyncio.gather(*await queue(turns, order, [*large, ("b", "b1", "b"), ("c", "c1", "c")]))

    asyncio.run(main())
    assert order == ["a1.0", "a1.1", "b", "c", "a2.0", "a1.2", "a2.1", "a1.3", "a2.2"]


def test_who_leaves_takes_no_turn_and_keeps_no_place() -> None:
    order: list[str] = []

    async def main() -> None:
        turns = FairTurns(1)
        async with turns.slot("first", 0):
            tasks = await queue(
                turns, order, [*(("a", "a1", f"a.{i}") for i in range(100)), ("b", "b1", "b")]
            )
            for task in tasks[:99]:
                task.cancel()
        tasks[99].cancel()  # it was just given the place
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with asyncio.timeout(10), turns.slot("last", 0):
            order.append("last")

    asyncio.run(main())
    assert order == ["b", "last"]


def test_no_more_places_than_there_are() -> None:
    now = most = 0

    async def one(turns: FairTurns, client: int) -> None:
        nonlocal now, most
        async with turns.slot(client % 3, client):
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    async def main() -> None:
        turns = FairTurns(4)
        await asyncio.gather(*(one(turns, client) for client in range(50)))

    asyncio.run(main())
    assert (now, most) == (0, 4)


def test_who_leaves_before_a_turn_gives_nothing_back() -> None:
    order: list[str] = []

    async def main() -> None:
        turns = FairTurns(1)
        async with turns.slot("first", 0):
            (leaving,) = await queue(turns, order, [("a", "a1", "a")])
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            (waiting,) = await queue(turns, order, [("b", "b1", "b")])
            order.append("first")
        await waiting

    asyncio.run(main())
    assert order == ["first", "b"]
