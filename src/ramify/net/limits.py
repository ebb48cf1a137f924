"""Limits of a client: its request rate, a circuit breaker, and the size of a body. Clocks are arguments, so tests need not wait.

The body of an answer is limited before and after decompression. Only one layer of gzip or deflate is read, as the client asks
for no other encoding.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from ramify.core.errors import ServiceDownError
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.wire import Response

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_OVERHEAD = 4096
"""Bytes that compression may add to a body, besides a thousandth of its size."""


class Pace:
    """Spaces requests evenly, in the order in which they ask."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Args:
        per_second: Requests per second; None: no limit.
        clock: A monotonic clock, in seconds.
        sleep: Waits for a number of seconds.
        """
        self._gap = None if per_second is None else 1.0 / per_second
        self._clock, self._sleep = clock, sleep
        self._free_at = clock()
        self._first = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the next free time slot. Only the first in the queue takes one, so a cancelled task delays no other."""
        if self._gap is None:
            return
        async with self._first:
            now = self._clock()
            start = max(now, self._free_at)
            if start > now:
                await self._sleep(start - now)
            self._free_at = start + self._gap


class Breaker:
    """A circuit breaker. It opens after a number of failed requests in a row.

    While it is open, it lets one trial request through per `trial_seconds`; a success closes it. Requests that were
    pending together count as one failure, since one short outage fails them all: a failure counts only if its request
    began after the last counted failure.
    """

    def __init__(
        self, name: str, failures_to_open: int | None, trial_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Args:
        name: Name of the service.
        failures_to_open: Failures in a row that open the breaker; None: it never opens.
        trial_seconds: Time from opening, or from the last trial, to the next trial.
        clock: A monotonic clock, in seconds.
        """
        self._name, self._limit, self._clock = name, failures_to_open, clock
        self._trial_seconds = trial_seconds
        self._failures = 0
        self._last = ""
        self._next_trial = 0.0
        self._wave = 0

    @property
    def is_open(self) -> bool:
        """True while the service counts as down."""
        return self._limit is not None and self._failures >= self._limit

    def admit(self) -> int:
        """Let a request through; returns its wave number, which `failed` needs.

        Raises:
            ServiceDownError: The service is down; names it and the last failure.
        """
        if self.is_open:
            if self._clock() < self._next_trial:
                raise ServiceDownError(
                    f"{self._name} is down: {self._failures} requests in a row failed, the last with {self._last}"
                )
            self._next_trial = self._clock() + self._trial_seconds
        return self._wave

    def failed(self, wave: int, message: str) -> None:
        """Count a request that failed for good.

        Args:
            wave: The number that `admit` returned for it.
            message: The reason.
        """
        self._last = message
        if wave != self._wave:
            return
        self._wave += 1
        self._failures += 1
        if self._failures == self._limit:
            self._next_trial = self._clock() + self._trial_seconds

    def succeeded(self) -> int:
        """Reset the count of failures; returns the old count."""
        old_count, self._failures = self._failures, 0
        return old_count

    def retract_success(self, old_count: int, wave: int, message: str) -> None:
        """Turn a request that counted as a success into a failure; `old_count` is what `succeeded` returned for it."""
        self._failures = max(self._failures, old_count)
        self.failed(wave, message)


class _Decoder(Protocol):
    """The type of what `zlib.decompressobj` returns."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


async def read_body(response: Response, where: str, max_bytes: int) -> bytes:
    """Return the whole body, decompressed; raises as `body_chunks` does."""
    body = bytearray()
    async for chunk in body_chunks(response, where, max_bytes):
        body += chunk
    return bytes(body)


async def body_chunks(response: Response, where: str, max_bytes: int | None) -> AsyncGenerator[bytes]:
    """Yield the decompressed body. Buffers one chunk from the network and at most `max_bytes` of its decompressed content.

    Args:
        response: An unread response.
        where: Its address, for messages.
        max_bytes: Limit for the body, compressed and decompressed. None: no limit, for a stream without an end.

    Raises:
        RequestFailedError: TOO_LARGE; MALFORMED if the encoding was not requested, or the compressed data is broken or cut.
    """
    decoder = _decoder(response.headers.get("content-encoding", ""), where)
    if decoder is not None and max_bytes is None:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: a compressed stream, expected a plain one")
    raw = plain = 0
    async for chunk in response.chunks:
        raw += len(chunk)
        if max_bytes is not None and raw > max_bytes + max_bytes // 1000 + _OVERHEAD:
            raise _too_large(where, max_bytes)
        if decoder is not None and max_bytes is not None:
            chunk = _decompress(decoder, chunk, max_bytes + 1 - plain, where)
        plain += len(chunk)
        if max_bytes is not None and plain > max_bytes:
            raise _too_large(where, max_bytes)
        yield chunk
    if decoder and raw and not decoder.eof:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is cut")


def _too_large(where: str, max_bytes: int) -> RequestFailedError:
    return RequestFailedError(FailureKind.TOO_LARGE, f"{where}: more than {max_bytes} bytes")


def _decoder(encoding: str, where: str) -> _Decoder | None:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(_GZIP_OR_ZLIB)
        case _:
            raise RequestFailedError(
                FailureKind.MALFORMED, f"{where}: a content encoding that was not asked for; expected gzip"
            )


def _decompress(decoder: _Decoder, chunk: bytes, room: int, where: str) -> bytes:
    try:
        plain = decoder.decompress(chunk, room)
    except zlib.error:
        raise RequestFailedError(
            FailureKind.MALFORMED, f"{where}: the compressed body cannot be decompressed"
        ) from None
    # zlib would buffer whatever follows the end of the compressed data, without limit.
    if decoder.unused_data:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: more data follows the compressed body")
    return plain
