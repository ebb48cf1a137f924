import datetime
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramify.core.errors import DataError
from ramify.core.messages import Message
from ramify.data.problems import load_problems

BROKEN = "Put it in \x08oxed{} and \x08oxed{}."
SHARED = Path(os.environ.get("RAMIFY_SHARED", Path(__file__).parents[3] / ".." / "shared"))


def write_jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def verl(gold: object, **extra: object) -> dict[str, Any]:
    return {
        "data_source": "mix",
        "prompt": [{"role": "system", "content": BROKEN}, {"role": "user", "content": "Q?"}],
        "ability": "qa",
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": 7, "split": "train", **extra},
        "metadata": None,
    }


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_problems(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message


def test_jsonl_with_messages_text_answers_and_free_columns(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "mine.jsonl",
        {"prompt": "2+2?", "answer": 4, "kind": "sum", "none": None},
        "",
        {
            "id": "b",
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital?"}],
            "answer": ["Rome", 3.5, 3.0],
        },
    )
    loaded = load_problems(path)
    first, second = loaded.problems
    assert (first.id, first.answer, dict(first.info)) == ("mine-1", ("4",), {"kind": "sum"})
    assert first.messages == (Message.of("user", "2+2?"),)
    assert (second.id, second.answer) == ("b", ("Rome", "3.5", "3"))
    assert [m.role for m in second.messages] == ["system", "user"]
    assert loaded.notes == ()


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"Q{i}"}], "answer": [f"A{i}", "alias"], "level": i}
        for i in range(3000)
    ]
    problems = load_problems(write_parquet(tmp_path / "own.parquet", rows)).problems
    assert [p.id for p in problems] == [f"own-{i}" for i in range(3000)]
    assert problems[2999].answer == ("A2999", "alias")
    assert problems[2999].info == {"level": 2999}


def test_the_backspace_defect_is_repaired_and_counted_once_a_prompt(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl", {"prompt": BROKEN, "answer": "1"}, {"prompt": "fine", "answer": "2"}
    )
    loaded = load_problems(path)
    assert loaded.problems[0].messages[0].text == r"Put it in \boxed{} and \boxed{}."
    assert loaded.notes == (r"repaired \boxed in 1 prompt",)


def test_verl_rows_are_read_as_they_are(tmp_path: Path) -> None:
    rows = [verl("Rome", answer="x", prompt="y"), verl(" "), verl("Paris")]
    loaded = load_problems(write_parquet(tmp_path / "v.parquet", rows))
    assert [p.id for p in loaded.problems] == ["v-0", "v-2"]
    assert loaded.problems[0].answer == ("Rome",)
    assert loaded.problems[0].messages[0].text == r"Put it in \boxed{} and \boxed{}."
    assert loaded.problems[0].info == {"data_source": "mix", "ability": "qa", "index": 7, "split": "train"}
    assert loaded.notes == (
        r"repaired \boxed in 3 prompts",
        "dropped 1 row with a blank answer: row 1",
    )


def test_a_verl_row_may_have_a_question_in_place_of_the_prompt(tmp_path: Path) -> None:
    rows = [
        {"data_source": "grpo_mix", "question": text, "reward_model": {"ground_truth": gold, "style": "rule"}}
        for text, gold in (("What is 6 times 7?", "42"), ("Capital of Italy?", "Rome"), ("Blank?", " "))
    ]
    loaded = load_problems(write_parquet(tmp_path / "mix.parquet", rows))
    assert [problem.messages[0].text for problem in loaded.problems] == [row["question"] for row in rows[:2]]
    assert [problem.answer for problem in loaded.problems] == [("42",), ("Rome",)]
    assert "question" not in loaded.problems[0].info
    assert loaded.notes == ("dropped 1 row with a blank answer: row 2",)


def test_verl_gold_lists_and_numbers(tmp_path: Path) -> None:
    lists = load_problems(write_parquet(tmp_path / "l.parquet", [verl(["NYC", "", "New York"]), verl([""])]))
    assert [p.answer for p in lists.problems] == [("NYC", "New York")]
    assert "row 1" in lists.notes[1]
    numbers = load_problems(write_parquet(tmp_path / "n.parquet", [verl(-2), verl(3)]))
    assert [p.answer for p in numbers.problems] == [("-2",), ("3",)]


