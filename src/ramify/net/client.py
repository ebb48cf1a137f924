"""A client for one HTTP service: limits on time, size, rate and number of requests, retries, and a circuit breaker."""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from ramify.core.errors import ServiceDownError
from ramify.core.protocols import Json
from ramify.net.configs import HttpConfig
from ramify.net.connections import HttpTransport, NetworkThread, wait_for
from ramify.net.exchange import Answer, Params, Sink, build_request, exchange
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.limits import Breaker, Pace
from ramify.net.secrets import hide, names_of
from ramify.net.servers import Server, Servers
from ramify.net.wire import Request, Transport, without_query
from ramify.runtime.call_clock import queued, slot_of

_LOOK_SECONDS: Final = 30.0
"""Most time for a look at a server."""


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
    sink: Sink | None = None
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
            transport: Opens the connections: `GuardedTransport` checks addresses, `HttpTransport(..., uds=path)` connects
                to a Unix socket. None: `HttpTransport` with the proxies and certificates that the environment names.
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
        self._transport: Transport = transport or HttpTransport(settings.in_flight)
        self._thread = NetworkThread(f"http {name}")

    async def get(
        self, url: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a GET request; `params` are added to the query of `url`.

        Raises:
            RequestFailedError: This request failed.
            ServiceDownError: The service is down, refuses the key or demands payment, or the budget is spent.
        """
        return await self._ask(_PendingRequest(build_request("GET", url, params, headers, None)))

    async def download(self, url: str, sink: Sink, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a GET request and write the body of a 2xx to `sink`; the answer's own body is then empty.

        `timeout_seconds` limits the time to the answer's head, and then the time of each MiB, so that a large file may
        take long but a slow drip may not. Raises as `get` does, and whatever `sink` raises.
        """
        plain = {"accept-encoding": "identity", **(headers or {})}
        return await self._ask(_PendingRequest(build_request("GET", url, None, plain, None), sink))

    async def post_json(
        self, url: str, body: Json, *, headers: Mapping[str, str] | None = None, params: Params | None = None
    ) -> Answer:
        """Send a POST request; raises as `get` does."""
        content = json.dumps(body, allow_nan=False).encode()
        return await self._ask(_PendingRequest(build_request("POST", url, params, headers, content)))

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
        request = build_request("POST", servers.all[0].url + path, None, headers, content)
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
        """Try until an attempt succeeds, fails for good, or no attempt is left; the breaker counts a failure."""
        try:
            return await self._tries(pending)
        except RequestFailedError as failed:
            error = failed
        except asyncio.CancelledError:
            self._count_cancelled(pending)
            raise
        if error.kind is FailureKind.REFUSED and not self._many_hosts:
            raise ServiceDownError(self._refusal(error))
        if error.kind.is_services and pending.wave is not None:
            self._breaker.failed(pending.wave, str(error))
        raise error

    async def _tries(self, pending: _PendingRequest) -> Answer:
        failures, most = 0, self._settings.attempts + _others(pending)
        while True:
            try:
                return await self._attempt(pending)
            except RequestFailedError as error:
                failures += 1
                if failures == most or not error.kind.retriable:
                    raise
                seconds = self._wait(pending, error, failures)
            await self._sleep(seconds)

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
            answer = await self._exchange_with_a_server(pending)
            wave, old_count = pending.wave, self._breaker.succeeded()
            return replace(
                answer,
                _count_as_failed=lambda error: self._breaker.retract_success(old_count, wave, str(error)),
            )

    async def _exchange_with_a_server(self, pending: _PendingRequest) -> Answer:
        """Exchange with the address of the request, or with one of its servers."""
        if pending.servers is None:
            return await self._exchange(pending.request, pending.sink)
        # Chosen now, when the request has a slot: a server may have failed while it waited.
        with pending.servers.chosen(pending.preferred) as server:
            pending.server, pending.failures = server, server.failures
            pending.request = replace(pending.request, url=server.url + pending.path)
            await server.check(pending.servers.check, self._look)
            return await self._exchange(pending.request, pending.sink)

    async def _look(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Send one GET request at once, whatever the limits of requests are: it is part of another request's attempt."""
        request = build_request("GET", url, None, headers, None)
        return await self._exchange(request, None, _LOOK_SECONDS)

    async def _exchange(self, request: Request, sink: Sink | None, most: float = math.inf) -> Answer:
        """Exchange in the network thread, within `most` seconds."""
        closed = RequestFailedError(FailureKind.CONNECTION, f"{without_query(request.url)}: closed")
        if self._is_closed:  # else the network thread would start again, and nothing would end it
            raise closed
        seconds = min(self._settings.timeout_seconds, most)
        work = exchange(
            self._transport, request, seconds=seconds, max_bytes=self._settings.max_bytes, sink=sink
        )
        try:
            return await self._thread.run(work)
        except asyncio.CancelledError:
            # The thread cancels what still runs when it ends; the caller itself was not cancelled.
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                raise closed from None
            raise

    def _wait(self, pending: _PendingRequest, error: RequestFailedError, failures: int) -> float:
        """Return the seconds before the next attempt: as the service asks, else exponential backoff with jitter; capped."""
        if pending.servers is not None and pending.servers.any_up:
            return 0.0
        longest, first = self._settings.max_backoff_seconds, self._settings.backoff_seconds
        if error.retry_after is not None:
            return min(error.retry_after, longest)
        return min(first * 2.0 ** min(failures - 1, 60) + random.uniform(0, first), longest)

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
