"""Several servers of one service: who gets a request, what happens to those of a server that dies, and when it is tried again."""

import asyncio
import itertools
import threading

import pytest
from http_scripts import FAST, Clock, run

from loopback import Reply, as_json, refusing, serve
from ramify.core.errors import ConfigError, ServiceDownError
from ramify.net.client import HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.servers import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Servers

DOWN = RequestFailedError(FailureKind.CONNECTION, "gone")
TWO = ("http://a/v1/", "http://b/v1")


def choose(servers, preferred=None):
    with servers.chosen(preferred) as server:
        return server.url


def test_requests_go_where_fewest_are_in_flight_and_prefer_the_server_that_has_their_beginning():
    servers = Servers(TWO)
    with servers.chosen(None) as first, servers.chosen(None) as second:
        assert [first.url, second.url] == ["http://a/v1", "http://b/v1"]
    assert [choose(servers, number) for number in (0, 1, 2, 3)] == ["http://a/v1", "http://b/v1"] * 2
    servers.all[1].in_flight = 5
    assert choose(servers, 1) == "http://a/v1"


def test_a_server_that_fails_is_left_out_and_tried_again_by_one_request_after_a_pause_that_doubles():
    clock, notes = Clock(), []
    servers = Servers(TWO, note=notes.append, clock=clock)
    first, _ = servers.all
    pause = FIRST_PAUSE_SECONDS
    for _ in range(8):
        servers.failed(first, DOWN, first.failures)
        assert {choose(servers, 0) for _ in range(3)} == {"http://b/v1"}
        clock.now += pause
        assert [choose(servers) for _ in range(3)] == ["http://a/v1", "http://b/v1", "http://b/v1"]
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    servers.succeeded(first)
    assert choose(servers, 0) == "http://a/v1"
    assert [line.partition(" ")[0] for line in notes] == ["http://a/v1", "http://a/v1"]
    assert "gone" in notes[0]


def test_a_server_that_asks_for_time_gets_it_and_when_all_are_out_the_first_to_return_is_asked():
    clock = Clock()
    servers = Servers(TWO, clock=clock)
    first, second = servers.all
    servers.failed(first, RequestFailedError(FailureKind.TOO_MANY, "busy", 429, retry_after=300.0), 0)
    servers.failed(second, DOWN, 0)
    assert not servers.any_up
    assert choose(servers, 0) == "http://b/v1"
    clock.now = 299.0
    servers.succeeded(second)
    assert choose(servers, 0) == "http://b/v1"
    clock.now = 301.0
    assert choose(servers) == "http://a/v1"


def echo(name):
    return lambda request: as_json({"server": name, "number": request.json()["number"]})


async def ask_all(client, servers, count):
    answers = await asyncio.gather(
        *(client.post_json_to(servers, "/x", {"number": n}, preferred=n) for n in range(count))
    )
    return [answer.json() for answer in answers]


def test_what_a_dying_server_had_goes_to_the_other_at_once_and_nothing_is_lost_or_doubled():
    """It cuts the connections of the requests that it has, and refuses further ones."""
    cut, numbers = threading.Event(), itertools.count(1)

    def dying(request):
        number = next(numbers)
        if number > 3:
            cut.set()
        return Reply(write=lambda stream: cut.wait(5)) if number > 1 else echo("a")(request)

    clock = Clock()
    with serve(echo("b")) as healthy:
        with serve(dying) as failing:
            servers = Servers((failing.url, healthy.url))
            use = lambda client: ask_all(client, servers, 20)  # noqa: E731
            answers = run(FAST, use, sleep=clock.sleep)
        answers += run(FAST, use, sleep=clock.sleep)
    assert [answer["number"] for answer in answers] == [*range(20), *range(20)]
    assert {answer["server"] for answer in answers[20:]} == {"b"}
    assert {answer["server"] for answer in answers[:20]} == {"a", "b"}
    answered = [request.json()["number"] for request in healthy.requests]
    assert len(answered) + [answer["server"] for answer in answers].count("a") == 40
    # While another server is up, nobody waits.
    assert sum(clock.slept) == 0
    # The requests that it had failed together: that is one failure, not one for each.
    assert servers.all[0].failures < 4


def test_one_attempt_is_enough_to_reach_the_server_that_is_up_and_none_ends_in_words():
    once = HttpSettings(attempts=1, backoff_seconds=0.01, failures_to_open=2)
    with refusing() as gone, serve(echo("c")) as healthy:
        servers = Servers((gone, healthy.url))
        assert run(once, lambda client: ask_all(client, servers, 4))[3] == {"server": "c", "number": 3}
        with pytest.raises((RequestFailedError, ServiceDownError), match=r"127\.0\.0\.1"):
            run(once, lambda client: ask_all(client, Servers((gone, f"{gone}/v1")), 1))


def test_a_server_is_looked_at_before_its_first_request_and_again_when_it_comes_back():
    looked = []

    async def check(url, fetch):
        looked.append(url)
        if (await fetch(f"{url}/models", {"x": "y"})).json() != {"model": "right"}:
            raise ConfigError(f"{url} lies")

    state = {"model": "right", "status": 200}

    def answer(request):
        if request.method == "GET":
            assert request.headers["x"] == "y"
            return as_json({"model": state["model"]})
        return as_json({}, state["status"])

    async def use(client):
        servers = Servers(server.url, check=check)
        await client.check(servers)
        for _ in range(2):
            await client.post_json_to(servers, "/x", {})
        assert looked == [server.url]
        state.update(status=503, model="wrong")
        with pytest.raises(ConfigError, match="lies"):
            await client.post_json_to(servers, "/x", {})
        with pytest.raises(ConfigError, match="lies"):
            await client.check(Servers(server.url, check=check))

    with serve(answer) as server:
        run(FAST, use)
    assert len(looked) == 3
