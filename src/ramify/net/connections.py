"""Connections with httpx, the certificates that they trust, and a thread to read them in.

This is the only module that makes HTTP requests with a library. httpx's automatic features are off: no cookies, no
redirects, no decompression, no time limits; they are the client's.
"""

import asyncio
import functools
import os
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from ramify.core.errors import MachineError
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import redact
from ramify.net.wire import ConnectFailedError, Request, Response, without_query

_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_SHOWN = 160
"""Most characters of the library's own error text that a message quotes."""


def trusted(*, by_environment: bool) -> ssl.SSLContext:
    """Return the HTTP library's own certificates, or those that SSL_CERT_FILE or SSL_CERT_DIR names.

    Args:
        by_environment: Use these variables.

    Raises:
        MachineError: The file or folder that they name cannot be read.
    """
    named = tuple(os.environ.get(name, "") for name in _CERTIFICATE_VARIABLES) if by_environment else ("", "")
    try:
        return _certificates(*named)
    except OSError as error:
        setting = next(
            f"{name} = {value}" for name, value in zip(_CERTIFICATE_VARIABLES, named, strict=True) if value
        )
        raise MachineError(
            f"{setting} names no certificates that can be read ({error.strerror or error}). Fix or unset it."
        ) from error


@functools.lru_cache(maxsize=4)
def _certificates(file: str, folder: str) -> ssl.SSLContext:
    """Create a context, once per process, since that takes 30 ms. The library reads the variables itself."""
    return httpx.create_ssl_context(trust_env=bool(file or folder))


_PROXY_VARIABLES: Final = ("all_proxy", "http_proxy", "https_proxy")


class HttpxTransport:
    """Implements `ramify.net.wire.Transport` with httpx; it opens connections on demand."""

    def __init__(
        self,
        in_flight: int,
        *,
        uds: Path | None = None,
        by_environment: bool = True,
        keep_alive: bool = True,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        """Open no connection yet.

        Args:
            in_flight: Most concurrent connections.
            uds: A Unix socket to connect to, whatever the host of an address; proxies are then ignored.
            by_environment: Whether the environment's proxies and certificates count.
            keep_alive: Whether a connection serves more than one request.
            verify: The certificates to trust; None for the usual ones.

        Raises:
            MachineError: The environment names a proxy or certificates that cannot be used.
        """
        certificates = verify or trusted(by_environment=by_environment)
        limits = httpx.Limits(
            max_connections=in_flight, max_keepalive_connections=in_flight if keep_alive else 0
        )
        socket = None
        if uds is not None:
            socket = httpx.AsyncHTTPTransport(
                verify=certificates, limits=limits, uds=str(uds), trust_env=False
            )
        with _usable_proxies():
            self._client = httpx.AsyncClient(
                transport=socket,
                verify=certificates,
                trust_env=by_environment and uds is None,
                timeout=None,
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                limits=limits,
            )

    async def send(self, request: Request) -> Response:
        """Send a request; raises as `Transport.send` does."""
        where = without_query(request.url)
        try:
            answer = await self._client.send(self._build(request), stream=True)
        except _ERRORS as failed:
            error = _as_ours(failed, where)
        else:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Response(answer.status_code, headers, _raw(answer, where), answer.aclose)
        raise error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _build(self, request: Request) -> httpx.Request:
        built = self._client.build_request(
            request.method, request.url, headers=dict(request.headers), content=request.body
        )
        if request.connect_to is None:
            return built
        # The certificate is checked for the requested host, not for the address.
        return httpx.Request(
            built.method,
            built.url.copy_with(host=request.connect_to),
            headers=built.headers,
            stream=built.stream,
            extensions={**built.extensions, "sni_hostname": built.url.raw_host.decode("ascii")},
        )


# ValueError: httpx raises it for addresses that it cannot encode.
_ERRORS = (httpx.TransportError, httpx.InvalidURL, ValueError)


async def _raw(answer: httpx.Response, where: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
        return
    except _ERRORS as failed:
        error = _as_ours(failed, where)
    raise error


def _as_ours(error: Exception, where: str) -> RequestFailedError:
    """Return our error for one of httpx's. Do not chain it: httpx's can quote addresses and headers with keys."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        detail = f"{where}: {type(error).__name__}: {_one_line(error)}"
        return ConnectFailedError(FailureKind.CONNECTION, detail)
    if isinstance(error, httpx.UnsupportedProtocol):
        return RequestFailedError(FailureKind.FORBIDDEN, f"{where}: expected an http or https address")
    if isinstance(error, httpx.LocalProtocolError):
        detail = f"{where}: the request breaks HTTP's rules. Look at its headers."
        return RequestFailedError(FailureKind.CLIENT, detail)
    if not isinstance(error, httpx.TransportError):
        return RequestFailedError(FailureKind.CLIENT, f"{where}: no address that can be asked")
    return RequestFailedError(FailureKind.CONNECTION, f"{where}: {type(error).__name__}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(redact(str(error)).split())[:_SHOWN]


@contextmanager
def _usable_proxies() -> Iterator[None]:
    """Name the environment's variable where httpx cannot use the proxy in it."""
    try:
        yield
        return
    except (ImportError, ValueError, httpx.InvalidURL):
        proxies = sorted(
            name for name, value in os.environ.items() if value and name.lower() in _PROXY_VARIABLES
        )
        if not proxies:
            raise
    # The library's own text is left out: it may contain the proxy's password.
    raise MachineError(
        f"the environment variable {' or '.join(proxies)} names a proxy that cannot be used. "
        "Set it to http://HOST:PORT or unset it."
    )


Result = TypeVar("Result")


def wait_for(work: Coroutine[Any, Any, Result], name: str) -> Result:
    """Run `work` in a loop and a thread of its own, and block until it ends; the caller may be inside another loop.

    The thread is a daemon, so that Ctrl-C need not wait for the network.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome.result()


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
        """Wait a second for running work, cancel the rest, and end the thread; closing twice is allowed."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_end_tasks(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=_PATIENCE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
