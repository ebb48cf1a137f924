"""Rows 6.*: what a remembered answer costs, and how often identical requests ask."""

import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.rows import Row
from ramify.cache.sqlite import SqliteCache
from ramify.core.protocols import CacheKey, Json

_ENTRIES = 20_000
_PUTS = 1_000
_REWRITES = 2
_HITS, _HIT_CHARS = 8, 190
"""As in the references' released cache, whose texts have 1,542 characters on average."""
_PARAMETERS = {"engine": "bing", "country": "us", "market": None, "top_k": 10, "collection": None}
_MOST_MICROSECONDS = {"6.memory": 5.0, "6.disk": 30.0, "6.put": 200.0}
_TASKS, _PROCESSES = 64, 4
_UPSTREAM_SECONDS = 0.2


def _key(number: int) -> CacheKey:
    return CacheKey("search", "brightdata", dict(_PARAMETERS), f"what is known about number {number}?")


def _answer(number: int) -> Json:
    text = f"{number} is a number. " * _HIT_CHARS
    return [{"id": f"{i}", "text": f"{i} {text}"[:_HIT_CHARS], "title": "", "url": ""} for i in range(_HITS)]


async def _never() -> Json:
    raise AssertionError("every answer is remembered")


async def _fill(path: Path) -> None:
    cache = SqliteCache(path)
    for number in range(_ENTRIES):
        cache.remember(_key(number), _answer(number))
    await cache.close()


async def _fetch_all(cache: SqliteCache, keys: Sequence[CacheKey]) -> float:
    """Microseconds for each key."""
    started = time.perf_counter()
    for key in keys:
        await cache.fetch(key, _never)
    return 1e6 * (time.perf_counter() - started) / len(keys)


async def _hits(path: Path) -> tuple[float, float]:
    """Microseconds of a hit on disk, each answer once in random order, and of one in memory after that."""
    cache = SqliteCache(path)
    keys = [_key(number) for number in range(_ENTRIES)]
    random.Random(0).shuffle(keys)
    times = await _fetch_all(cache, keys), await _fetch_all(cache, keys)
    if (cache.counts.disk, cache.counts.memory) != (_ENTRIES, _ENTRIES):
        raise ValueError(f"expected each answer once from disk and once from memory, got {cache.counts}")
    await cache.close()
    return times


async def _puts(path: Path, first: int) -> float:
    """Microseconds that the caller spends on a put, one right after the other, while the thread writes."""
    cache = SqliteCache(path)
    new = [(_key(first + i), _answer(first + i)) for i in range(_PUTS)]
    started = time.perf_counter()
    for key, answer in new:
        cache.remember(key, answer)
    each = 1e6 * (time.perf_counter() - started) / _PUTS
    await cache.close()
    return each


def _rewrite(path: Path) -> float:
    """Microseconds of a put as the references do it: read the JSON file, add, write all of it beside, rename."""
    started = time.perf_counter()
    for number in range(_REWRITES):
        entries = json.loads(path.read_text(encoding="utf-8"))
        entries[f"new {number}"] = "x" * _HITS * _HIT_CHARS
        beside = path.with_suffix(".part")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(entries, file, ensure_ascii=False, indent=2)
        beside.replace(path)
    return 1e6 * (time.perf_counter() - started) / _REWRITES


def costs() -> Sequence[Row]:
    """Rows 6.memory, 6.disk and 6.put."""
    with tempfile.TemporaryDirectory() as name:
        path, peer_path = Path(name) / "cache.sqlite", Path(name) / "cache.json"
        asyncio.run(_fill(path))
        entries = {f"number {i}": str(i) + "x" * _HITS * _HIT_CHARS for i in range(_ENTRIES)}
        peer_path.write_text(json.dumps(entries, indent=2))
        memory: list[float] = []
        written = _ENTRIES

        def disk() -> float:
            on_disk, in_memory = asyncio.run(_hits(path))
            memory.append(in_memory)
            return on_disk

        def put() -> float:
            nonlocal written
            written += _PUTS
            return asyncio.run(_puts(path, written))

        runs = interleave({"disk": disk, "put": put, "peer": lambda: _rewrite(peer_path)})
    recorded = {"6.memory": memory[-len(runs["disk"]) :], "6.disk": runs["disk"], "6.put": runs["put"]}
    middle = medians({**recorded, "peer": runs["peer"]})
    metric = {
        "6.memory": "us for an answer in memory",
        "6.disk": "us for an answer on disk that is not in memory",
        "6.put": "us that the caller spends on a put; the thread that writes runs beside it",
    }
    rows = []
    for row, most in _MOST_MICROSECONDS.items():
        peer = middle["peer"] if row == "6.put" else None
        rows.append(
            Row(
                row,
                f"{metric[row]}, at {_ENTRIES:,} entries; the ratio is ours",
                middle[row],
                peer,
                middle[row],
                f"at most {most:g} us",
                met=middle[row] <= most,
                runs={"ours": recorded[row], **({"peer": runs["peer"]} if peer is not None else {})},
                settings={
                    "entries": _ENTRIES,
                    "answer_chars": len(json.dumps(_answer(0))),
                    **({"puts": _PUTS, "peer": "rewriting one JSON file"} if peer is not None else {}),
                    "runs": MIN_RUNS,
                },
            )
        )
    return rows


async def _ask(folder: Path, tasks: int, start_at: float) -> None:
    """Ask the same at one time; each upstream call writes a byte."""

    async def upstream() -> Json:
        with (folder / "calls").open("ab") as calls:
            calls.write(b"x")
        await asyncio.sleep(_UPSTREAM_SECONDS)
        return ["answer"]

    cache = SqliteCache(folder / "cache.sqlite")
    await asyncio.sleep(max(0.0, start_at - time.time()))
    answers = await asyncio.gather(*(cache.fetch(_key(0), upstream) for _ in range(tasks)))
    await cache.close()
    if answers != [["answer"]] * tasks:
        raise ValueError("an answer is not what upstream said")


def _ask_in_process(folder: Path, tasks: int, start_at: float) -> int:
    asyncio.run(_ask(folder, tasks, start_at))
    return os.getpid()


def _calls(ask: Callable[[Path], None]) -> int:
    with tempfile.TemporaryDirectory() as name:
        ask(Path(name))
        return (Path(name) / "calls").stat().st_size


def flight() -> Sequence[Row]:
    """Row 6.flight: upstream calls for identical requests at one time, of tasks and of processes."""

    def processes(folder: Path) -> None:
        with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
            start_at = time.time() + 5.0
            futures = [pool.submit(_ask_in_process, folder, _TASKS, start_at) for _ in range(_PROCESSES)]
            if len({future.result() for future in futures}) != _PROCESSES:
                raise ValueError("expected one request group in each process")

    tasks = [_calls(lambda folder: asyncio.run(_ask(folder, _TASKS, 0.0))) for _ in range(MIN_RUNS)]
    shared = [_calls(processes) for _ in range(2)]
    worst = float(max(tasks + shared))
    return [
        Row(
            "6.flight",
            f"upstream calls for {_TASKS} identical requests at one time, and for {_TASKS} in each of {_PROCESSES} processes",
            worst,
            float(_TASKS),
            worst,
            "exactly 1",
            met=worst == 1.0,
            runs={"tasks": list(map(float, tasks)), "processes": list(map(float, shared))},
            settings={
                "tasks": _TASKS,
                "processes": _PROCESSES,
                "upstream_seconds": _UPSTREAM_SECONDS,
                "peer": "the references ask once for each request",
            },
        )
    ]


ROWS = {"6.memory": costs, "6.disk": costs, "6.put": costs, "6.flight": flight}
