"""What a client builds on: connections, certificates, bodies with a limit on their size, and a thread to read them in.

httpx's automatic features are off: no cookies, no redirects, only one layer of gzip.
"""

import asyncio
import functools
import os
import ssl
import threading
import zlib
from collections.abc import Coroutine
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import httpx

from ramify.core.errors import MachineError
from ramify.net.failures import FailureKind, RequestFailedError

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class _Decoder(Protocol):
    """The type of what `zlib.decompressobj` returns."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


async def read_body(response: httpx.Response, where: str, max_bytes: int) -> bytes:
    """The whole body, decompressed. Holds at most `max_bytes` and one chunk from the network.

    Args:
        response: A response that was not read yet.
        where: Its address, for messages.
        max_bytes: Limit for the decompressed body.

    Raises:
        RequestFailedError: TOO_LARGE; MALFORMED if the encoding was not asked for, or the compressed data is broken or cut.
    """
    decoder = _decoder(response.headers.get("content-encoding", ""), where)
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += _decompress(decoder, chunk, max_bytes + 1 - len(body), where) if decoder else chunk
        if len(body) > max_bytes:
            raise RequestFailedError(FailureKind.TOO_LARGE, f"{where}: more than {max_bytes} bytes")
    if decoder and response.num_bytes_downloaded and not decoder.eof:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is cut")
    return bytes(body)


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
        return decoder.decompress(chunk, room)
    except zlib.error:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is broken") from None


_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def trusted(*, by_environment: bool) -> ssl.SSLContext:
    """The HTTP library's own certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR names.

    Args:
        by_environment: Whether these variables count.

    Raises:
        MachineError: The file or folder that they name cannot be read.
    """
    named = tuple(os.environ.get(name, "") for name in _CERTIFICATE_VARIABLES) if by_environment else ("", "")
    try:
        return _certificates(*named)
    except OSError as error:
        found = next(
            f"{name} = {value}" for name, value in zip(_CERTIFICATE_VARIABLES, named, strict=True) if value
        )
        raise MachineError(
            f"{found} names no certificates that can be read ({error.strerror or error}); mend or unset it"
        ) from error


@functools.lru_cache(maxsize=4)
def _certificates(file: str, folder: str) -> ssl.SSLContext:
    """Create a context, once per process, since that takes 30 ms. The library reads the variables itself."""
    return httpx.create_ssl_context(trust_env=bool(file or folder))


_PROXY_VARIABLES: Final = ("all_proxy", "http_proxy", "https_proxy")


def open_connections(
    timeout_seconds: float, in_flight: int, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    """A client of httpx; it opens connections when they are needed.

    Args:
        timeout_seconds: Limit for each step of a request.
        in_flight: Most concurrent connections.
        transport: Opens the connections; the environment's proxies and certificates are then ignored. None: they count.

    Raises:
        MachineError: The environment names a proxy or certificates that cannot be used.
    """
    try:
        return httpx.AsyncClient(
            transport=transport,
            verify=trusted(by_environment=transport is None),
            trust_env=transport is None,
            timeout=timeout_seconds,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            limits=httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight),
            headers={"accept-encoding": "gzip", "user-agent": "ramify"},
        )
    except (ImportError, ValueError, httpx.InvalidURL):
        proxies = sorted(
            name for name, value in os.environ.items() if value and name.lower() in _PROXY_VARIABLES
        )
        if not proxies:
            raise
    # The library's own text is left out: it may contain the proxy's password.
    raise MachineError(
        f"the environment variable {' or '.join(proxies)} names a proxy that cannot be used; "
        "expected http://HOST:PORT, or unset it"
    )


def socket_transport(path: Path, in_flight: int) -> httpx.AsyncBaseTransport:
    """Return a transport that sends every request to the Unix socket at `path`, whatever host its address names.

    Args:
        path: The socket; it need not exist yet.
        in_flight: Most concurrent connections.
    """
    # With a transport of its own, a client of httpx ignores its limits.
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    return httpx.AsyncHTTPTransport(verify=trusted(by_environment=False), uds=str(path), limits=limits)


Result = TypeVar("Result")

_PATIENCE_SECONDS: Final = 1.0


class NetworkThread:
    """Runs coroutines for the tasks of another event loop, in a daemon thread that starts with the first coroutine.

    Reading HTTP is Python code, and a response in many tiny chunks can keep it busy for seconds. In a thread of its own
    it does not block the caller's event loop, and a timeout measures the network rather than how busy the caller is.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the thread; returns or raises what it does. Cancelling this cancels `work`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def close(self) -> None:
        """Give running work one second to finish, cancel the rest, and end the thread; closing twice is allowed."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_all_end(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _all_end() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_PATIENCE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