def test_a_printed_list_of_answers_is_one_text_with_a_note(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": gold} for gold in ("['b', 'c']", ["b"], "[1, 2]", "['b' 'c']", "[b]")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = load_problems(tmp_path / "a.jsonl")
    assert [problem.answer for problem in problems.problems][:2] == [("['b', 'c']",), ("b",)]
    (note,) = problems.notes
    assert "in 2 rows" in note


def test_many_dropped_rows_are_listed_in_part(tmp_path: Path) -> None:
    rows = [verl("") for _ in range(12)] + [verl("x")]
    note = load_problems(write_parquet(tmp_path / "v.parquet", rows)).notes[1]
    assert note == "dropped 12 rows with a blank answer: rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."


@pytest.mark.parametrize("answer", [None, []])
def test_a_verl_row_without_an_answer_is_an_error(tmp_path: Path, answer: object) -> None:
    rows = [verl(["x"]), verl(answer)]
    path = write_parquet(tmp_path / "v.parquet", rows)
    assert "row 1 (rows count from 0): no answer" in error_of(path)


GOOD = {"prompt": "Q?", "answer": "A"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Q?"}, "no answer"),
        ({"prompt": "Q?", "answer": None}, "no answer"),
        ({"prompt": "Q?", "answer": []}, "no answer"),
        ({"prompt": "Q?", "answer": " \n"}, "no answer"),
        ({"prompt": "Q?", "answer": ["A", ""]}, "no answer"),
        ({"prompt": "Q?", "answer": [None]}, "no answer"),
        ('{"prompt": "Q?", "answer": NaN}', "no answer"),
        ('{"prompt": "Q?", "answer": Infinity}', "'answer' must be"),
        ({"prompt": "Q?", "answer": True}, "'answer' must be"),
        ({"prompt": "Q?", "answer": {"value": "A"}}, "'answer' must be"),
        ({"answer": "A"}, "no prompt"),
        ({"prompt": " ", "answer": "A"}, "no prompt"),
        ({"prompt": [], "answer": "A"}, "no prompt"),
        ({"prompt": ["Q?"], "answer": "A"}, "message 1"),
        ({"prompt": [{"role": "user"}], "answer": "A"}, "message 1"),
        ({"prompt": [{"role": "critic", "content": "Q?"}], "answer": "A"}, "'critic'"),
        ({"prompt": [{"role": "user", "content": 5}], "answer": "A"}, "expected text"),
        ({"prompt": [{"role": "user", "content": "Q?", "tool_calls": [1]}], "answer": "A"}, "'tool_calls'"),
        ({**GOOD, "id": 1.5}, "'id'"),
        ({**GOOD, "id": ""}, "'id'"),
        ({**GOOD, "id": "t-1"}, "id 't-1' is already that of row 1"),
        ('{"prompt": "\\ud800", "answer": "A"}', "a lone surrogate"),
        ("[1, 2]", "expected an object, got list. Name a file that is one array of rows .json"),
        ('{"prompt": ', "broken JSON"),
        ("[" * 100_000, "nested more than 100 deep"),
        (
            '{"prompt": "Q?", "answer": "A", "level": ' + '{"a":' * 900 + "1" + "}" * 900 + "}",
            "nested more than 100 deep",
        ),
        ('{"prompt": "Q?", "answer": ' + "9" * 5000 + "}", "a number has too many digits"),
        ('{"prompt": "Q?", "answer": "A", "answer": "B"}', "key 'answer' appears twice in one object"),
        (
            {"query": "Q?", "answer": "A"},
            "no prompt: no column 'prompt' (nor question, problem, messages, conversations) with a value; found query, answer. "
            "If 'query' is meant, say data.columns = {prompt = \"query\"}",
        ),
    ],
)
def test_a_bad_row_is_one_line_with_file_and_row(tmp_path: Path, row: object, expected: str) -> None:
    message = error_of(write_jsonl(tmp_path / "t.jsonl", GOOD, "", row))
    assert "row 3 (lines count from 1): " in message
    assert expected in message


