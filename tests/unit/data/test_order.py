import pytest

from ramify.core.errors import DataError
from ramify.data.order import DataCursor, ProblemOrder


def test_every_epoch_has_each_problem_once_in_its_own_order() -> None:
    order = ProblemOrder(50, seed=3)
    first, cursor = order.take(DataCursor(), 50)
    second, end = order.take(cursor, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert (cursor, end) == (DataCursor(1, 0), DataCursor(2, 0))


def test_step_size_does_not_change_the_order() -> None:
    order = ProblemOrder(7, seed=0)
    whole, end = order.take(DataCursor(), 24)
    pieces: list[int] = []
    cursor = DataCursor()
    for count in (1, 0, 5, 10, 8):
        part, cursor = order.take(cursor, count)
        assert len(part) == count
        pieces.extend(part)
    assert tuple(pieces) == whole
    assert cursor == end == DataCursor(3, 3)


def test_the_seed_and_nothing_else_decides() -> None:
    cursor = DataCursor(4, 11)
    assert ProblemOrder(40, 1).take(cursor, 20) == ProblemOrder(40, 1).take(cursor, 20)
    assert ProblemOrder(40, 1).take(cursor, 20) != ProblemOrder(40, 2).take(cursor, 20)


def test_one_problem_comes_again_and_again() -> None:
    assert ProblemOrder(1, 0).take(DataCursor(), 3) == ((0, 0, 0), DataCursor(3, 0))


def test_a_cursor_of_other_data_is_refused() -> None:
    with pytest.raises(DataError, match="problem 10 of epoch 2 with 10 problems"):
        ProblemOrder(10, 0).take(DataCursor(2, 10), 1)
    with pytest.raises(ValueError, match="no problems"):
        ProblemOrder(0, 0)
