import asyncio
import gzip
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate

import pytest

from loopback import Asked, Loopback, Reply, as_json, serve
from ramify.core.errors import MachineError, ServiceDownError
from ramify.net.addresses import GuardedTransport, parse_networks
from ramify.net.client import Answer, HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import read_key

FAST = HttpSettings(timeout_seconds=5.0, backoff_seconds=0.01, max_backoff_seconds=0.02)


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

    def answer(_: Asked) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    with serve(answer) as server:
        yield server


def test_get_sends_parameters_and_headers_and_gives_the_answer() -> None:
    with script(as_json({"a": "é"})) as server:
        url = f"{server.url}/x?k=1"
        answer = run(FAST, lambda client: client.get(url, params={"q": "a b&c"}, headers={"X-Key": "v"}))
    assert isinstance(answer, Answer)
    assert (answer.status, answer.content_type, answer.json()) == (200, "application/json", {"a": "é"})
    assert server.asked[0].path == "/x?k=1&q=a+b%26c"
    assert server.asked[0].headers["x-key"] == "v"


@pytest.mark.parametrize(
    "query",
    ["q=%C4%E3%BA%C3", "download", "sig=a%2Bb%2f%3D&t=1+2&empty=", "a=b;c=d&a=~%7E", "u=http://x/?y=[1]"],
    ids=["GBK", "bare", "signed", "semicolon", "address"],
)
@pytest.mark.parametrize("guarded", [False, True])
def test_the_query_of_an_address_arrives_as_it_is_spelled(query: str, guarded: bool) -> None:
    transport = GuardedTransport(parse_networks(["127.0.0.0/8"])) if guarded else None
    with script(as_json(1)) as server:
        get(FAST, f"{server.url}/a%20b?{query}", transport=transport)
    assert server.asked[0].path == f"/a%20b?{query}"


