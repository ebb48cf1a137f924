"""Budget, breaker and pace of the HTTP client, and whom it asks through."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_network

import pytest
from http_scripts import FAST, Clock, drip, get, run, script

from loopback import HttpRequest, Reply, as_json, serve
from ramify.core.errors import MachineError, ServiceDownError
from ramify.net.addresses import GuardedTransport
from ramify.net.client import HttpClient
from ramify.net.failures import RequestFailedError
from ramify.net.limits import Pace

pytestmark = pytest.mark.integration


def test_the_budget_counts_every_attempt() -> None:
    async def ask(client: HttpClient) -> int:
        assert (await client.get(server.url)).json() == "ok"
        with pytest.raises(ServiceDownError, match="budget of 3 requests is spent"):
            await client.get(server.url)
        return client.requests

    with script(Reply(500), as_json("ok"), Reply(500)) as server:
        assert run(replace(FAST, max_requests=3), ask) == 3
    assert len(server.requests) == 3


def test_the_budget_holds_for_requests_at_one_time() -> None:
    async def ask(client: HttpClient) -> Sequence[object]:
        return await asyncio.gather(*(client.get(server.url) for _ in range(40)), return_exceptions=True)

    with script(as_json(1)) as server:
        results = run(replace(FAST, max_requests=10), ask)
    assert len(server.requests) == 10
    assert isinstance(results, list)
    assert sum(isinstance(result, ServiceDownError) for result in results) == 30


def test_the_breaker_opens_after_failed_requests_in_a_row_and_a_success_closes_it() -> None:
    clock = Clock()
    settings = replace(FAST, attempts=1, failures_to_open=3)

    async def ask(client: HttpClient) -> None:
        for _ in range(2):
            with pytest.raises(RequestFailedError):
                await client.get(server.url)
        assert (await client.get(server.url)).status == 200
        for _ in range(3):
            with pytest.raises(RequestFailedError):
                await client.get(server.url)
        with pytest.raises(ServiceDownError, match=r"probe is down: 3 requests in a row.*HTTP 500"):
            await client.get(server.url)
        assert client.requests == 6
        clock.now += settings.max_backoff_seconds
        assert (await client.get(server.url)).status == 200
        assert (await client.get(server.url)).status == 200

    bad, good = Reply(500), as_json(1)
    with script(bad, bad, good, bad, bad, bad, good) as server:
        run(settings, ask, clock=clock, sleep=clock.sleep)


def test_an_open_breaker_lets_one_trial_through_at_a_time() -> None:
    clock = Clock()

    async def ask(client: HttpClient) -> None:
        with pytest.raises(RequestFailedError):
            await client.get(server.url)
        clock.now += 1.0
        results = await asyncio.gather(*(client.get(server.url) for _ in range(5)), return_exceptions=True)
        assert (
            sorted(type(result).__name__ for result in results)
            == ["RequestFailedError"] + ["ServiceDownError"] * 4
        )

    with script(Reply(500)) as server:
        run(replace(FAST, attempts=1, failures_to_open=1), ask, clock=clock, sleep=clock.sleep)
    assert len(server.requests) == 2


@pytest.mark.parametrize("cut", [Reply(400), Reply(413), Reply(422), Reply(200, b"x" * 200), Reply(301)])
def test_failures_that_are_the_requests_own_do_not_count(cut: Reply) -> None:
    async def ask(client: HttpClient) -> None:
        for _ in range(6):
            with pytest.raises(RequestFailedError):
                (await client.get(server.url)).json()

    with script(cut) as server:
        run(replace(FAST, failures_to_open=2, max_bytes=100, max_backoff_seconds=60.0), ask)
    assert len(server.requests) == 6


def test_requests_that_fail_together_count_as_one_and_a_service_that_stays_down_is_found_down() -> None:
    together = threading.Barrier(16)

    def answer(_: HttpRequest) -> Reply:
        if len(server.requests) <= 16:
            together.wait(30)
        return Reply(500)

    async def ask(client: HttpClient) -> None:
        failed = await asyncio.gather(*(client.get(server.url) for _ in range(16)), return_exceptions=True)
        assert {type(error) for error in failed} == {RequestFailedError}
        for _ in range(7):
            with pytest.raises(RequestFailedError):
                await client.get(server.url)
        with pytest.raises(ServiceDownError, match="probe is down: 8 requests in a row"):
            await client.get(server.url)

    with serve(answer) as server:
        run(replace(FAST, attempts=1, max_backoff_seconds=60.0), ask)
    assert len(server.requests) == 16 + 7


def _silent(stopped: threading.Event) -> Reply:
    return Reply(write=lambda _: stopped.wait(30))


async def _give_up(client: HttpClient, url: str, when: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(client.get(url))
    while not when():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_service_that_hangs_is_found_down_though_its_callers_give_up_before_the_last_attempt() -> None:
    stopped = threading.Event()

    async def ask(client: HttpClient) -> None:
        for number in range(3):
            await _give_up(client, server.url, lambda number=number: client.requests >= 2 * (number + 1))
        with pytest.raises(ServiceDownError, match=r"probe is down: 3 requests.*no whole answer"):
            await client.get(server.url)

    with script(_silent(stopped)) as server:
        try:
            settings = replace(FAST, timeout_seconds=0.5, failures_to_open=3)
            run(replace(settings, backoff_seconds=0.0, max_backoff_seconds=60.0), ask)
        finally:
            stopped.set()


@pytest.mark.parametrize(("seconds", "counts"), [(2.0, False), (2.6, True)])
def test_a_request_given_up_counts_after_half_of_its_time(seconds: float, counts: bool) -> None:
    clock, stopped = Clock(), threading.Event()

    async def ask(client: HttpClient) -> None:
        for number in range(2):
            sent = len(server.requests)

            def late(sent: int = sent, ends: float = (number + 1) * seconds) -> bool:
                if len(server.requests) > sent:
                    clock.now = ends
                return len(server.requests) > sent

            await _give_up(client, server.url, late)
        if counts:
            with pytest.raises(ServiceDownError, match="no answer within 3 s, when its caller gave up"):
                await client.get(server.url)
        else:
            assert (await client.get(server.url)).status == 200

    with script(_silent(stopped), _silent(stopped), as_json(1)) as server:
        try:
            settings = replace(FAST, timeout_seconds=5.0, failures_to_open=2, max_backoff_seconds=60.0)
            run(settings, ask, clock=clock, sleep=clock.sleep)
        finally:
            stopped.set()


def test_malformed_answers_open_the_breaker_too() -> None:
    async def ask(client: HttpClient) -> None:
        for _ in range(3):
            answer = await client.get(server.url)
            with pytest.raises(RequestFailedError):
                answer.json()
        with pytest.raises(ServiceDownError, match="expected JSON"):
            await client.get(server.url)

    with script(Reply(200, b"<html>Sign in to the network</html>")) as server:
        run(replace(FAST, failures_to_open=3, max_backoff_seconds=60.0), ask)


def test_attempts_are_spaced_evenly() -> None:
    clock = Clock()
    starts: list[float] = []

    def answer(_: HttpRequest) -> Reply:
        starts.append(clock.now)
        return as_json(1)

    async def ask(client: HttpClient) -> None:
        for _ in range(5):
            await client.get(server.url)

    with serve(answer) as server:
        run(replace(FAST, requests_per_second=4.0), ask, clock=clock, sleep=clock.sleep)
    assert starts == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_attempts_at_one_time_are_limited() -> None:
    now = most = 0
    lock = threading.Lock()

    def answer(_: HttpRequest) -> Reply:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.02)
        with lock:
            now -= 1
        return as_json(1)

    async def ask(client: HttpClient) -> Sequence[object]:
        return await asyncio.gather(*(client.get(server.url) for _ in range(20)))

    with serve(answer) as server:
        run(replace(FAST, in_flight=3), ask)
    assert 1 <= most <= 3


def test_a_cancelled_request_frees_its_place() -> None:
    stopped = threading.Event()

    async def ask(client: HttpClient) -> object:
        task = asyncio.ensure_future(client.get(server.url))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await client.get(server.url)).json()

    with script(Reply(write=drip(stopped)), as_json("ok")) as server:
        try:
            assert run(replace(FAST, in_flight=1), ask) == "ok"
        finally:
            stopped.set()


ENDLESS = {
    "informational replies": (b"", b"HTTP/1.1 103\r\n\r\n" * 2000),
    "tiny chunks": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 2000),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_takes_long_to_read_does_not_keep_the_caller_s_loop(name: str) -> None:
    """In processor seconds of this thread, which the client's own reading would use up whole."""
    start, again = ENDLESS[name]

    def write(stream: object) -> None:
        stream.write(start)  # type: ignore[attr-defined]
        while True:
            stream.write(again)  # type: ignore[attr-defined]

    async def ask(client: HttpClient) -> float:
        before = time.thread_time()
        with pytest.raises(RequestFailedError, match=r"no whole answer within 0\.5 s"):
            await client.get(server.url)
        return time.thread_time() - before

    with serve(lambda _: Reply(write=write)) as server:
        used = run(replace(FAST, attempts=1, timeout_seconds=0.5), ask)
    assert isinstance(used, float)
    assert used < 0.1


