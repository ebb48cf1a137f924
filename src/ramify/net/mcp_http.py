"""Lets the package mcp, which has an HTTP client of its own, send its requests through our transport, within our limits.

An answer that is no event stream must be whole within a deadline and a number of bytes. A stream of events stays open as
long as its session; there mcp limits the size of each event. Neither may be compressed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import httpx2

from ramify.net.connections import HttpTransport
from ramify.net.failures import RequestFailedError
from ramify.net.limits import body_chunks
from ramify.net.wire import Request, Response, Transport, without_query

_IN_FLIGHT = 100
_NOT_PASSED = frozenset(
    {"host", "content-length", "transfer-encoding", "accept-encoding", "content-encoding", "connection"}
)
"""Headers that describe a connection or a body as sent, which our transport writes and reads itself."""


def limited_client(headers: Mapping[str, str], *, seconds: float, max_bytes: int) -> httpx2.AsyncClient:
    """Return a client for `mcp.client.streamable_http`.

    Args:
        headers: Sent with each request.
        seconds: Limit for the head of an answer, and for the whole of one that is no event stream.
        max_bytes: Limit for an answer that is no event stream.

    Raises:
        MachineError: The environment names a proxy or certificates that cannot be used.
    """
    bridge = _Bridge(HttpTransport(_IN_FLIGHT), seconds, max_bytes)
    return httpx2.AsyncClient(headers=dict(headers), transport=bridge, timeout=None, trust_env=False)


class _Bridge(httpx2.AsyncBaseTransport):
    def __init__(self, inner: Transport, seconds: float, max_bytes: int) -> None:
        self._inner, self._seconds, self._max_bytes = inner, seconds, max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        ends_at = asyncio.get_running_loop().time() + self._seconds
        ours = Request(
            method=request.method,
            url=str(request.url),
            headers={
                **{name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED},
                "accept-encoding": "identity",
            },
            body=await request.aread() or None,
        )
        where = without_query(ours.url)
        try:
            async with asyncio.timeout_at(ends_at):
                response = await self._inner.send(ours)
        except TimeoutError:
            raise httpx2.ReadTimeout(f"{where}: no answer within {self._seconds:g} s") from None
        except RequestFailedError as error:
            raise httpx2.ConnectError(error.detail) from None
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = _Body(response, where, None if is_stream else ends_at, None if is_stream else self._max_bytes)
        headers = {name: value for name, value in response.headers.items() if name not in _NOT_PASSED}
        return httpx2.Response(response.status, headers=headers, stream=body, request=request)

    async def aclose(self) -> None:
        await self._inner.close()


class _Body(httpx2.AsyncByteStream):
    """A body within its limits. Beyond them it raises a StreamError, which mcp turns into a failure of one request."""

    def __init__(self, response: Response, where: str, ends_at: float | None, max_bytes: int | None) -> None:
        self._response, self._where, self._ends_at, self._max_bytes = response, where, ends_at, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(body_chunks(self._response, self._where, self._max_bytes)) as chunks:
            while True:
                try:
                    # Not around the yield: the deadline must not cancel the reader's other work.
                    async with asyncio.timeout_at(self._ends_at):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise httpx2.StreamError(f"{self._where}: no whole answer in time") from None
                except RequestFailedError as error:
                    raise httpx2.StreamError(error.detail) from None
                yield chunk

    async def aclose(self) -> None:
        await self._response.close()
