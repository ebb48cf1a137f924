"""The thread that writes goes on, whatever one batch meets."""

import time
from concurrent.futures import Future

import pytest

from ramify.cache.database import ANSWER, Entry, Row, connect
from ramify.cache.keys import digest
from ramify.cache.writer import Memory, Writer
from ramify.core.protocols import CacheKey


def row(request, parameters):
    key = CacheKey("search", "p", {}, request)
    spoilt = CacheKey("search", "p", parameters, request)
    return Row(spoilt, digest(key), "1", Entry(1, time.time(), ANSWER, 1))


def requests(path):
    return connect(path).execute("SELECT request FROM answers ORDER BY request").fetchall()


def test_a_batch_that_cannot_be_written_is_forgotten_and_the_next_is_written(tmp_path):
    errors = []
    writer = Writer(tmp_path / "cache.sqlite", errors.append, alone=False)
    for _ in range(2):
        written = Future()
        writer.put(row("a", {"no": {"JSON"}}), written)
        with pytest.raises(TypeError):
            written.result()
    assert (writer.forgotten, len(errors), writer.unwritten) == (2, 1, {})
    assert "not JSON serializable" in str(errors[0])
    writer.put(row("b", {}))
    writer.close()
    writer.close()
    assert requests(tmp_path / "cache.sqlite") == [("b",)]
    assert writer.forgotten == 2


def test_a_row_is_unwritten_until_it_is_in_the_file(tmp_path):
    writer = Writer(tmp_path / "cache.sqlite", lambda _: None, alone=False)
    other = connect(tmp_path / "cache.sqlite")
    other.execute("BEGIN IMMEDIATE")
    waiting = [Future() for _ in range(2500)]
    for i, written in enumerate(waiting):
        writer.put(row(f"{i}", {}), written)
    assert len(writer.unwritten) == 2500
    assert not any(written.done() for written in waiting)
    other.execute("COMMIT")
    for written in waiting:
        written.result()
    assert writer.unwritten == {}
    assert len(requests(tmp_path / "cache.sqlite")) == 2500
    writer.close()


def test_an_answer_that_is_remembered_again_takes_its_place_once():
    memory = Memory(10)
    for value in ("a", "b", "c"):
        memory.put("often", Entry(value, 0.0, ANSWER, 4))
    memory.put("once", Entry("d", 0.0, ANSWER, 4))
    assert [memory.get(name).value for name in ("often", "once")] == ["c", "d"]
    memory.put("third", Entry("e", 0.0, ANSWER, 4))
    assert memory.get("often") is None
