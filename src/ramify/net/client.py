"""A client for one HTTP service: limits on time, size, rate and number of requests, retries, and a circuit breaker."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias
from urllib.parse import urlencode

import tenacity

from ramify.core.errors import ServiceDownError
from ramify.core.json_text import parse_json
from ramify.core.protocols import Json
from ramify.net.configs import HttpConfig
from ramify.net.connections import HttpxTransport, NetworkThread, wait_for
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.limits import Breaker, Pace, body_chunks, read_body
from ramify.net.secrets import hide, names_of, redact
from ramify.net.servers import Server, Servers
from ramify.net.wire import Request, Response, Transport, check_sendable, without_query
from ramify.runtime.call_clock import queued, slot_of

Params: TypeAlias = Mapping[str, str | int]
_HEADERS: Final = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "ramify"}
PART_BYTES: Final = 2**20
"""Bytes of a download that have to arrive within one `timeout_seconds`."""
_LOOK_SECONDS: Final = 30.0
"""Most time for a look at a server."""
_SHOWN = 160
"""Most characters of a service's own error text that a message quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings(HttpConfig):
    """Limits and retries for one service.

    Attributes:
        backoff_seconds: Wait before the second attempt. It doubles with each further attempt; random jitter of up to
            `backoff_seconds` is added.
        max_backoff_seconds: The longest wait, even if the service asks for a longer one.
        max_bytes: Limit for a decompressed body.
        failures_to_open: Failed requests in a row after which the service counts as down. Only failures of
            the service itself count: no answer or a cut one, HTTP 429 and 5xx, an answer that breaks its documentation.
            A request that its caller cancels counts too, if an attempt had failed or ran for at least half of
            `timeout_seconds`.
    """

    backoff_seconds: float = 0.5
    max_backoff_seconds: float = 20.0
    max_bytes: int = 2_000_000
    failures_to_open: int = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a service, with a status below 400 and a complete body.

    Attributes:
        status: 2xx or 3xx; the client never follows redirects.
        url: The requested address. It may contain a key, so messages show `where`.
        content_type: In lower case, with its parameters; "" if the service sent none.
        body: The decompressed body.
        location: The Location header of a 3xx, verbatim; else "".
    """

    status: int
    url: str = field(repr=False)
    content_type: str
    body: bytes = field(repr=False)
    location: str = field(default="", repr=False)
    # An answer that no client received has no breaker to inform.
    _count_as_failed: Callable[[RequestFailedError], None] = field(
        default=lambda _error: None, repr=False, compare=False
    )

    @property
    def where(self) -> str:
        """The address without its query, for messages."""
        return without_query(self.url)

    def json(self) -> Json:
        """Return the body as JSON.

        Raises:
            RequestFailedError: MALFORMED; REDIRECTS for a 3xx.
        """
        if self.status >= 300:
            detail = redact(f"{self.where} leads elsewhere (HTTP {self.status})")
            raise RequestFailedError(FailureKind.REDIRECTS, detail, self.status)
        try:
            read: Json = parse_json(self.body)
        except ValueError:
            raise self.malformed(f"expected JSON, found {self.content_type or 'no content type'}") from None
        return read

    def malformed(self, detail: str) -> RequestFailedError:
        """Return the error to raise when the answer breaks the service's documentation; the request then counts as failed."""
        error = RequestFailedError(FailureKind.MALFORMED, redact(f"{self.where}: {detail}"), self.status)
        self._count_as_failed(error)
        return error


class Sink(Protocol):
    """Receives a body that is too large for memory. Its methods run in the network thread."""

    max_bytes: int
    """Limit for the body of one attempt."""

    def headers(self) -> Mapping[str, str]:
        """Return further headers of the next attempt, such as the range of bytes that is still missing."""
        ...

    def begin(self, status: int) -> None:
        """Prepare for the body of an answer with this status, 2xx; bytes of an earlier attempt may be here."""
        ...

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        ...


@dataclass(slots=True)
class _PendingRequest:
    """A pending request.

    Attributes:
        request: The HTTP request.
        sink: Receives the body of a 2xx; None: it becomes the answer's body.
        wave: The number that `Breaker.admit` returned for the first attempt; None before that.
        failure: The reason why the last attempt failed; "" if none has failed.
        sent_at: Start of the current attempt; None between attempts.
        servers: The servers of which each attempt goes to one, if the service has several; None: `request` has the address.
        path: With `servers`: what follows the address of the server.
        preferred: With `servers`: see `Servers.chosen`.
        server: With `servers`: the server of the last attempt.
        failures: Those of this server when the attempt began.
    """

    request: Request
    sink: "Sink | None" = None
    wave: int | None = None
    failure: str = ""
    sent_at: float | None = None
    servers: Servers | None = None
    path: str = ""
    preferred: int | None = None
    server: Server | None = None
    failures: int = 0


