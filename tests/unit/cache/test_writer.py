"""The thread that writes goes on, whatever one batch or one claim meets."""

import time

from ramify.cache.database import connect
from ramify.cache.keys import digest
from ramify.cache.writer import Memory, Remembered, Row, Writer
from ramify.core.protocols import CacheKey


def row(request, parameters, claimed=False):
    key = CacheKey("search", "p", {}, request)
    spoilt = CacheKey("search", "p", parameters, request)
    return Row(spoilt, digest(key), "1", Remembered(1, time.time(), False, 1), claimed)


def test_a_batch_that_cannot_be_written_is_forgotten_and_the_next_is_written(tmp_path):
    said = []
    writer = Writer(tmp_path / "cache.sqlite", lambda _: None, said.append)
    for _ in range(2):
        writer.put(row("a", {"no": {"JSON"}}))
        writer.flush()
    assert (writer.forgotten, len(said), writer.unwritten) == (2, 1, {})
    assert "not JSON serializable" in said[0]
    writer.put(row("b", {}))
    writer.close()
    assert connect(tmp_path / "cache.sqlite").execute("SELECT request FROM answers").fetchall() == [("b",)]
    assert writer.forgotten == 2


def test_a_claim_that_cannot_be_given_back_is_said_once_and_answers_are_still_written(tmp_path):
    said = []

    def free(_):
        raise OSError(37, "No locks available")

    writer = Writer(tmp_path / "cache.sqlite", free, said.append)
    for request in ("a", "b"):
        writer.put(row(request, {}, claimed=True))
        writer.flush()
    writer.close()
    assert connect(tmp_path / "cache.sqlite").execute("SELECT count(*) FROM answers").fetchone() == (2,)
    assert writer.forgotten == 0
    assert len(said) == 1
    assert "No locks available" in said[0]


def test_an_answer_that_is_remembered_again_takes_its_place_once():
    memory = Memory(10)
    for value in ("a", "b", "c"):
        memory.put("often", Remembered(value, 0.0, False, 4))
    memory.put("once", Remembered("d", 0.0, False, 4))
    assert [memory.get(name).value for name in ("often", "once")] == ["c", "d"]
    memory.put("third", Remembered("e", 0.0, False, 4))
    assert memory.get("often") is None
