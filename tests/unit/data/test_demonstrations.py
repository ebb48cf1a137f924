import json
from pathlib import Path

import pytest

from ramify.core.errors import DataError
from ramify.core.messages import Message
from ramify.data.examples import load_demonstrations

GOOD = {"prompt": [{"role": "user", "content": "2 + 2 ?"}], "completion": "<answer> \\boxed{ 4 } </answer>"}


def test_rows_become_problems_with_a_completion(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps({**GOOD, 'id': 'b'})}\n", encoding="utf-8")
    first, second = load_demonstrations(path)
    assert first.problem.messages == (Message.of("user", "2 + 2 ?"),)
    assert first.completion == GOOD["completion"]
    assert [first.problem.id, second.problem.id] == ["1", "b"]
    assert [first.row, second.row] == [1, 3]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b"\xff\n", "expected UTF-8 text"),
        (b"[" * 100_000, "nested more than 100 deep"),
        (b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", "nested more than 100 deep"),
        (b'{"prompt": "a", "completion": "b", "id": ' + b"9" * 5000 + b"}", "a number has too many digits"),
        (
            b'{"prompt": "a", "completion": "b", "completion": "c"}',
            "key 'completion' stands in one object twice",
        ),
        (
            b'{"prompt": [{"role": "user", "role": "system", "content": ""}]}',
            "key 'role' stands in one object twice",
        ),
        (b"[1]", "expected an object"),
        ({**GOOD, "prompt": [{"role": "user", "content": None}]}, "message 0 of 'prompt' must be text"),
        ({**GOOD, "prompt": [{"role": "usr", "content": "a"}]}, "has role 'usr'"),
        ({**GOOD, "prompt": []}, "no prompt"),
        ({**GOOD, "completion": "  "}, "'completion' must be text that is not blank"),
        ({"prompt": GOOD["prompt"]}, "no 'completion'"),
        ({**GOOD, "id": ["a"]}, "'id' must be text or a whole number"),
        ({**GOOD, "id": True}, "'id' must be text or a whole number"),
        ({**GOOD, "completion": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_bad_row_is_one_line_with_file_and_row(tmp_path: Path, row: object, told: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(row if isinstance(row, bytes) else json.dumps(row).encode())
    with pytest.raises(DataError, match=r"d\.jsonl row 1.*") as caught:
        load_demonstrations(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_id_that_is_there_twice_is_named_with_both_rows(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({**GOOD, "id": name}) + "\n" for name in ("a", "b", "a")))
    with pytest.raises(DataError, match=r"d\.jsonl row 3: .*id 'a' is already that of row 1"):
        load_demonstrations(path)


CALL = '{"name": "search", "arguments": {"query": "x"}}'
SHAREGPT = [{"from": "human", "value": "2 + 2 ?"}, {"from": "gpt", "value": "4"}]
OPENAI = [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "search"}}]}]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"conversations": SHAREGPT},
            "'prompt' must be text or a list of {role, content}; 'conversations' belongs to another",
        ),
        ({"messages": OPENAI}, "'messages' belongs to another format"),
        ({"instruction": "a", "output": "b"}, "'instruction' belongs to another format"),
        ({**GOOD, "prompt": SHAREGPT}, "must be {role, content}, not {from, value} (ShareGPT)"),
        ({**GOOD, "prompt": OPENAI}, "has 'tool_calls'; only role and content are read"),
        (
            {**GOOD, "completion": OPENAI},
            "the assistant's whole message with its calls and their results in the dialect's text",
        ),
        (
            {**GOOD, "completion": OPENAI[0]},
            "the assistant's whole message with its calls and their results in the dialect's text",
        ),
    ],
)
def test_another_format_is_refused_by_its_row(tmp_path: Path, row: object, told: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(row)}\n")
    with pytest.raises(DataError, match=r"d\.jsonl row 2: expected an object with prompt") as caught:
        load_demonstrations(path)
    assert told in str(caught.value)
