"""What other processes do to a cache in tests. Run by path: `python cache_children.py NAME FOLDER ARGUMENTS...`."""

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
from pathlib import Path

from ramify.cache.sqlite import CacheMode, SqliteCache
from ramify.core.errors import MachineError
from ramify.core.protocols import CacheKey
from ramify.net.failures import FailureKind, RequestFailedError


def key(request: str) -> CacheKey:
    return CacheKey("search", "p", {"top_k": 10}, request)


def tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def insert(folder: Path, name: str, threads: str, count: str) -> None:
    """Every thread has a cache of its own on the one file; all keys differ."""

    async def work(thread: int) -> None:
        cache = SqliteCache(folder / "cache.sqlite")
        for i in range(int(count)):
            request = f"{name}-{thread}-{i}"
            await cache.fetch(key(request), lambda request=request: answer(request))
        await cache.close()
        assert cache.forgotten == 0

    async def answer(request: str) -> str:
        return f"answer {request}"

    started = [threading.Thread(target=lambda t=t: asyncio.run(work(t))) for t in range(int(threads))]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def write_until_killed(folder: Path) -> None:
    """Says, after each flush, how many answers are in the file."""

    async def work() -> None:
        cache = SqliteCache(folder / "cache.sqlite")
        for i in itertools.count():
            cache.remember(key(f"q{i}"), f"answer {i} " + "x" * 1500)
            if i % 20 == 19:
                await cache.flush()
                tell(i + 1)

    asyncio.run(work())


def record_until_killed(folder: Path) -> None:
    """Says, after each request, how many outcomes a caller has."""

    async def make(i: int) -> str:
        if i % 3 == 2:
            raise RequestFailedError(FailureKind.SERVER, f"failure {i}", 500)
        return f"answer {i} " + "x" * 1500

    async def work() -> None:
        cassette = SqliteCache(folder / "cache.sqlite", mode=CacheMode.RECORD)
        for i in itertools.count():
            with contextlib.suppress(RequestFailedError):
                await cassette.fetch(key(f"q{i}"), lambda i=i: make(i))
            tell(i + 1)

    asyncio.run(work())


def claim_and_hang(folder: Path) -> None:
    async def forever() -> None:
        tell("claimed")
        await asyncio.Event().wait()

    async def work() -> None:
        await SqliteCache(folder / "cache.sqlite").fetch(key("q"), forever)

    asyncio.run(work())


def ask_slowly(folder: Path, waiters: str) -> None:
    """Many tasks ask the same; each upstream call leaves a file behind."""

    async def make() -> str:
        (folder / f"called-{id(make)}-{threading.get_native_id()}").touch()
        await asyncio.sleep(0.3)
        return "answer"

    async def work() -> None:
        cache = SqliteCache(folder / "cache.sqlite")
        tell("ready")
        sys.stdin.readline()
        answers = await asyncio.gather(*(cache.fetch(key("q"), make) for _ in range(int(waiters))))
        assert answers == ["answer"] * int(waiters)
        await cache.close()

    asyncio.run(work())


def fork(folder: Path) -> None:
    """Says what the cache of the parent is good for in a fork, and what of it the parent finds afterwards."""

    async def answer() -> str:
        return "answer"

    async def in_fork(cache: SqliteCache) -> None:
        for request in ("known", "new"):
            try:
                await cache.fetch(key(request), answer)
            except MachineError as error:
                tell(error)
        await cache.close()

    cache = SqliteCache(folder / "cache.sqlite")
    asyncio.run(cache.fetch(key("known"), answer))
    if (child := os.fork()) == 0:
        asyncio.run(in_fork(cache))
        os._exit(0)
    tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    async def go_on() -> None:
        tell(await cache.fetch(key("known"), answer))
        tell(await cache.fetch(key("new"), answer))
        await cache.close()

    asyncio.run(go_on())


def fill_a_small_disk(folder: Path, limit: str) -> None:
    """Files may not grow beyond `limit` bytes, as on a full disk."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    notes: list[str] = []

    async def answer(i: int) -> str:
        return f"answer {i} " + "x" * 2000

    async def work() -> None:
        cache = SqliteCache(folder / "cache.sqlite", say=notes.append)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        for i in range(400):
            assert (await cache.fetch(key(f"q{i}"), lambda i=i: answer(i))).startswith(f"answer {i} ")
            if i % 10 == 9:
                await cache.flush()
        for i in range(400):
            assert (await cache.fetch(key(f"q{i}"), lambda: answer(-1))).startswith(f"answer {i} ")
        await cache.close()
        tell(f"{cache.forgotten} {len(notes)} {notes[0]}")

    asyncio.run(work())


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
