"""The server of the viewer: nothing of a run without the token, nothing for another host, and tags for what has not changed."""

import json
from itertools import cycle

import pytest
from starlette.testclient import TestClient

from ramify.files.durable import locked_folder
from ramify.obs.trace import write_trees
from ramify.view.page import Bundle
from ramify.view.payload import RunView
from ramify.view.server import make_app
from viewed_runs import HOSTILE, two_calls, write_training

TOKEN = {"x-ramify-token": "right"}
DOORS = (
    "run",
    "index?source=trees/000001",
    "tree?source=trees/000001&row=0",
    "search?q=alert",
    "problem?id=p0",
)


@pytest.fixture
def folder(tmp_path):
    return write_training(tmp_path / "rl", {1: [two_calls(cycle(HOSTILE))]})


@pytest.fixture
def client(folder):
    app = make_app(RunView([folder]), Bundle("<p>page</p>", "script", "style"), "right")
    return TestClient(app, base_url="http://127.0.0.1:8123", raise_server_exceptions=False)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_needs_the_token(client, door):
    address = f"/api/{door}"
    for headers in (
        {},
        {"x-ramify-token": "wrong"},
        {"x-ramify-token": ""},
        {"x-ramify-token": "right\xe9".encode("latin-1")},
    ):
        answer = client.get(address, headers=headers)
        assert answer.status_code == 403
        assert "whole address" in answer.text
    assert client.get(f"{address}{'&' if '?' in address else '?'}token=right").status_code == 403
    answer = client.get(address, headers=TOKEN)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    json.loads(answer.content)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example:80", 403), ("192.168.1.2:8123", 403),
        ("", 403), ("0.0.0.0", 403), ("127.0.0.1@evil.example", 403), ("localhost", 200), ("localhost:9000", 200),
        ("127.0.0.1:1", 200), ("[::1]:9000", 200), ("[::1]", 200),
    ],
)  # fmt: skip
def test_other_names_of_the_host_are_refused(client, host, status):
    for address in ("/", "/bundle.js", "/api/run"):
        assert client.get(address, headers={"host": host, **TOKEN}).status_code == status


def test_every_answer_has_the_rules_of_the_page(client):
    answers = [
        client.get("/"),
        client.get("/bundle.js"),
        client.get("/api/run", headers=TOKEN),
        client.get("/api/run"),
        client.get("/nowhere"),
        client.get("/", headers={"host": "evil.example"}),
        client.post("/api/run", headers=TOKEN),
        client.options(
            "/api/run", headers={"origin": "https://evil.example", "access-control-request-method": "GET"}
        ),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 403, 404, 403, 405, 403]
    for answer in answers:
        rules = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'" in rules
        assert "frame-ancestors 'none'" in rules
        assert "unsafe" not in rules
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("door", "status"),
    [
        ("index", 404), ("index?source=..%2F..%2Fetc%2Fpasswd", 404), ("tree?source=trees/000001&row=1", 404),
        ("tree?source=trees/000001&row=-1", 404), ("tree?source=trees/000001&row=%C2%B2", 404),
        ("tree?source=trees/000001&row=" + "9" * 400, 404), ("search?q=" + "a" * 5000, 404),
        ("credit?source=trees/000001&row=0&algorithm=unknown", 422), ("problem?id=unknown", 200),
    ],
)  # fmt: skip
def test_a_wrong_question_gets_a_sentence(client, door, status):
    answer = client.get(f"/api/{door}", headers=TOKEN)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_what_has_not_changed_is_not_sent_again(client, folder):
    for address in ("/api/run", "/api/index?source=trees/000001"):
        first = client.get(address, headers=TOKEN)
        tag = {"if-none-match": first.headers["etag"]}
        again = client.get(address, headers=TOKEN | tag)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"]
    run = client.get("/api/run", headers=TOKEN)
    write_trees(folder / "trees" / "000002.jsonl", [two_calls(cycle(HOSTILE), step=1)])
    later = client.get("/api/run", headers=TOKEN | {"if-none-match": run.headers["etag"]})
    assert later.status_code == 200
    assert [source["step"] for source in later.json()["sources"]] == [1, 2]
    with locked_folder("run", folder):
        working = client.get("/api/run", headers=TOKEN | {"if-none-match": later.headers["etag"]})
    ended = client.get("/api/run", headers=TOKEN | {"if-none-match": working.headers["etag"]})
    assert [answer.json()["live"] for answer in (later, working, ended)] == [False, True, False]


def test_what_is_written_while_the_page_is_made_is_in_the_next_answer(folder):
    class AtWork(RunView):
        """A run whose last step ends just after its page was made."""

        def run(self):
            value = super().run()
            write_trees(folder / "trees" / "000002.jsonl", [two_calls(cycle(HOSTILE), step=1)])
            return value

    app = make_app(AtWork([folder]), Bundle("<p>page</p>", "script", "style"), "right")
    client = TestClient(app, base_url="http://127.0.0.1:8123", raise_server_exceptions=False)
    first = client.get("/api/run", headers=TOKEN)
    assert [source["step"] for source in first.json()["sources"]] == [1]
    later = client.get("/api/run", headers=TOKEN | {"if-none-match": first.headers["etag"]})
    assert [source["step"] for source in later.json()["sources"]] == [1, 2]
