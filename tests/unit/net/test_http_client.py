import asyncio
import gzip
import socket
import struct
import threading
import time
from dataclasses import replace
from email.utils import formatdate
from ipaddress import ip_network

import pytest
from http_scripts import FAST, Clock, drip, failure, get, run, script

from loopback import Reply, as_json, refusing
from ramify.core.errors import ServiceDownError
from ramify.net.addresses import GuardedTransport
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.exchange import Answer
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import read_key

pytestmark = pytest.mark.integration


def test_get_sends_parameters_and_headers_and_gives_the_answer() -> None:
    with script(as_json({"a": "é"})) as server:
        url = f"{server.url}/x?k=1"
        answer = run(FAST, lambda client: client.get(url, params={"q": "a b&c"}, headers={"X-Key": "v"}))
    assert isinstance(answer, Answer)
    assert (answer.status, answer.content_type, answer.json()) == (200, "application/json", {"a": "é"})
    assert server.requests[0].path == "/x?k=1&q=a+b%26c"
    assert server.requests[0].headers["x-key"] == "v"


@pytest.mark.parametrize(
    "query",
    ["q=%C4%E3%BA%C3", "download", "sig=a%2Bb%2f%3D&t=1+2&empty=", "a=b;c=d&a=~%7E", "u=http://x/?y=[1]"],
    ids=["GBK", "bare", "signed", "semicolon", "address"],
)
@pytest.mark.parametrize("guarded", [False, True])
def test_the_query_of_an_address_arrives_as_it_is_spelled(query: str, guarded: bool) -> None:
    transport = GuardedTransport([ip_network("127.0.0.0/8")]) if guarded else None
    with script(as_json(1)) as server:
        get(FAST, f"{server.url}/a%20b?{query}", transport=transport)
    assert server.requests[0].path == f"/a%20b?{query}"


def test_post_sends_json() -> None:
    with script(as_json([])) as server:
        run(FAST, lambda client: client.post_json(server.url, {"q": "日本 \ud800"}))
    assert server.requests[0].method == "POST"
    assert server.requests[0].json() == {"q": "日本 \ud800"}
    assert server.requests[0].headers["content-type"] == "application/json"


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
    assert len(server.requests) == 1
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
        pytest.raises(ServiceDownError, match=r"probe demands payment .*no credits left.*Top up") as caught,
    ):
        get(FAST, server.url, secrets=secrets)
    assert len(server.requests) == 1
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
    dates = [formatdate(time.time() + 19, usegmt=True), formatdate(time.time() - 60, usegmt=True)]
    with script(*(Reply(429, headers={"retry-after": date}) for date in dates), as_json(1)) as server:
        get(HttpSettings(), server.url, clock=clock, sleep=clock.sleep)
    assert 5 < clock.slept[0] <= 19
    assert clock.slept[1] == 0


def test_5xx_is_tried_again_with_waits_that_double() -> None:
    clock = Clock()
    with script(Reply(500), Reply(503), Reply(502), as_json("ok")) as server:
        answer = get(HttpSettings(attempts=4), server.url, clock=clock, sleep=clock.sleep)
    assert answer.json() == "ok"
    assert len(server.requests) == 4
    for number, waited in enumerate(clock.slept):
        assert 0.5 * 2**number <= waited <= 0.5 * 2**number + 0.5


def test_no_wait_is_longer_than_the_longest_with_its_chance_added() -> None:
    clock = Clock()
    with script(*9 * [Reply(500)]) as server:
        failure(HttpSettings(attempts=9), server.url, clock=clock, sleep=clock.sleep)
    assert 16.0 <= clock.slept[5] <= 16.5
    assert clock.slept[6:] == [20.0, 20.0]


