import json

import pytest

from ramify.core.errors import DataError
from ramify.core.messages import Message
from ramify.data.examples import load_preferences

GOOD = {
    "prompt": [{"role": "user", "content": "2 + 2 ?"}],
    "chosen": "<answer> \\boxed{ 4 } </answer>",
    "rejected": "<answer> \\boxed{ 5 } </answer>",
}


def without(name):
    return {key: value for key, value in GOOD.items() if key != name}


def test_rows_become_pairs(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps({**GOOD, 'id': 'b', 'r_chosen': 1})}\n")
    first, second = load_preferences(path)
    assert first.problem.messages == (Message.of("user", "2 + 2 ?"),)
    assert (first.chosen, first.rejected) == (GOOD["chosen"], GOOD["rejected"])
    assert [first.problem.id, second.problem.id] == ["1", "b"]
    assert [first.row, second.row] == [1, 3]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b"\xff\n", "expected UTF-8 text"),
        ({**GOOD, "chosen": {"from": "gpt", "value": "4"}}, "the assistant's whole message with its calls"),
        (b"[1]", "expected an object"),
        (without("prompt"), "no prompt"),
        (without("chosen"), "no 'chosen'"),
        (without("rejected"), "no 'rejected'"),
        ({**GOOD, "chosen": " "}, "'chosen' must be text that is not blank"),
        ({**GOOD, "rejected": ["a"]}, "'rejected' must be text that is not blank"),
        ({**GOOD, "rejected": GOOD["chosen"] + "\n"}, "'chosen' and 'rejected' are equal"),
        ({**GOOD, "chosen": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_bad_row_is_one_line_with_file_and_row(tmp_path, row, told):
    path = tmp_path / "p.jsonl"
    path.write_bytes(row if isinstance(row, bytes) else json.dumps(row).encode())
    with pytest.raises(DataError, match=r"p\.jsonl row 1.*") as caught:
        load_preferences(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_row(tmp_path):
    with pytest.raises(DataError, match="found none"):
        load_preferences(tmp_path / "nowhere.jsonl")
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(DataError, match="the file is empty"):
        load_preferences(tmp_path / "p.jsonl")


def test_an_id_that_is_there_twice_is_named_with_both_rows(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({**GOOD, "id": name}) + "\n" for name in (7, "b", "7")))
    with pytest.raises(DataError, match=r"p\.jsonl row 3: .*id '7' is already that of row 1"):
        load_preferences(path)
