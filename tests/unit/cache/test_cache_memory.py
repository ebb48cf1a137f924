from ramify.cache.writer import Memory, Remembered


def test_an_answer_that_is_remembered_again_takes_its_place_once():
    memory = Memory(10)
    for value in ("a", "b", "c"):
        memory.put("often", Remembered(value, 0.0, False, 4))
    memory.put("once", Remembered("d", 0.0, False, 4))
    assert [memory.get(name).value for name in ("often", "once")] == ["c", "d"]
    memory.put("third", Remembered("e", 0.0, False, 4))
    assert memory.get("often") is None
