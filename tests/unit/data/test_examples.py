"""Files of training examples: demonstrations and preference pairs."""

import json
from pathlib import Path

import pytest

from ramify.core.errors import DataError
from ramify.core.messages import Message
from ramify.data.examples import load_demonstrations, load_preferences

PROMPT = [{"role": "user", "content": "2 + 2 ?"}]
DEMONSTRATION = {"prompt": PROMPT, "completion": "<answer> \\boxed{ 4 } </answer>"}
PAIR = {
    "prompt": PROMPT,
    "chosen": "<answer> \\boxed{ 4 } </answer>",
    "rejected": "<answer> \\boxed{ 5 } </answer>",
}
BOTH = pytest.mark.parametrize(
    ("load", "good"), [(load_demonstrations, DEMONSTRATION), (load_preferences, PAIR)]
)


def without(name: str) -> dict[str, object]:
    return {key: value for key, value in PAIR.items() if key != name}


def refusal(load, path: Path, row: object) -> str:
    path.write_bytes(row if isinstance(row, bytes) else json.dumps(row).encode())
    with pytest.raises(DataError, match=r"d\.jsonl row 1.*") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@BOTH
def test_rows_become_examples(tmp_path: Path, load, good) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(
        f"{json.dumps(good)}\n\n{json.dumps({**good, 'id': 'b', 'r_chosen': 1})}\n", encoding="utf-8"
    )
    first, second = load(path)
    assert first.problem.messages == (Message.of("user", "2 + 2 ?"),)
    assert all(getattr(first, name) == text for name, text in good.items() if name != "prompt")
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
        (
            {**DEMONSTRATION, "prompt": [{"role": "user", "content": None}]},
            "message 0 of 'prompt' must be text",
        ),
        ({**DEMONSTRATION, "prompt": [{"role": "usr", "content": "a"}]}, "has role 'usr'"),
        ({**DEMONSTRATION, "prompt": []}, "no prompt"),
        ({**DEMONSTRATION, "completion": "  "}, "'completion' must be text that is not blank"),
        ({"prompt": PROMPT}, "no 'completion'"),
        ({**DEMONSTRATION, "id": ["a"]}, "'id' must be text or a whole number"),
        ({**DEMONSTRATION, "id": True}, "'id' must be text or a whole number"),
        ({**DEMONSTRATION, "completion": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_bad_demonstration_is_one_line_with_file_and_row(tmp_path: Path, row: object, told: str) -> None:
    assert told in refusal(load_demonstrations, tmp_path / "d.jsonl", row)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b"\xff\n", "expected UTF-8 text"),
        ({**PAIR, "chosen": {"from": "gpt", "value": "4"}}, "the assistant's whole message with its calls"),
        (b"[1]", "expected an object"),
        (without("prompt"), "no prompt"),
        (without("chosen"), "no 'chosen'"),
        (without("rejected"), "no 'rejected'"),
        ({**PAIR, "chosen": " "}, "'chosen' must be text that is not blank"),
        ({**PAIR, "rejected": ["a"]}, "'rejected' must be text that is not blank"),
        ({**PAIR, "rejected": PAIR["chosen"] + "\n"}, "'chosen' and 'rejected' are equal"),
        ({**PAIR, "chosen": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_bad_pair_is_one_line_with_file_and_row(tmp_path: Path, row: object, told: str) -> None:
    assert told in refusal(load_preferences, tmp_path / "d.jsonl", row)


@BOTH
def test_no_file_and_no_row(tmp_path: Path, load, good) -> None:
    with pytest.raises(DataError, match="found none"):
        load(tmp_path / "nowhere.jsonl")
    (tmp_path / "d.jsonl").write_text("\n")
    with pytest.raises(DataError, match="the file is empty"):
        load(tmp_path / "d.jsonl")


@BOTH
@pytest.mark.parametrize("ids", [("a", "b", "a"), (7, "b", "7")])
def test_an_id_that_is_there_twice_is_named_with_both_rows(tmp_path: Path, load, good, ids) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({**good, "id": name}) + "\n" for name in ids))
    with pytest.raises(DataError, match=rf"d\.jsonl row 3: .*id '{ids[2]}' is already that of row 1"):
        load(path)


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
        ({**DEMONSTRATION, "prompt": SHAREGPT}, "must be {role, content}, not {from, value} (ShareGPT)"),
        ({**DEMONSTRATION, "prompt": OPENAI}, "has 'tool_calls'; only role and content are read"),
        (
            {**DEMONSTRATION, "completion": OPENAI},
            "the assistant's whole message with its calls and their results in the dialect's text",
        ),
        (
            {**DEMONSTRATION, "completion": OPENAI[0]},
            "the assistant's whole message with its calls and their results in the dialect's text",
        ),
    ],
)
def test_another_format_is_refused_by_its_row(tmp_path: Path, row: object, told: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f"{json.dumps(DEMONSTRATION)}\n{json.dumps(row)}\n")
    with pytest.raises(DataError, match=r"d\.jsonl row 2: expected an object with prompt") as caught:
        load_demonstrations(path)
    assert told in str(caught.value)