def test_attempts_are_limited() -> None:
    with script(as_json({"message": "overloaded"}, 503)) as server:
        error = failure(FAST, f"{server.url}/search?token=abc")
    assert (error.kind, error.status, len(server.requests)) == (FailureKind.SERVER, 503, 3)
    assert "overloaded" in str(error)
    assert "token" not in str(error)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_other_4xx_are_not_tried_again(status: int) -> None:
    with script(as_json({"detail": "no such field"}, status)) as server:
        error = failure(FAST, server.url)
    assert (error.kind, error.status, len(server.requests)) == (FailureKind.CLIENT, status, 1)
    assert "no such field" in error.detail


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe\xfa", b"[" * 100_000, b"<html>hello</html>"])
def test_malformed_json_is_a_typed_failure(body: bytes) -> None:
    with script(Reply(200, body, {"content-type": "text/html"})) as server:
        answer = get(FAST, server.url)
    with pytest.raises(RequestFailedError) as caught:
        answer.json()
    assert caught.value.kind is FailureKind.MALFORMED
    assert "text/html" in caught.value.detail


def test_a_slow_drip_ends_at_the_deadline_of_the_whole_request() -> None:
    stopped = threading.Event()
    with script(Reply(write=drip(stopped))) as server:
        try:
            error = failure(replace(FAST, timeout_seconds=1.0, attempts=2), server.url)
        finally:
            stopped.set()
    assert error.kind is FailureKind.TIMEOUT
    assert len(server.requests) == 2


def test_a_closed_client_ends_its_requests_and_leaves_no_thread() -> None:
    async def use(client: HttpClient) -> None:
        pending = asyncio.ensure_future(client.get(server.url))
        await asyncio.sleep(0.3)
        await client.close()
        for request in (pending, client.get(server.url)):
            with pytest.raises(ServiceDownError, match="closed during the request"):
                await request
        assert "http probe" not in [thread.name for thread in threading.enumerate()]

    stopped = threading.Event()
    with script(Reply(write=drip(stopped))) as server:
        try:
            run(FAST, use)
        finally:
            stopped.set()


def test_a_refused_connection_is_a_typed_failure() -> None:
    with refusing() as url:
        error = failure(FAST, f"{url}/a")
    assert error.kind is FailureKind.CONNECTION
    assert "no connection" in error.detail


def test_a_reset_connection_is_tried_again() -> None:
    def reset(stream: object) -> None:
        stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # type: ignore[attr-defined]
        stream._sock.close()  # type: ignore[attr-defined]

    with script(Reply(write=reset), as_json("ok")) as server:
        assert get(FAST, server.url).json() == "ok"
    assert len(server.requests) == 2


def test_a_body_that_ends_early_is_a_typed_failure() -> None:
    cut = Reply(write=lambda stream: stream.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"))
    with script(cut) as server:
        assert failure(FAST, server.url).kind is FailureKind.CONNECTION


def test_gzip_is_read() -> None:
    with script(Reply(200, gzip.compress(b'{"a": 1}'), {"content-encoding": "gzip"})) as server:
        assert get(FAST, server.url).json() == {"a": 1}


EMPTY_BLOCKS = gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 500_000
"""Compressed data that never ends and holds nothing."""


@pytest.mark.parametrize(
    ("encoding", "body", "kind"),
    [
        ("gzip", gzip.compress(b"0" * 50_000_000), FailureKind.TOO_LARGE),
        ("gzip, gzip", gzip.compress(gzip.compress(b"0" * 10_000)), FailureKind.MALFORMED),
        ("br", b"abc", FailureKind.MALFORMED),
        ("gzip", b"this is not gzip", FailureKind.MALFORMED),
        ("gzip", gzip.compress(b"abc" * 1000)[:-20], FailureKind.MALFORMED),
        ("gzip", gzip.compress(b"abc") + b"0" * 100_000, FailureKind.MALFORMED),
        ("gzip", EMPTY_BLOCKS, FailureKind.TOO_LARGE),
        ("", b"x" * 2_000_001, FailureKind.TOO_LARGE),
    ],
    ids=["bomb", "nested", "unasked", "broken", "cut", "trailing", "empty", "large"],
)
def test_bodies_are_limited_after_decompression(encoding: str, body: bytes, kind: FailureKind) -> None:
    with script(Reply(200, body, {"content-encoding": encoding} if encoding else {})) as server:
        assert failure(FAST, server.url).kind is kind
    assert len(server.requests) == 1


def test_a_body_of_just_the_limit_is_taken() -> None:
    for headers, body in [({}, b"x" * 1000), ({"content-encoding": "gzip"}, gzip.compress(b"x" * 1000))]:
        with script(Reply(200, body, headers)) as server:
            assert len(get(replace(FAST, max_bytes=1000), server.url).body) == 1000


def test_a_redirect_is_not_followed() -> None:
    with script(Reply(302, headers={"location": "/elsewhere"})) as server:
        answer = get(FAST, server.url)
    assert (answer.status, answer.location, len(server.requests)) == (302, "/elsewhere", 1)
    with pytest.raises(RequestFailedError) as caught:
        answer.json()
    assert caught.value.kind is FailureKind.REDIRECTS


def test_cookies_are_not_kept() -> None:
    async def twice(client: HttpClient) -> None:
        await client.get(server.url)
        await client.get(server.url)

    with script(Reply(200, headers={"set-cookie": "id=1; Path=/"})) as server:
        run(FAST, twice)
    assert all("cookie" not in request.headers for request in server.requests)


@pytest.mark.parametrize(
    "url", ["ftp://host/a", "nothing", "http://[::1", "http://\ud800/", "http://127.0.0.1:99999/"]
)
def test_what_is_no_address_is_a_typed_failure(url: str) -> None:
    assert failure(FAST, url).kind in (FailureKind.CLIENT, FailureKind.FORBIDDEN)
