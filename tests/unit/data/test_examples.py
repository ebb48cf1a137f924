"""Files of examples, row by row, and how rows that cannot be used are told."""

import json

import pytest

from ramify.chat.conversation import AssistantTurn
from ramify.core.errors import DataError, RowError
from ramify.data.example_formats import COMPLETION, PAIR
from ramify.data.examples import Example, RefusedRows, read_examples

PROMPT = [{"role": "user", "content": "2 + 2 ?"}]
GOOD = {"prompt": PROMPT, "completion": "4"}


def read(path, rows, names=COMPLETION):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return list(read_examples(path, names))


def test_rows_become_examples(tmp_path):
    rows = [
        GOOD,
        "",
        {**GOOD, "id": "b"},
        {"messages": [*PROMPT, {"role": "assistant", "content": "4"}], "id": "b"},
    ]
    first, second, third = (example for _, example in read(tmp_path / "d.jsonl", rows))
    assert first.sides == second.sides == third.sides == ((AssistantTurn("4"),),)
    assert [each.problem.id for each in (first, second, third)] == ["1", "b", "4"]
    assert [each.row for each in (first, second, third)] == [1, 3, 4]


def test_a_bad_row_is_told_in_its_place(tmp_path):
    bad = [
        "{",
        "7",
        "[7]",
        {**GOOD, "id": ["a"]},
        {**GOOD, "prompt": [{"role": "usr", "content": "a"}]},
        {"prompt": PROMPT},
    ]
    examples = read(tmp_path / "d.jsonl", [GOOD, *bad, GOOD])
    assert [isinstance(example, Example) for _, example in examples] == [True, *[False] * len(bad), True]
    errors = [str(example) for _, example in examples if isinstance(example, RowError)]
    assert errors == [
        "broken JSON: Expecting property name enclosed in double quotes at column 2",
        "expected an object, got int",
        "expected an object, got list. Name a file that is one array of rows .json",
        "'id' must be text or a whole number, got ['a']",
        "a message has an unknown role: message 1 of 'prompt' has 'usr'",
        "no 'completion': found prompt",
    ]


@pytest.mark.parametrize("ids", [("a", "b", "a"), (7, "b", "7")])
def test_an_id_that_is_there_twice_is_told_with_both_rows(tmp_path, ids):
    *_, (number, error) = read(tmp_path / "d.jsonl", [{**GOOD, "id": name} for name in ids])
    assert number == 3
    assert str(error) == f"duplicate id: {str(ids[2])!r} is that of row 1"


def test_the_number_of_a_row_without_id_is_free_for_another_row(tmp_path):
    rows = read(tmp_path / "d.jsonl", [GOOD, {**GOOD, "id": 1}, {**GOOD, "id": 4}, GOOD])
    assert all(isinstance(example, Example) for _, example in rows)


def test_pairs_have_two_sides(tmp_path):
    ((_, example),) = read(tmp_path / "d.jsonl", [{"prompt": PROMPT, "chosen": "4", "rejected": "5"}], PAIR)
    assert example.sides == ((AssistantTurn("4"),), (AssistantTurn("5"),))


def test_a_file_that_ends_in_the_middle_is_told_when_it_is_read_so_far(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps([GOOD, GOOD])[:-3])
    rows = read_examples(path, COMPLETION)
    assert next(rows)[0] == 1
    with pytest.raises(DataError, match=r"d\.json row 2: the array does not end"):
        next(rows)


def test_refused_rows_are_one_line_by_reason():
    refused = RefusedRows()
    refused.add(4, RowError("a", "x"))
    assert (refused.count, str(refused)) == (1, "row 4: a: x")
    for row in range(5, 30):
        refused.add(row, RowError("b", f"in row {row}"))
    refused.add(30, RowError("a", "y"))
    refused.add(31, RowError("c"))
    assert str(refused) == (
        "25 rows (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, ...): b (the first: in row 5); 2 rows (4, 30): a (the first: x); row 31: c"
    )
    for number in range(1000):
        refused.add(100 + number, RowError(f"reason {number}"))
    assert str(refused).endswith("; 991 rows for 991 more reasons")
    assert len(str(refused)) < 500
