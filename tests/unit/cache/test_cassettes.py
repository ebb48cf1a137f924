import asyncio
import json
import threading

import pytest
from cache_uses import asks, key, never

from loopback import Reply, serve
from ramify.cache.cassette import Cassette, CassetteMode, FailureForm
from ramify.core.errors import DataError, MachineError, ServiceDownError
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError

FORM = FailureForm(RequestFailedError, RequestFailedError.as_json, RequestFailedError.from_json)
RECORD, REPLAY, REPLAY_OR_FAIL = CassetteMode
HEADER = b'{"format":"ramify cassette","schema":1}\n'


def line(request, answer):
    entry = {"tool": "search", "provider": "p", "parameters": {}, "request": request, "answer": answer}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def entry(answer):
    """A line with an answer that is spelled as given."""
    return line("a", 1).replace(b'"answer":1', b'"answer":' + answer.encode())


def play(path, mode, use):
    async def whole():
        cassette = Cassette(path, mode, FORM)
        try:
            return await use(cassette)
        finally:
            await cassette.close()

    return asyncio.run(whole())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tapes" / "tape.jsonl"


@pytest.fixture
def recorded(path):
    async def use(cassette):
        assert await cassette.fetch(key("b"), asks(["second"])) == ["second"]
        assert await cassette.fetch(key("a"), asks([])) == []
        with pytest.raises(RequestFailedError):
            await cassette.fetch(key("c"), asks(RequestFailedError(FailureKind.SERVER, "HTTP 500", 500)))

    play(path, RECORD, use)
    return path


def test_a_recording_is_in_the_order_of_its_keys(recorded):
    lines = [json.loads(text) for text in recorded.read_bytes().splitlines()]
    assert lines[0] == json.loads(HEADER)
    assert [entry["request"] for entry in lines[1:]] == ["a", "b", "c"]
    assert lines[3]["failure"] == {"kind": "server", "detail": "HTTP 500", "status": 500}


@pytest.mark.parametrize("mode", [REPLAY, REPLAY_OR_FAIL])
def test_a_replay_asks_nothing_and_changes_nothing(recorded, mode):
    async def use(cassette):
        assert await cassette.fetch(key("a"), never) == []
        assert await cassette.fetch(key("b"), never) == ["second"]
        for _ in range(2):
            with pytest.raises(RequestFailedError) as caught:
                await cassette.fetch(key("c"), never)
            assert (caught.value.kind, caught.value.status) == (FailureKind.SERVER, 500)

    before = recorded.read_bytes()
    for _ in range(2):
        play(recorded, mode, use)
        assert recorded.read_bytes() == before


def test_the_order_of_asking_does_not_show(tmp_path):
    for order in ("abc", "cab"):
        play(tmp_path / order, RECORD, lambda cassette, order=order: asyncio.gather(
            *(cassette.fetch(key(name), asks(name)) for name in order)
        ))  # fmt: skip
    assert (tmp_path / "abc").read_bytes() == (tmp_path / "cab").read_bytes()


def test_recording_asks_again_what_an_earlier_run_recorded(recorded):
    async def use(cassette):
        assert await cassette.fetch(key("b"), asks(["new"])) == ["new"]
        assert await cassette.fetch(key("b"), never) == ["new"]

    play(recorded, RECORD, use)

    async def check(cassette):
        assert await cassette.fetch(key("b"), never) == ["new"]
        assert await cassette.fetch(key("a"), never) == []

    play(recorded, REPLAY_OR_FAIL, check)


def test_a_replay_adds_what_is_not_there(recorded):
    play(recorded, REPLAY, lambda cassette: cassette.fetch(key("aa"), asks("new")))
    requests = [json.loads(text)["request"] for text in recorded.read_bytes().splitlines()[1:]]
    assert requests == ["a", "aa", "b", "c"]


def test_where_nothing_may_be_asked_a_missing_request_is_named(recorded):
    async def use(cassette):
        with pytest.raises(ServiceDownError, match="no answer to search of p for 'missing one'"):
            await cassette.fetch(key("missing one"), never)

    play(recorded, REPLAY_OR_FAIL, use)


def test_where_nothing_may_be_asked_the_file_must_be_there(path):
    with pytest.raises(DataError, match="does not exist; record one first"):
        Cassette(path, REPLAY_OR_FAIL, FORM)


@pytest.mark.parametrize("mode", [REPLAY, REPLAY_OR_FAIL])
def test_a_cut_last_line_is_left_out(recorded, mode):
    whole = recorded.read_bytes()
    recorded.write_bytes(whole + line("cut", "x")[:-20])
    play(recorded, mode, lambda cassette: cassette.fetch(key("b"), never))
    if mode is REPLAY:
        assert recorded.read_bytes() == whole