@pytest.mark.parametrize("proxy", ["socks5://user:pass-word@127.0.0.1:1", "ftp://127.0.0.1:1", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(MachineError, match="environment variable ALL_PROXY names a proxy") as caught:
        HttpClient("probe", FAST)
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "culprit"),
    [
        ({"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "ftp://127.0.0.1:1"}, "http_proxy"),
        ({"Http_Proxy": "ftp://127.0.0.1:1"}, "Http_Proxy"),
    ],
)
def test_the_variable_that_counts_is_named_as_it_is_spelled(
    variables: dict[str, str], culprit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MachineError, match=f"environment variable {culprit} names a proxy"):
        HttpClient("probe", FAST)


def test_a_port_in_no_proxy_counts_and_a_failure_of_the_proxy_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with script(as_json("ok")) as server:
        with pytest.raises(RequestFailedError, match="no connection to the proxy"):
            get(FAST, server.url)
        monkeypatch.setenv("no_proxy", f"[::1],{server.url.removeprefix('http://')}")
        assert get(FAST, server.url).json() == "ok"
    with pytest.raises(RequestFailedError, match=r"http://\[::1\]:1/a: no connection \("):
        get(FAST, "http://[::1]:1/a")


def test_where_addresses_are_guarded_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "socks5://127.0.0.1:1")
    guarded = GuardedTransport([ip_network("127.0.0.0/8")])
    with script(as_json("ok")) as server:
        assert get(FAST, server.url, transport=guarded, many_hosts=True).json() == "ok"


class ManualClock:
    """Time that passes when a test lets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self.sleepers.append((self.now + seconds, woken))
        await woken.wait()

    async def until(self, now: float) -> None:
        await settle()
        self.now = now
        for end, woken in self.sleepers:
            if end <= now:
                woken.set()
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cancelled", [range(1, 9), range(2, 9), range(8)], ids=["waits", "queues", "first"])
def test_requests_that_are_cancelled_keep_no_place(cancelled: range) -> None:
    clock = ManualClock()
    starts: list[tuple[int, float]] = []

    async def ask(pace: Pace, number: int) -> None:
        await pace.wait()
        starts.append((number, clock.now))

    async def whole() -> None:
        pace = Pace(1.0, clock, clock.sleep)
        await pace.wait()
        tasks = [asyncio.ensure_future(ask(pace, number)) for number in range(10)]
        await settle()
        for number in cancelled:
            tasks[number].cancel()
        for second in range(1, 11):
            await clock.until(float(second))
        assert all(task.done() for task in tasks)

    asyncio.run(whole())
    left = [number for number in range(10) if number not in cancelled]
    assert starts == [(number, float(second)) for second, number in enumerate(left, 1)]
