"""The thread that writes goes on, whatever one batch meets."""

import time

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
        with pytest.raises(TypeError):
            writer.put(row("a", {"no": {"JSON"}})).result()
    assert (writer.forgotten, len(errors), writer.unwritten) == (2, 1, {})
    assert "not JSON serializable" in str(errors[0])
    writer.put(row("b", {}))
    writer.close()
    writer.close()
    assert requests(tmp_path / "cache.sqlite") == [("b",)]
    assert writer.forgotten == 2


def test_what_arrives_while_a_batch_is_written_is_one_batch(tmp_path):
    writer = Writer(tmp_path / "cache.sqlite", lambda _: None, alone=False)
    other = connect(tmp_path / "cache.sqlite")
    other.execute("BEGIN IMMEDIATE")
    batches = {writer.put(row(f"{i}", {})) for i in range(1000)}
    assert len(batches) <= 2
    assert len(writer.unwritten) == 1000
    other.execute("COMMIT")
    for batch in batches:
        batch.result()
    assert writer.unwritten == {}
    assert len(requests(tmp_path / "cache.sqlite")) == 1000
    writer.close()


def test_an_answer_that_is_remembered_again_takes_its_place_once():
    memory = Memory(10)
    for value in ("a", "b", "c"):
        memory.put("often", Entry(value, 0.0, ANSWER, 4))
    memory.put("once", Entry("d", 0.0, ANSWER, 4))
    assert [memory.get(name).value for name in ("often", "once")] == ["c", "d"]
    memory.put("third", Entry("e", 0.0, ANSWER, 4))
    assert memory.get("often") is None