def test_what_a_killed_recording_left_is_read(path):
    path.parent.mkdir()
    path.write_bytes(HEADER + line("z", 1) + line("a", 2) + line("z", 3) + line("b", 4)[:-1])

    async def use(cassette):
        assert await cassette.fetch(key("z"), never) == 3
        assert await cassette.fetch(key("a"), never) == 2

    play(path, REPLAY_OR_FAIL, use)
    play(path, REPLAY, use)
    assert path.read_bytes() == HEADER + line("a", 2) + line("z", 3)


def test_answers_are_in_the_file_as_soon_as_they_are_there(path):
    async def use(cassette):
        await cassette.fetch(key("z"), asks(1))
        await cassette.fetch(key("a"), asks(2))
        assert path.read_bytes() == HEADER + line("z", 1) + line("a", 2)

    play(path, RECORD, use)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\nthere\n", "is no cassette"),
        (b"hello", "is no cassette"),
        (b'{"query": "Page 1: x"}', "is no cassette"),
        (b"[1]\n", "is no cassette"),
        (b'{"format":"ramify cassette","schema":2}\n', "schema 2, this ramify reads 1"),
        (HEADER + b"not json\n" + line("a", 1), "line 2: expected"),
        (HEADER + line("a", 1) + b'{"tool": "search"}\n', "line 3: expected"),
        (HEADER + b"[]\n", "line 2: expected"),
        (HEADER + b"\xff\n", "line 2: expected"),
        (HEADER + entry("[" * 100_000 + "]" * 100_000), "line 2: expected"),
        (HEADER + entry("[" * 900 + "]" * 900), "line 2: expected"),
        (HEADER + entry("9" * 5000), "line 2: expected"),
        (HEADER + entry("NaN"), "line 2: expected"),
        (HEADER + entry("-1e999"), "line 2: expected"),
        (
            b'{"format":"ramify cassette","schema":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
            "is no cassette",
        ),
    ],
)
@pytest.mark.parametrize("mode", CassetteMode)
def test_a_wrong_file_is_refused_and_left_alone(mode, content, message, tmp_path):
    path = tmp_path / "tape.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Cassette(path, mode, FORM)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "failure", [None, {"kind": "unknown", "detail": "", "status": 1}, {"kind": "server"}, [1]]
)
def test_a_broken_failure_is_named(failure, path):
    entry = {"tool": "search", "provider": "p", "parameters": {}, "request": "a", "failure": failure}
    path.parent.mkdir()
    path.write_bytes(HEADER + json.dumps(entry).encode() + b"\n")

    async def use(cassette):
        with pytest.raises(DataError, match="failure of 'a' is broken"):
            await cassette.fetch(key("a"), never)

    play(path, REPLAY_OR_FAIL, use)


def test_one_run_records_at_a_time(recorded):
    async def use(_):
        with pytest.raises(MachineError, match="another run"):
            Cassette(recorded, REPLAY, FORM)
        reader = Cassette(recorded, REPLAY_OR_FAIL, FORM)
        assert await reader.fetch(key("b"), never) == ["second"]
        await reader.close()

    play(recorded, RECORD, use)
    play(recorded, REPLAY, lambda cassette: cassette.fetch(key("b"), never))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        Cassette(tmp_path / "file" / "tape.jsonl", RECORD, FORM)


@pytest.mark.integration
def test_what_fails_because_its_client_is_closed_is_not_recorded(path):
    """A caller gives up, the provider's client is closed, and then the cassette, as a toolbox closes them."""
    stopped = threading.Event()

    async def whole(url, asked):
        client = HttpClient("probe", HttpSettings(attempts=1))
        cassette = Cassette(path, RECORD, FORM)

        async def make():
            return (await client.get(url)).json()

        task = asyncio.ensure_future(cassette.fetch(key("hangs"), make))
        while not asked:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await client.close()
        for _ in range(20):
            await asyncio.sleep(0.005)
        await cassette.close()

    with serve(lambda _: Reply(write=lambda _: stopped.wait(30))) as server:
        try:
            asyncio.run(whole(server.url, server.asked))
        finally:
            stopped.set()
    assert path.read_bytes() == HEADER


def test_what_fails_while_the_cassette_closes_is_not_recorded(path):
    async def turns_into_a_failure():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RequestFailedError(FailureKind.TIMEOUT, "cancelled") from None

    async def use(cassette):
        waiting = asyncio.ensure_future(cassette.fetch(key(), turns_into_a_failure))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cassette.close()
        with pytest.raises(RequestFailedError):
            await waiting

    play(path, RECORD, use)
    assert path.read_bytes() == HEADER
