"""Connections with aiohttp, the certificates that they trust, and a thread to read them in.

This is the only module that makes HTTP requests with a library. aiohttp's automatic features are off: no cookies, no
redirects, no second try, no decompression, no time limits, no keys from .netrc; they are the client's. Addresses are read
by httpx, which leaves a query as it is spelled.
"""

import asyncio
import functools
import os
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from aiohttp.http import HttpProcessingError
from yarl import URL

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


class HttpTransport:
    """Implements `ramify.net.wire.Transport` with aiohttp; it opens connections on demand."""

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
        self._in_flight, self._uds, self._keep_alive = in_flight, uds, keep_alive
        self._certificates = verify or trusted(by_environment=by_environment)
        self._proxies = _proxies() if by_environment and uds is None else {}
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def send(self, request: Request) -> Response:
        """Send a request; raises as `Transport.send` does."""
        where = without_query(request.url)
        if self._is_closed:
            raise RequestFailedError(FailureKind.CONNECTION, f"{where}: closed")
        if self._session is None:  # here, since it belongs to the event loop
            self._session = self._opened()
        try:
            url = httpx.URL(request.url)
            address = URL(str(url), encoded=True)
        except (httpx.InvalidURL, ValueError):
            raise RequestFailedError(FailureKind.CLIENT, f"{where}: no address that can be asked") from None
        headers, host = dict(request.headers), None
        if request.connect_to is not None:
            # The certificate is checked for the requested host, not for the address.
            headers["host"], host = url.netloc.decode("ascii"), url.raw_host.decode("ascii")
            address = address.with_host(request.connect_to)
        try:
            answer = await self._session.request(
                request.method,
                address,
                headers=headers,
                data=request.body,
                allow_redirects=False,
                proxy=self._proxy(url),
                server_hostname=host,
            )
        except _ERRORS as failed:
            error = _as_ours(failed, where)
        else:

            async def close() -> None:
                answer.close()

            return Response(answer.status, _headers(answer), _raw(answer, where), close)
        raise error

    async def close(self) -> None:
        """Close all connections; closing twice is allowed."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._uds is not None:
            connector = aiohttp.UnixConnector(
                str(self._uds), limit=self._in_flight, keepalive_timeout=_IDLE_SECONDS
            )
        else:
            connector = aiohttp.TCPConnector(
                limit=self._in_flight,
                ssl=self._certificates,
                resolver=aiohttp.ThreadedResolver(),
                keepalive_timeout=_IDLE_SECONDS if self._keep_alive else None,
                force_close=not self._keep_alive,
            )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            max_line_size=_FIELD_BYTES,
            max_field_size=_FIELD_BYTES,
            middlewares=(_sent_once,),
        )

    def _proxy(self, url: httpx.URL) -> URL | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        names = (
            url.host,
            url.netloc.decode("ascii"),
        )  # no_proxy may name a port, and IPv6 in brackets or without
        return None if proxy is None or any(map(proxy_bypass, names)) else proxy


_FIELD_BYTES: Final = 2**16
"""Longest header of an answer; there are at most 128."""
_IDLE_SECONDS: Final = 4.0
"""A connection that was idle for longer is not used again; uvicorn, and so vLLM, closes them after five."""


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise another error for a lost connection: aiohttp would send a GET a second time, which no budget counts."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from None


# ValueError: for headers that cannot be sent. RuntimeError: for a session that is closed during a request.
_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError, RuntimeError)


async def _raw(answer: aiohttp.ClientResponse, where: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
        return
    except _ERRORS as failed:
        error = _as_ours(failed, where)
    raise error


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the headers with their names in lower case; the values of equal names are joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in answer.raw_headers:
        name, value = raw_name.decode("latin-1").lower(), _text(raw_value)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _as_ours(error: Exception, where: str) -> RequestFailedError:
    """Return our error for one of aiohttp's. Do not chain it: aiohttp's can quote addresses and headers with keys."""
    if isinstance(error, aiohttp.ClientConnectorError):
        to_proxy = " to the proxy" if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
        return ConnectFailedError(
            FailureKind.CONNECTION, f"{where}: no connection{to_proxy} ({_one_line(error.os_error)})"
        )
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ConnectFailedError(FailureKind.CONNECTION, f"{where}: the proxy answers HTTP {error.status}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return RequestFailedError(FailureKind.CONNECTION, f"{where}: the answer ends too early")
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        detail = f"{where}: the request breaks HTTP's rules. Look at its headers."
        return RequestFailedError(FailureKind.CLIENT, detail)
    # Its text may quote what a server sent beside an address with a key.
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return RequestFailedError(FailureKind.CONNECTION, f"{where}: {type(error).__name__}: {_one_line(text)}")


def _one_line(text: object) -> str:
    return " ".join(redact(str(text)).split())[:_SHOWN]


def _proxies() -> dict[str, URL]:
    """Return the environment's proxies by the scheme of the addresses they are for, or "all".

    Raises:
        MachineError: One of them cannot be used.
    """
    proxies = {}
    for scheme, text in getproxies().items():
        if scheme not in ("http", "https", "all") or not text:
            continue
        try:
            proxies[scheme] = URL(text if "://" in text else f"http://{text}")
            usable = proxies[scheme].scheme in ("http", "https") and bool(proxies[scheme].host)
        except ValueError:
            usable = False
        if not usable:
            entry = f"{scheme}_proxy", text
            own = (name for name, value in os.environ.items() if (name.lower(), value) == entry)
            variable = next(own, f"{scheme}_proxy")  # else it is the machine's setting
            # The address is left out: it may contain the proxy's password.
            raise MachineError(
                f"the environment variable {variable} names a proxy that cannot be used. "
                "Set it to http://HOST:PORT or unset it."
            )
    return proxies


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