def test_post_sends_json() -> None:
    with script(as_json([])) as server:
        run(FAST, lambda client: client.post_json(server.url, {"q": "日本 \ud800"}))
    assert server.asked[0].method == "POST"
    assert server.asked[0].json() == {"q": "日本 \ud800"}
    assert server.asked[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_at_once_and_names_the_variable(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_TEST_KEY", "k-refused-1")
    with (
        script(as_json({"error": "bad key k-refused-1"}, status)) as server,
        pytest.raises(ServiceDownError, match="RAMIFY_TEST_KEY") as caught,
    ):
        get(FAST, server.url, secrets=[read_key("RAMIFY_TEST_KEY")])
    assert len(server.asked) == 1
    assert "k-refused-1" not in str(caught.value)
    assert "probe" in str(caught.value)


@pytest.mark.parametrize("has_key", [True, False])
def test_a_service_that_wants_to_be_paid_ends_the_run_at_once(
    has_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_TEST_KEY", "k-unpaid-1")
    secrets = [read_key("RAMIFY_TEST_KEY")] if has_key else []
    with (
        script(as_json({"error": "no credits left"}, 402)) as server,
        pytest.raises(ServiceDownError, match=r"probe wants to be paid .*no credits left.*top up") as caught,
    ):
        get(FAST, server.url, secrets=secrets)
    assert len(server.asked) == 1
    assert ("of the key in RAMIFY_TEST_KEY" in str(caught.value)) == has_key


@pytest.mark.parametrize("status", [401, 402, 403])
def test_where_many_hosts_are_asked_a_refusal_is_one_failed_request(status: int) -> None:
    with script(Reply(status)) as server:
        assert failure(FAST, server.url, many_hosts=True).kind is FailureKind.REFUSED


@pytest.mark.parametrize(
    ("value", "expected"),
    [("7", 7.0), ("900", 20.0), ("soon", None), ("", None)],
    ids=["s", "capped", "word", "none"],
)
def test_429_is_tried_again_after_what_the_service_asks_for(value: str, expected: float | None) -> None:
    clock = Clock()
    with script(Reply(429, headers={"retry-after": value}), as_json(1)) as server:
        answer = get(HttpSettings(), server.url, clock=clock, sleep=clock.sleep)
    assert answer.json() == 1
    assert len(clock.slept) == 1
    if expected is None:
        assert 0.5 <= clock.slept[0] <= 1.0
    else:
        assert clock.slept == [expected]


def test_retry_after_may_be_a_date() -> None:
    clock = Clock()
    dates = [formatdate(time.time() + 12, usegmt=True), formatdate(time.time() - 60, usegmt=True)]
    with script(*(Reply(429, headers={"retry-after": date}) for date in dates), as_json(1)) as server:
        get(HttpSettings(), server.url, clock=clock, sleep=clock.sleep)
    assert 5 < clock.slept[0] <= 12
    assert clock.slept[1] == 0


def test_5xx_is_tried_again_with_waits_that_double() -> None:
    clock = Clock()
    with script(Reply(500), Reply(503), Reply(502), as_json("ok")) as server:
        answer = get(HttpSettings(attempts=4), server.url, clock=clock, sleep=clock.sleep)
    assert answer.json() == "ok"
    assert len(server.asked) == 4
    for number, waited in enumerate(clock.slept):
        assert 0.5 * 2**number <= waited <= 0.5 * 2**number + 0.5


def test_attempts_are_limited() -> None:
    with script(as_json({"message": "overloaded"}, 503)) as server:
        error = failure(FAST, f"{server.url}/search?token=abc")
    assert (error.kind, error.status, len(server.asked)) == (FailureKind.SERVER, 503, 3)
    assert "overloaded" in str(error)
    assert "token" not in str(error)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_other_4xx_are_not_tried_again(status: int) -> None:
    with script(as_json({"detail": "no such field"}, status)) as server:
        error = failure(FAST, server.url)
    assert (error.kind, error.status, len(server.asked)) == (FailureKind.CLIENT, status, 1)
    assert "no such field" in error.detail


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe\xfa", b"[" * 100_000, b"<html>hello</html>"])
def test_malformed_json_is_a_typed_failure(body: bytes) -> None:
    with script(Reply(200, body, {"content-type": "text/html"})) as server:
        answer = get(FAST, server.url)
    with pytest.raises(RequestFailedError) as caught:
        answer.json()
    assert caught.value.kind is FailureKind.MALFORMED
    assert "text/html" in caught.value.detail


def _drip(stopped: threading.Event) -> Callable[[object], None]:
    def write(stream: object) -> None:
        stream.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")  # type: ignore[attr-defined]
        while not stopped.wait(0.02):
            stream.write(b"x")  # type: ignore[attr-defined]
            stream.flush()  # type: ignore[attr-defined]

    return write


def test_a_slow_drip_ends_at_the_deadline_of_the_whole_request() -> None:
    stopped = threading.Event()
    with script(Reply(write=_drip(stopped))) as server:
        try:
            error = failure(replace(FAST, timeout_seconds=0.3, attempts=2), server.url)
        finally:
            stopped.set()
    assert error.kind is FailureKind.TIMEOUT
    assert len(server.asked) == 2


def test_a_refused_connection_is_a_typed_failure() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = failure(FAST, f"http://127.0.0.1:{free.getsockname()[1]}/a")
    assert error.kind is FailureKind.CONNECTION
    assert "ConnectError" in error.detail


def test_a_reset_connection_is_tried_again() -> None:
    def reset(stream: object) -> None:
        stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # type: ignore[attr-defined]
        stream._sock.close()  # type: ignore[attr-defined]

    with script(Reply(write=reset), as_json("ok")) as server:
        assert get(FAST, server.url).json() == "ok"
    assert len(server.asked) == 2


def test_a_body_that_ends_early_is_a_typed_failure() -> None:
    cut = Reply(write=lambda stream: stream.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"))
    with script(cut) as server:
        assert failure(FAST, server.url).kind is FailureKind.CONNECTION


def test_gzip_is_read() -> None:
    with script(Reply(200, gzip.compress(b'{"a": 1}'), {"content-encoding": "gzip"})) as server:
        assert get(FAST, server.url).json() == {"a": 1}


@pytest.mark.parametrize(
    ("encoding", "body", "kind"),
    [
        ("gzip", gzip.compress(b"0" * 50_000_000), FailureKind.TOO_LARGE),
        ("gzip, gzip", gzip.compress(gzip.compress(b"0" * 10_000)), FailureKind.MALFORMED),
        ("br", b"abc", FailureKind.MALFORMED),
        ("gzip", b"this is not gzip", FailureKind.MALFORMED),
        ("gzip", gzip.compress(b"abc" * 1000)[:-20], FailureKind.MALFORMED),
        ("", b"x" * 2_000_001, FailureKind.TOO_LARGE),
    ],
    ids=["bomb", "nested", "unasked", "broken", "cut", "large"],
)
def test_bodies_are_limited_after_decompression(encoding: str, body: bytes, kind: FailureKind) -> None:
    with script(Reply(200, body, {"content-encoding": encoding} if encoding else {})) as server:
        assert failure(FAST, server.url).kind is kind
    assert len(server.asked) == 1


def test_a_body_of_just_the_limit_is_taken() -> None:
    for headers, body in [({}, b"x" * 1000), ({"content-encoding": "gzip"}, gzip.compress(b"x" * 1000))]:
        with script(Reply(200, body, headers)) as server:
            assert len(get(replace(FAST, max_bytes=1000), server.url).body) == 1000


def test_a_redirect_is_not_followed() -> None:
    with script(Reply(302, headers={"location": "/elsewhere"})) as server:
        answer = get(FAST, server.url)
    assert (answer.status, answer.location, len(server.asked)) == (302, "/elsewhere", 1)
    with pytest.raises(RequestFailedError) as caught:
        answer.json()
    assert caught.value.kind is FailureKind.REDIRECTS


def test_cookies_are_not_kept() -> None:
    async def twice(client: HttpClient) -> None:
        await client.get(server.url)
        await client.get(server.url)

    with script(Reply(200, headers={"set-cookie": "id=1; Path=/"})) as server:
        run(FAST, twice)
    assert all("cookie" not in asked.headers for asked in server.asked)


@pytest.mark.parametrize(
    "url", ["ftp://host/a", "nothing", "http://[::1", "http://\ud800/", "http://127.0.0.1:99999/"]
)
def test_what_is_no_address_is_a_typed_failure(url: str) -> None:
    assert failure(FAST, url).kind in (FailureKind.CLIENT, FailureKind.FORBIDDEN)


def test_the_budget_counts_every_attempt() -> None:
    async def ask(client: HttpClient) -> int:
        assert (await client.get(server.url)).json() == "ok"
        with pytest.raises(ServiceDownError, match="budget of 3 requests is spent"):
            await client.get(server.url)
        return client.requests

    with script(Reply(500), as_json("ok"), Reply(500)) as server:
        assert run(replace(FAST, max_requests=3), ask) == 3
    assert len(server.asked) == 3


def test_the_budget_holds_for_requests_at_one_time() -> None:
    async def ask(client: HttpClient) -> Sequence[object]:
        return await asyncio.gather(*(client.get(server.url) for _ in range(40)), return_exceptions=True)

    with script(as_json(1)) as server:
        results = run(replace(FAST, max_requests=10), ask)
    assert len(server.asked) == 10
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
    assert len(server.asked) == 2


@pytest.mark.parametrize("cut", [Reply(400), Reply(413), Reply(422), Reply(200, b"x" * 200), Reply(301)])
def test_failures_that_are_the_requests_own_do_not_count(cut: Reply) -> None:
    async def ask(client: HttpClient) -> None:
        for _ in range(6):
            with pytest.raises(RequestFailedError):
                (await client.get(server.url)).json()

    with script(cut) as server:
        run(replace(FAST, failures_to_open=2, max_bytes=100, max_backoff_seconds=60.0), ask)
    assert len(server.asked) == 6


def test_requests_that_fail_together_count_as_one_and_a_service_that_stays_down_is_found_down() -> None:
    together = threading.Barrier(16)

    def answer(_: Asked) -> Reply:
        if len(server.asked) <= 16:
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
    assert len(server.asked) == 16 + 7


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
            settings = replace(FAST, timeout_seconds=0.1, failures_to_open=3)
            run(replace(settings, backoff_seconds=0.0, max_backoff_seconds=60.0), ask)
        finally:
            stopped.set()


@pytest.mark.parametrize(("seconds", "counts"), [(2.0, False), (2.6, True)])
def test_a_request_given_up_counts_after_half_of_its_time(seconds: float, counts: bool) -> None:
    clock, stopped = Clock(), threading.Event()

    async def ask(client: HttpClient) -> None:
        for number in range(2):
            sent = len(server.asked)

            def late(sent: int = sent, ends: float = (number + 1) * seconds) -> bool:
                if len(server.asked) > sent:
                    clock.now = ends
                return len(server.asked) > sent

            await _give_up(client, server.url, late)
        if counts:
            with pytest.raises(ServiceDownError, match="no answer within 3 s, when its caller gave up"):
                await client.get(server.url)
        else:
            assert (await client.get(server.url)).status == 200

    with script(_silent(stopped), _silent(stopped), as_json(1)) as server:
        try:
            settings = replace(FAST, failures_to_open=2, max_backoff_seconds=60.0)
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

    def answer(_: Asked) -> Reply:
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

    def answer(_: Asked) -> Reply:
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
        while not server.asked:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await client.get(server.url)).json()

    with script(Reply(write=_drip(stopped)), as_json("ok")) as server:
        try:
            assert run(replace(FAST, in_flight=1), ask) == "ok"
        finally:
            stopped.set()


@pytest.mark.parametrize("proxy", ["socks5://user:pass-word@127.0.0.1:1", "ftp://127.0.0.1:1", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(MachineError, match="environment variable ALL_PROXY names a proxy") as caught:
        HttpClient("probe", FAST)
    assert "pass-word" not in str(caught.value)


def test_where_addresses_are_guarded_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "socks5://127.0.0.1:1")
    guarded = GuardedTransport(parse_networks(["127.0.0.0/8"]))
    with script(as_json("ok")) as server:
        assert get(FAST, server.url, transport=guarded, many_hosts=True).json() == "ok"