def test_a_blank_answer_in_a_parquet_of_ones_own_is_an_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "own.parquet", [GOOD, {"prompt": "Q?", "answer": " "}])
    assert "row 1 (rows count from 0): no answer" in error_of(path)


def test_bad_files(tmp_path: Path) -> None:
    assert "expected a file, found none" in error_of(tmp_path / "absent.jsonl")
    (tmp_path / "data.xlsx").write_text("prompt,answer")
    assert "expected .jsonl, .json (one array), .parquet" in error_of(tmp_path / "data.xlsx")
    assert "empty" in error_of(write_jsonl(tmp_path / "empty.jsonl"))
    assert "no column 'answer'" in error_of(write_parquet(tmp_path / "c.parquet", [{"prompt": "Q?"}]))
    (tmp_path / "junk.parquet").write_bytes(b"not parquet")
    assert "not a readable parquet file" in error_of(tmp_path / "junk.parquet")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9", "answer": "A"}\n')
    assert "row 1" in error_of(tmp_path / "latin.jsonl")
    (tmp_path / "none.parquet").write_bytes(write_parquet(tmp_path / "b.parquet", [verl("")]).read_bytes())
    assert "empty" in error_of(tmp_path / "none.parquet")


@pytest.mark.skipif(
    not (SHARED / "data/rl").is_dir(), reason="the papers' RL files are not here (RAMIFY_SHARED)"
)
@pytest.mark.parametrize(
    ("name", "rows", "notes"),
    [
        (
            "train_10k",
            9999,
            ("repaired \\boxed in 10000 prompts", "dropped 1 row with a blank answer: row 5274"),
        ),
        ("hard_search_1k", 1071, ("repaired \\boxed in 1071 prompts",)),
        ("valid", 180, ("repaired \\boxed in 180 prompts",)),
    ],
)
def test_the_papers_files_load(name: str, rows: int, notes: tuple[str, ...]) -> None:
    loaded = load_problems(SHARED / f"data/rl/{name}.parquet")
    assert loaded.notes == notes
    assert len(loaded.problems) == rows
    for problem in loaded.problems:
        assert [m.role for m in problem.messages] == ["system", "user"]
        assert problem.messages[0].text.count(r"\boxed") == 2
        assert "\x08" not in problem.messages[0].text
        assert problem.answer[0].strip()
        assert "question" in problem.info


def test_free_columns_hold_what_a_trace_can_hold(tmp_path: Path) -> None:
    rows = [{**GOOD, "level": float("nan"), "facts": {"a": [float("nan"), 2.0]}}]
    (problem,) = load_problems(write_parquet(tmp_path / "t.parquet", rows)).problems
    assert problem.info == {"facts": {"a": [None, 2.0]}}
    dated = write_parquet(tmp_path / "u.parquet", [{**GOOD, "day": datetime.date(2026, 1, 1)}])
    assert "row 0 (rows count from 0): column 'day' holds a date" in error_of(dated)
    infinite = write_jsonl(tmp_path / "v.jsonl", '{"prompt": "Q?", "answer": "A", "level": Infinity}')
    assert "column 'level' holds inf" in error_of(infinite)


def test_an_answer_may_be_a_number_beyond_all_floats(tmp_path: Path) -> None:
    (problem,) = load_problems(write_jsonl(tmp_path / "t.jsonl", {**GOOD, "answer": 10**400})).problems
    assert problem.answer == (str(10**400),)


def test_parquet_that_python_cannot_hold_is_one_line(tmp_path: Path) -> None:
    rows = {"prompt": ["Q?"], "answer": ["A"]}
    twice = pa.Table.from_arrays(
        [pa.array(["Q?"]), pa.array(["A"]), pa.array(["B"])], ["prompt", "answer", "answer"]
    )
    pq.write_table(twice, tmp_path / "twice.parquet")
    assert "two columns are called 'answer'" in error_of(tmp_path / "twice.parquet")
    late = pa.table(rows | {"day": pa.array([2**61], pa.timestamp("ms"))})
    pq.write_table(late, tmp_path / "late.parquet")
    assert "rows 0 to 0 (rows count from 0) or after them: cannot be read" in error_of(
        tmp_path / "late.parquet"
    )
