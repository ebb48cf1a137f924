"""A client for a test, and a server whose answers are written down in order."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from loopback import HttpRequest, Loopback, Reply, serve
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.exchange import Answer
from ramify.net.failures import RequestFailedError

FAST = HttpSettings(timeout_seconds=30.0, backoff_seconds=0.01, max_backoff_seconds=0.02)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def run(settings: HttpSettings, use: Callable[[HttpClient], Awaitable[object]], **options: object) -> object:
    async def whole() -> object:
        client = HttpClient("probe", settings, **options)
        try:
            return await use(client)
        finally:
            await client.close()
            await client.close()

    return asyncio.run(whole())


def get(settings: HttpSettings, url: str, **options: object) -> Answer:
    answer = run(settings, lambda client: client.get(url), **options)
    assert isinstance(answer, Answer)
    return answer


def failure(settings: HttpSettings, url: str, **options: object) -> RequestFailedError:
    with pytest.raises(RequestFailedError) as caught:
        get(settings, url, **options)
    return caught.value


@contextmanager
def script(*replies: Reply) -> Iterator[Loopback]:
    """Answers in order; the last one again and again."""
    left, lock = list(replies), threading.Lock()

    def answer(_: HttpRequest) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    with serve(answer) as server:
        yield server


def drip(stopped: threading.Event) -> Callable[[object], None]:
    def write(stream: object) -> None:
        stream.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")  # type: ignore[attr-defined]
        while not stopped.wait(0.02):
            stream.write(b"x")  # type: ignore[attr-defined]
            stream.flush()  # type: ignore[attr-defined]

    return write