class HttpClient:
    """A client of one service. Tasks of one event loop may share it.

    Attributes:
        name: Name of the service.
        key_hint: The environment variables that its keys were read from, for messages.
        requests: Number of attempts so far, including failed ones.
        retries: Those of the attempts that came after a failed one of the same request.
    """

    def __init__(
        self,
        name: str,
        settings: HttpSettings,
        *,
        secrets: Sequence[str] = (),
        transport: Transport | None = None,
        many_hosts: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Open no connection yet.

        Args:
            name: Name of the service, for messages.
            settings: Limits and retries.
            secrets: Keys that requests carry; they are redacted from every message.
            transport: Opens the connections: `GuardedTransport` checks addresses, `HttpxTransport(..., uds=path)` connects
                to a Unix socket. None: `HttpxTransport` with the proxies and certificates that the environment names.
            many_hosts: The client fetches pages from many hosts instead of asking one service. A refusal (HTTP 401 to
                403) then concerns one page, and the breaker never opens.
            clock: A monotonic clock, in seconds.
            sleep: Waits for a number of seconds.

        Raises:
            MachineError: The environment names a proxy that cannot be used.
        """
        hide(secrets)
        self.name = name
        self.key_hint = " or ".join(names_of(secrets))
        self._settings, self._many_hosts = settings, many_hosts
        self._clock, self._sleep = clock, sleep
        self._pace = Pace(settings.requests_per_second, clock, sleep)
        self.requests = self.retries = 0
        opens_after = None if many_hosts else settings.failures_to_open
        self._breaker = Breaker(name, opens_after, settings.max_backoff_seconds, clock)
        self._slots = asyncio.Semaphore(settings.in_flight)
        self._is_closed = False
        self._transport: Transport = transport or HttpxTransport(settings.in_flight)
        self._thread = NetworkThread(f"http {name}")

    async def get(
        self, url: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a GET request; `params` are added to the query of `url`.

        Raises:
            RequestFailedError: This request failed.
            ServiceDownError: The service is down, refuses the key or demands payment, or the budget is spent.
        """
        return await self._ask(_PendingRequest(_request("GET", url, params, headers, None)))

    async def download(self, url: str, sink: Sink, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a GET request and write the body of a 2xx to `sink`; the answer's own body is then empty.

        `timeout_seconds` limits the time to the answer's head, and then the time of each MiB, so that a large file may
        take long but a slow drip may not. Raises as `get` does, and whatever `sink` raises.
        """
        plain = {"accept-encoding": "identity", **(headers or {})}
        return await self._ask(_PendingRequest(_request("GET", url, None, plain, None), sink))

    async def post_json(
        self, url: str, body: Json, *, headers: Mapping[str, str] | None = None, params: Params | None = None
    ) -> Answer:
        """Send a POST request; raises as `get` does."""
        content = json.dumps(body, allow_nan=False).encode()
        return await self._ask(_PendingRequest(_request("POST", url, params, headers, content)))

    async def post_json_to(
        self,
        servers: Servers,
        path: str,
        body: Json,
        *,
        headers: Mapping[str, str] | None = None,
        preferred: int | None = None,
    ) -> Answer:
        """Send a POST request to one of several equal servers; what one of them fails at goes to another.

        Each server beyond the first adds an attempt. Only when all of them fail does an attempt wait. Raises as `get` does,
        and whatever the servers' check raises.

        Args:
            servers: The servers.
            path: Follows the address of the server.
            body: The body.
            headers: Further headers.
            preferred: See `Servers.chosen`.
        """
        content = json.dumps(body, allow_nan=False).encode()
        request = _request("POST", servers.all[0].url + path, None, headers, content)
        return await self._ask(_PendingRequest(request, servers=servers, path=path, preferred=preferred))

    async def check(self, servers: Servers) -> None:
        """Look at all servers; one that does not answer is left out for a while. Raises what their check raises to refuse one."""

        async def look(server: Server) -> None:
            try:
                await server.check(servers.check, self._look)
            except RequestFailedError as error:
                servers.failed(server, error, server.failures)

        outcomes = await asyncio.gather(*map(look, servers.all), return_exceptions=True)
        if (refusal := next((each for each in outcomes if each is not None), None)) is not None:
            raise refusal

    async def close(self) -> None:
        """Close all connections; closing twice is allowed. Pending requests end with ServiceDownError."""
        self._is_closed = True
        await self._thread.run(self._transport.close())
        await self._thread.close()

    async def _ask(self, pending: _PendingRequest) -> Answer:
        """Try until an attempt succeeds, fails for good, or no attempt is left."""
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._settings.attempts + _others(pending)),
            wait=self._wait,
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, RequestFailedError) and error.kind.retriable
            ),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            answer: Answer = await attempts(self._attempt, pending)
        except RequestFailedError as failed:
            error = failed
        except asyncio.CancelledError:
            self._count_cancelled(pending)
            raise
        else:
            return answer
        if error.kind is FailureKind.REFUSED and not self._many_hosts:
            raise ServiceDownError(self._refusal(error))
        if error.kind.is_services and pending.wave is not None:
            self._breaker.failed(pending.wave, str(error))
        raise error

    def _count_cancelled(self, pending: _PendingRequest) -> None:
        """Count a cancelled request as failed if the service had enough time: a service that hangs shows only like this."""
        waited = 0.0 if pending.sent_at is None else self._clock() - pending.sent_at
        if pending.wave is not None and (pending.failure or waited >= self._settings.timeout_seconds / 2):
            hung = f"{without_query(pending.request.url)}: no answer within {waited:.0f} s, when its caller gave up"
            self._breaker.failed(pending.wave, pending.failure or hung)
            if pending.sent_at is not None and pending.servers is not None and pending.server is not None:
                error = RequestFailedError(FailureKind.TIMEOUT, hung)
                pending.servers.failed(pending.server, error, pending.failures)

    async def _attempt(self, pending: _PendingRequest) -> Answer:
        """Make one attempt; record its failure in `pending`."""
        try:
            answer = await self._send(pending)
        except RequestFailedError as error:
            if self._is_closed:  # not the service's failure, so it is neither recorded nor counted
                raise ServiceDownError(f"{self.name}: the client was closed during the request") from None
            pending.failure, pending.sent_at = str(error), None
            if pending.servers is not None and pending.server is not None and error.kind.retriable:
                pending.servers.failed(pending.server, error, pending.failures)
            raise
        if pending.servers is not None and pending.server is not None:
            pending.servers.succeeded(pending.server)
        return answer

    async def _send(self, pending: _PendingRequest) -> Answer:
        """Send once, when a slot is free."""
        async with slot_of(self._slots):
            wave = self._breaker.admit()
            pending.wave = wave if pending.wave is None else pending.wave
            with queued():
                await self._pace.wait()
            most = self._settings.max_requests
            if most is not None and self.requests >= most:
                raise ServiceDownError(
                    f"{self.name}: the budget of {most} requests is spent. Raise max_requests or resume later."
                )
            self.requests += 1
            self.retries += bool(pending.failure)
            pending.sent_at = self._clock()
            try:
                answer = await self._exchange_with_a_server(pending)
            except TimeoutError:
                limit = f"{self._settings.timeout_seconds:g} s"
                detail = (
                    f"no whole answer within {limit}"
                    if pending.sink is None
                    else f"nothing more within {limit}"
                )
                error = (FailureKind.TIMEOUT, detail)
            except RuntimeError:  # httpx raises this if its client was closed
                if not self._is_closed:
                    raise
                error = (FailureKind.CONNECTION, "closed")
            else:
                wave, old_count = pending.wave, self._breaker.succeeded()
                return replace(
                    answer,
                    _count_as_failed=lambda error: self._breaker.retract_success(old_count, wave, str(error)),
                )
        raise RequestFailedError(error[0], f"{without_query(pending.request.url)}: {error[1]}")

    async def _exchange_with_a_server(self, pending: _PendingRequest) -> Answer:
        """Exchange with the address of the request, or with one of its servers."""
        if pending.servers is None:
            return await self._thread.run(self._exchange(pending.request, pending.sink))
        # Chosen now, when the request has a slot: a server may have failed while it waited.
        with pending.servers.chosen(pending.preferred) as server:
            pending.server, pending.failures = server, server.failures
            pending.request = replace(pending.request, url=server.url + pending.path)
            await server.check(pending.servers.check, self._look)
            return await self._thread.run(self._exchange(pending.request, pending.sink))

    async def _look(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Send one GET request at once, whatever the limits of requests are: it is part of another request's attempt."""
        try:
            async with asyncio.timeout(min(self._settings.timeout_seconds, _LOOK_SECONDS)):
                request = _request("GET", url, None, headers, None)
                return await self._thread.run(self._exchange(request, None))
        except TimeoutError:
            detail = f"{without_query(url)}: no answer within {_LOOK_SECONDS:g} s"
        raise RequestFailedError(FailureKind.TIMEOUT, detail)

    async def _exchange(self, request: Request, sink: Sink | None) -> Answer:
        """Send the request and read the response. Runs in the network thread; it uses only the transport of this client."""
        where, most = without_query(request.url), self._settings.max_bytes
        if sink is not None:
            request = replace(request, headers={**request.headers, **sink.headers()})
        async with asyncio.timeout(self._settings.timeout_seconds) as deadline:
            response = await self._transport.send(request)
            try:
                if response.status >= 400:
                    raise _failure(response, where, await _error_text(response, where))
                if sink is not None and response.status < 300:
                    body = b""
                    await self._fill(sink, response, where, deadline)
                else:
                    body = await read_body(response, where, most)
            finally:
                await response.close()
        return Answer(
            response.status,
            request.url,
            response.headers.get("content-type", "").lower(),
            body,
            response.headers.get("location", "") if response.status >= 300 else "",
        )

    async def _fill(self, sink: Sink, response: Response, where: str, deadline: asyncio.Timeout) -> None:
        """Write the body to `sink`; each part that arrives extends the deadline."""
        sink.begin(response.status)
        part = 0
        async for chunk in body_chunks(response, where, sink.max_bytes):
            sink.write(chunk)
            part += len(chunk)
            if part >= PART_BYTES:
                part = 0
                deadline.reschedule(asyncio.get_running_loop().time() + self._settings.timeout_seconds)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Return the seconds before the next attempt: as the service asks, else exponential backoff with jitter; capped."""
        error = state.outcome.exception() if state.outcome else None
        pending: _PendingRequest = state.args[0]
        if pending.servers is not None and pending.servers.any_up:
            return 0.0
        longest = self._settings.max_backoff_seconds
        if isinstance(error, RequestFailedError) and error.retry_after is not None:
            return min(error.retry_after, longest)
        first = self._settings.backoff_seconds
        doubled = tenacity.wait_exponential(multiplier=first, max=longest)(state)
        return min(doubled + tenacity.wait_random(0, first)(state), longest)

    def _refusal(self, error: RequestFailedError) -> str:
        if error.status == HTTPStatus.PAYMENT_REQUIRED:
            account = f" of the key in {self.key_hint}" if self.key_hint else ""
            return f"{self.name} demands payment ({error.detail}). Top up the account{account}, then resume."
        check = f"Check the environment variable {self.key_hint}." if self.key_hint else "It may need a key."
        return f"{self.name} refuses requests ({error.detail}). {check}"


def get_once(
    name: str, settings: HttpSettings, url: str, *, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one GET request and block until the answer is here: for callers that are not coroutines.

    Raises:
        RequestFailedError, ServiceDownError, MachineError: As `HttpClient` and its `get` do.
    """

    async def ask() -> Answer:
        client = HttpClient(name, settings, many_hosts=True)
        try:
            return await client.get(url, headers=headers)
        finally:
            await client.close()

    return wait_for(ask(), name)


def _others(pending: _PendingRequest) -> int:
    return 0 if pending.servers is None else len(pending.servers.all) - 1


def _request(
    method: str, url: str, params: Params | None, headers: Mapping[str, str] | None, body: bytes | None
) -> Request:
    check_sendable(url)
    if params:  # appended, since re-encoding the whole query breaks other encodings and signatures
        url, mark, fragment = url.partition("#")
        url = f"{url}{'&' if '?' in url else '?'}{urlencode(params)}{mark}{fragment}"
    typed = {"content-type": "application/json"} if body else {}
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    return Request(method=method, url=url, headers={**_HEADERS, **typed, **sent}, body=body)


def _failure(response: Response, where: str, text: str) -> RequestFailedError:
    status = response.status
    if status in (401, 402, 403):
        kind = FailureKind.REFUSED
    elif status == 429:
        kind = FailureKind.TOO_MANY
    else:
        kind = FailureKind.SERVER if status >= 500 else FailureKind.CLIENT
    detail = f": {text}" if text else ""
    code = response.headers.get("x-error-code", "")
    return RequestFailedError(
        kind, f"HTTP {status} from {where}{detail}", status, _retry_after(response), code
    )


async def _error_text(response: Response, where: str) -> str:
    """Return the beginning of the service's error text; "" for an HTML page."""
    if "html" in response.headers.get("content-type", "").lower():
        return ""
    try:
        body = await read_body(response, where, 20 * _SHOWN)
    except RequestFailedError:
        return ""
    # Redacted before it is cut: half a key would not be recognised.
    return " ".join(redact(body.decode(errors="replace")).split())[:_SHOWN]


def _retry_after(response: Response) -> float | None:
    """Return the Retry-After header (RFC 9110, 10.2.3) in seconds from now; None if it is neither a number nor an HTTP date."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
