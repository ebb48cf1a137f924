"""Keys, clocks and calls of a cache for its tests."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from ramify.cache.sqlite import CacheMode, SqliteCache
from ramify.core.protocols import CacheKey


def key(request="q", **parameters):
    return CacheKey("search", "p", parameters, request)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def run(use: Callable[[SqliteCache], Awaitable[None]], path: Path, settings=None, **options) -> SqliteCache:
    async def whole():
        cache = SqliteCache(path, settings, **options)
        try:
            await use(cache)
        finally:
            await cache.close()
        return cache

    return asyncio.run(whole())


def fetch(path, *keys, mode=CacheMode.CACHE):
    """The answers to these keys, which must all be in the file."""

    async def use(cache):
        answers.extend([await cache.fetch(each, never) for each in keys])

    answers = []
    run(use, path, mode=mode)
    return answers


def execute(path, statement, *values):
    """Run a statement on a file, as another program might, and return its rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        return other.execute(statement, values).fetchall()


def asks(answer):
    async def make():
        if isinstance(answer, Exception):
            raise answer
        return answer

    return make


async def never():
    raise AssertionError("asked")
