"""Keys, clocks and calls of a cache for its tests."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from ramify.cache.sqlite import SqliteCache
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


def asks(answer):
    async def make():
        if isinstance(answer, Exception):
            raise answer
        return answer

    return make


async def never():
    raise AssertionError("asked")
