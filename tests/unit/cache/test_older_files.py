"""Files of ramify before cassettes were caches: caches open, cassettes of JSON lines are imported."""

import json
import sqlite3

import pytest
from cache_uses import execute, fetch, key

from ramify.cache.database import read_groups
from ramify.cache.references import export_json, import_cassette
from ramify.cache.sqlite import CacheMode, SqliteCache
from ramify.cli import main
from ramify.core.errors import DataError
from ramify.core.protocols import CacheKey
from ramify.net.failures import FailureKind, RequestFailedError

SURROGATE = CacheKey("search", "serper", {"x": "\ud800", "b": [1, {"z": 1, "a": 2.5}]}, "a ü \ud800")
CACHE = r"""
CREATE TABLE answers (
    place INTEGER PRIMARY KEY,  -- the first 62 bits of the key: found faster than by all of it
    key BLOB NOT NULL,          -- SHA-256 of the canonical key
    tool TEXT NOT NULL,         -- these four are for people
    provider TEXT NOT NULL,
    parameters TEXT NOT NULL,   -- JSON
    request TEXT NOT NULL,      -- normalised
    answer TEXT NOT NULL,       -- JSON
    is_empty INTEGER NOT NULL,  -- 1: there was nothing to find
    made_at REAL NOT NULL       -- seconds since 1970
);
CREATE TABLE imported (         -- what an export gives back as it came
    position INTEGER PRIMARY KEY,
    spelled TEXT NOT NULL UNIQUE,
    place INTEGER NOT NULL,
    text TEXT                   -- NULL: the answer, formatted, is the text
);
INSERT INTO "answers" VALUES(349644513833176351,X'1368BF54D2C3347CEA35EBDD3B07C84974729F805A6466D9A46CB3E6CDCC23C1','search','serper','{"top_k":10}','b','["second"]',0,1.79563995775527691835e+09);
INSERT INTO "answers" VALUES(2100358830202506106,X'7497E4E95C4D2DEA55F6FC25C763FCAB46C54A51FAD2C5F1AEE94FF688C69E84','search','serper','{"b":[1,{"z":1,"a":2.5}],"x":"\ud800"}','a ü \ud800','[]',1,1.79563995775875377657e+09);
INSERT INTO "imported" VALUES(1,'B',349644513833176351,'Page 1: second  text');
PRAGMA application_id = 1382892409;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""
HEADER = b'{"format":"ramify cassette","schema":1}\n'
CASSETTE = HEADER + (
    rb"""{"tool":"search","provider":"serper","parameters":{"b":[1,{"a":2.5,"z":1}],"x":"\ud800"},"request":"a \u00fc \ud800","answer":[]}
{"tool":"search","provider":"serper","parameters":{"top_k":10},"request":"b","answer":["second"]}
{"tool":"search","provider":"serper","parameters":{},"request":"c","failure":{"kind":"server","detail":"HTTP 500","status":500}}
"""
)


@pytest.fixture
def cache(tmp_path):
    path = tmp_path / "cache.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(CACHE)
    connection.close()
    return path


@pytest.fixture(params=[b"\n", b"\r\n"], ids=["LF", "CRLF"])
def cassette(tmp_path, request):
    path = tmp_path / "it's a tape.jsonl"
    path.write_bytes(CASSETTE.replace(b"\n", request.param))
    return path


def line(request, answer):
    entry = {"tool": "search", "provider": "p", "parameters": {}, "request": request, "answer": answer}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def spelled(answer):
    """A line with an answer that is spelled as given."""
    return line("a", 1).replace(b'"answer":1', b'"answer":' + answer)


@pytest.mark.parametrize("mode", [CacheMode.CACHE, CacheMode.REPLAY, CacheMode.REPLAY_OR_FAIL])
def test_an_older_cache_is_hit_in_each_mode(cache, mode):
    execute(cache, "UPDATE answers SET made_at = 1e12 WHERE is_empty")
    known = CacheKey("search", "serper", {"top_k": 10}, "b")
    assert fetch(cache, known, SURROGATE, mode=mode) == [["second"], []]
    assert export_json(cache)[0] == 2
    assert json.loads(export_json(cache)[1])["B"] == "Page 1: second  text"


def test_a_cassette_is_imported_whole(cassette, tmp_path, capsys):
    path = tmp_path / "folder" / "tape.sqlite"
    assert main(["cache", "import", str(cassette), "--to", str(path)]) == 0
    assert "3 entries" in capsys.readouterr().out
    assert cassette.read_bytes().replace(b"\r\n", b"\n") == CASSETTE
    known = CacheKey("search", "serper", {"top_k": 10}, "b")
    assert fetch(path, known, SURROGATE, mode=CacheMode.REPLAY_OR_FAIL) == [["second"], []]
    with pytest.raises(RequestFailedError) as caught:
        fetch(path, CacheKey("search", "serper", {}, "c"), mode=CacheMode.REPLAY_OR_FAIL)
    assert (caught.value.kind, caught.value.detail, caught.value.status) == (
        FailureKind.SERVER,
        "HTTP 500",
        500,
    )
    assert main(["cache", "show", str(path)]) == 0
    assert "search serper: 0 answers, 0 of them empty, 1 failures, " in capsys.readouterr().out


@pytest.mark.parametrize("mode", CacheMode)
def test_a_cassette_that_is_not_imported_is_refused_with_the_command_that_does(cassette, mode, tmp_path):
    with pytest.raises(DataError) as caught:
        SqliteCache(cassette, mode=mode)
    quoted = "'" + str(cassette).replace("'", "'\"'\"'") + "'"
    assert f"`ramify cache import {quoted} --to NEW`" in str(caught.value)
    assert cassette.read_bytes().replace(b"\r\n", b"\n") == CASSETTE
    assert list(tmp_path.iterdir()) == [cassette]


def test_a_cassette_is_not_imported_over_itself(cassette, capsys):
    assert main(["cache", "import", str(cassette), "--to", str(cassette)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cassette.read_bytes().replace(b"\r\n", b"\n") == CASSETTE


@pytest.mark.parametrize("options", [["--provider", "serper"], ["-s", "top_k=5"]])
def test_a_cassette_names_its_providers(cassette, tmp_path, capsys, options):
    assert main(["cache", "import", str(cassette), "--to", str(tmp_path / "new"), *options]) == 2
    assert "Remove these options" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_what_a_killed_recording_left_is_imported(tmp_path):
    path = tmp_path / "tape.jsonl"
    path.write_bytes(HEADER + line("z", 1) + line("a", 2) + line("z", 3) + line("b", 4)[:-1])
    assert import_cassette(path, tmp_path / "new") == 2
    assert fetch(tmp_path / "new", key("z"), key("a"), mode=CacheMode.REPLAY_OR_FAIL) == [3, 2]
    assert read_groups(tmp_path / "new")[0].answers == 2


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"not json\n" + line("a", 1), 2),
        (line("a", 1) + b'{"tool": "search"}\n', 3),
        (b"[]\n", 2),
        (b"\xff\n", 2),
        (line("a", 1).replace(b'"parameters":{}', b'"parameters":[]'), 2),
        (line("a", 1).replace(b'"request":"a"', b'"request":1'), 2),
        (line("a", 1).replace(b'"answer":1', b'"answer":1,"failure":1'), 2),
        (spelled(b"[" * 100_000 + b"]" * 100_000), 2),
        (spelled(b"[" * 900 + b"]" * 900), 2),
        (spelled(b"9" * 5000), 2),
        (spelled(b"NaN"), 2),
        (spelled(b"-1e999"), 2),
    ],
    ids=range(12),
)
def test_a_broken_line_is_named_and_nothing_is_imported(content, number, tmp_path):
    path = tmp_path / "tape.jsonl"
    path.write_bytes(HEADER + content)
    with pytest.raises(DataError, match=rf"tape\.jsonl, line {number}: expected"):
        import_cassette(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
