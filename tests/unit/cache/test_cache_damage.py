"""Files that are no cache, that are damaged or full: each is named and left as it is."""

import sqlite3

import pytest
from cache_uses import asks, execute, key, never, run

from ramify.cache.database import read_groups
from ramify.cache.references import export_json
from ramify.cache.sqlite import SqliteCache
from ramify.core.errors import DataError, MachineError

WRONG_FILES = {
    "text": b"query,answer\n" * 500,
    "short": b"hello",
    "json": b'{"query": "Page 1: x"}',
    "cut header": b"SQLite format 3\x00" + b"\x00" * 10,
    "damaged": b"SQLite format 3\x00\x10\x00\x02\x02\x00\x40\x20\x20" + b"\xff" * 8192,
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_that_is_no_cache_is_refused_and_left_alone(name, tmp_path):
    path = tmp_path / "cache.sqlite"
    path.write_bytes(WRONG_FILES[name])
    with pytest.raises(DataError, match=r"cache\.sqlite.*Move it away"):
        SqliteCache(path)
    assert path.read_bytes() == WRONG_FILES[name]


def test_a_damaged_cache_is_refused_and_left_alone(path):
    async def fill(cache):
        for i in range(200):
            cache.remember(key(f"q{i}"), "x" * 500)

    run(fill, path)
    whole = path.read_bytes()
    broken = whole[:4096] + b"\xde\xad" * 2048 + whole[8192:]
    path.write_bytes(broken)
    with pytest.raises(DataError, match="is damaged"):
        SqliteCache(path)
    assert path.read_bytes() == broken


def test_damage_that_is_met_later_is_a_clear_stop(path):
    async def fill(cache):
        for i in range(500):
            cache.remember(key(f"q{i}"), "x" * 500)

    run(fill, path)
    whole = path.read_bytes()
    half = len(whole) // 8192 * 4096
    path.write_bytes(whole[:half] + b"\xde" * (len(whole) - half))

    async def read(cache):
        for i in range(500):
            await cache.fetch(key(f"q{i}"), asks("new"))

    with pytest.raises(DataError, match="is damaged"):
        run(read, path, say=lambda text: None)


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    execute(path, "CREATE TABLE t (a)")
    before = path.read_bytes()
    with pytest.raises(DataError, match="another program"):
        SqliteCache(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(path):
    run(lambda cache: cache.fetch(key(), asks(1)), path)
    execute(path, "PRAGMA user_version = 7")
    with pytest.raises(DataError, match="schema 7, this ramify reads 2"):
        SqliteCache(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be created"):
        SqliteCache(tmp_path / "file" / "cache.sqlite")
    with pytest.raises(MachineError, match="cannot be"):
        SqliteCache(tmp_path)


def test_a_full_disk_ends_the_remembering_and_not_the_run(path):
    notes = []

    async def use(cache):
        # The limit of pages stands for a full disk: SQLite says the same of both.
        cache._writer._connection.execute("PRAGMA max_page_count = 20")
        for i in range(200):
            assert await cache.fetch(key(f"q{i}"), asks(f"{i}" + "x" * 2000)) == f"{i}" + "x" * 2000
            await cache.flush()
        assert await cache.fetch(key("q199"), never) == "199" + "x" * 2000

    cache = run(use, path, say=notes.append)
    assert len(notes) == 1
    assert "full" in notes[0]
    (group,) = read_groups(path)
    assert group.answers + cache.forgotten == 200
    assert cache.forgotten > 100
    run(lambda cache: cache.fetch(key("q0"), never), path)


def test_claims_that_cannot_be_written_are_named(path):
    claims = path.with_name("cache.sqlite-claims")
    claims.mkdir(parents=True)
    with pytest.raises(MachineError, match=r"cache\.sqlite-claims beside it cannot be written"):
        SqliteCache(path)


HOSTILE = {
    "view": "DROP TABLE answers; CREATE VIEW answers AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS place, x'00' AS key, 't' AS tool, 'p' AS provider, '{}' AS parameters, 'q' AS request, '1' AS answer, "
    "0 AS is_empty, 0.0 AS made_at FROM n WHERE i < 0",
    "view of the other name": "DROP TABLE imported; CREATE VIEW imported AS SELECT 1 AS position, 's' AS spelled, 1 AS place, 't' AS text",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
    "index of an expression": "CREATE INDEX i ON answers (abs(made_at))",
    "another column": "ALTER TABLE answers ADD COLUMN more AS (zeroblob(100000000))",
    "virtual table": "CREATE VIRTUAL TABLE v USING fts5 (text)",
    "table": "CREATE TABLE more (x)",
    "nothing": "DROP TABLE imported",
}


@pytest.mark.parametrize("statements", HOSTILE.values(), ids=HOSTILE)
def test_a_file_with_more_or_less_than_the_tables_is_refused_before_it_is_asked(statements, path):
    run(lambda cache: cache.fetch(key(), asks(1)), path)
    with sqlite3.connect(path) as other:
        other.executescript(statements)
    other.close()
    for opens in (SqliteCache, read_groups):
        with pytest.raises(DataError, match="not part of a cache"):
            opens(path)


@pytest.mark.parametrize("made_at", ["'then'", "x'00'"])
def test_a_time_that_is_none_is_named(made_at, path):
    run(lambda cache: cache.fetch(key(), asks(1)), path)
    execute(path, f"UPDATE answers SET made_at = {made_at}")
    with pytest.raises(DataError, match="its time no number"):
        run(lambda cache: cache.fetch(key(), never), path)
    assert read_groups(path)[0].oldest == 0.0


BROKEN = ["{", "9" * 5000, "", "[" * 100_000, "NaN", "-1e999", b"blob"]


@pytest.mark.parametrize("answer", BROKEN, ids=["cut", "digits", "empty", "deep", "nan", "infinite", "blob"])
def test_an_answer_that_is_no_json_is_named_with_what_removes_it(path, answer):
    run(lambda cache: cache.fetch(key(), asks("first")), path)
    execute(path, "UPDATE answers SET answer = ?", answer)
    with pytest.raises(DataError, match=r"cache\.sqlite: the answer at place \d+ is no JSON") as caught:
        run(lambda cache: cache.fetch(key(), never), path)
    with pytest.raises(DataError, match="is no JSON"):
        export_json(path)
    command, statement = str(caught.value).partition("sqlite3 ")[2].split('"')[:2]
    assert command.strip() == str(path)
    execute(path, statement)
    run(lambda cache: cache.fetch(key(), asks("second")), path)
    run(lambda cache: cache.fetch(key(), never), path)
