"""Rows as people bring them are read as their twin in our own format, or refused with the column's name; none is read otherwise."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ramify.core.errors import DataError, RowError
from ramify.data.example_formats import COMPLETION, read_row
from ramify.data.problems import load_problems

SHARED = Path(os.environ.get("RAMIFY_SHARED", Path(__file__).parents[3] / ".." / "shared"))
CASES = SHARED / "cases/cases"
Row = dict[str, Any]
ASKED = [{"role": "user", "content": "Q?"}]


def loaded(path: Path, *rows: Row, **options: Any) -> list[tuple[list[tuple[str, str]], tuple[str, ...]]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = load_problems(path, **options).problems
    return [([(m.role, m.text) for m in problem.messages], problem.answer) for problem in problems]


PROMPTS: tuple[Row, ...] = (
    {"prompt": "Q?"},
    {"prompt": ASKED},
    {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "text", "text": "?"}]}]},
    {"prompt": [{"from": "human", "value": "Q?"}]},
    {"prompt": None, "question": "Q?"},
    {"problem": "Q?"},
    {"prompt": json.dumps(ASKED)},
    {"question": json.dumps([{"from": "human", "value": "Q?"}], indent=1)},
    {"messages": json.dumps(ASKED)},
    {"prompt": ASKED[0]},
    {"prompt": json.dumps({"content": "Q?", "role": "user", "name": None})},
    {"messages": [{**ASKED[0], "tool_calls": None, "name": None}]},
    {"conversations": ASKED},
)
GOLDS: tuple[Row, ...] = (
    {"answer": "A"},
    {"answer": ["A"], "solution": "so"},
    {"answer": None, "solution": "A"},
    {"solution": "<answer> A </answer>"},
    {"solution": "Long work, \\boxed{1}, so \\boxed{A}."},
    {"ground_truth": "A"},
    {"ground_truth": ["A"]},
    {"ground_truth": {"target": ["A"]}},
    {"reward_model": {"style": "rule", "ground_truth": "A"}, "extra_info": {"index": 0}},
    {"reward_model": {"style": "rule", "ground_truth": {"target": "A"}}, "extra_info": None},
    {
        "reward_model": json.dumps({"style": "rule", "ground_truth": "A"}),
        "extra_info": json.dumps({"index": 0}),
    },
    {"ground_truth": json.dumps({"target": ["A"]})},
    {"golden_answers": ["A"]},
    {"answer": "worked\n#### A"},
    {"answer": "worked #### 3 #### A\n"},
    {"solution": "worked #### A"},
    {"solution": "worked " * 90 + "####A"},
    {"solution": "#### Steps\n" + "worked\n" * 90 + "#### A"},
)


def test_problems_in_all_shapes_are_one_problem(tmp_path: Path) -> None:
    rows = [{**prompt, **gold} for prompt in PROMPTS for gold in GOLDS]
    assert loaded(tmp_path / "a.jsonl", *rows) == [([("user", "Q?")], ("A",))] * len(rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert len(load_problems(tmp_path / "a.json").problems) == len(rows)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("blah #### 72", "72"),
        ("blah\n#### $1,234,567.5", "$1234567.5"),
        ("blah #### (1,200)", "(1,200)"),
        ("blah\n#### Paris, Texas", "Paris, Texas"),
        ("#### Answer\nParis", "#### Answer\nParis"),
        ("##### Paris", "##### Paris"),
        ("blah ####", "blah ####"),
        ("blah #### " + "so " * 90, "blah #### " + "so " * 90),
    ],
)
def test_the_gold_of_a_worked_answer_is_the_short_line_behind_its_last_mark(
    tmp_path: Path, answer: str, gold: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "Q?", "answer": answer}))
    (problem,), notes = (read := load_problems(tmp_path / "a.jsonl")).problems, read.notes
    assert problem.answer == (gold,)
    assert notes == (("the gold is what follows the last #### in 1 worked answer",) if gold != answer else ())


def test_columns_of_other_names_are_read_where_the_recipe_names_them(tmp_path: Path) -> None:
    columns = {"prompt": "q", "answer": "meta.gold"}
    row = {"q": "Q?", "meta": {"gold": "thought\n#### 1,000"}, "prompt": "not this"}
    assert loaded(tmp_path / "a.jsonl", row, columns=columns) == [([("user", "Q?")], ("1000",))]
    with pytest.raises(
        DataError, match=r"no column 'q', which data\.columns\.prompt names: the row has prompt, answer"
    ):
        loaded(tmp_path / "a.jsonl", {"prompt": "Q?", "answer": "A"}, columns=columns)
    with pytest.raises(
        DataError, match=r"no answer: 'meta\.gold', which data\.columns\.answer names, has no value"
    ):
        loaded(tmp_path / "a.jsonl", {"q": "Q?", "meta": {"label": "A"}}, columns=columns)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Q?", "label": "A"}, 'found prompt, label. If \'label\' is meant, say data.columns = {answer = "label"}'),
        ({"prompt": str(ASKED), "answer": "A"}, "'prompt' cannot be read: broken JSON"),
        ({"prompt": "Q?", "solution": "word " * 90}, "'solution' is worked out and has no"),
        ({"prompt": "Q?", "ground_truth": {"value": "A"}}, "'ground_truth' must be text"),
        ({"prompt": "Q?", "reward_model": {"ground_truth": True}}, "'reward_model.ground_truth' must be"),
        ({"prompt": [{"role": "assistant", "content": "Well"}], "answer": "A"}, "'prompt' holds turns of the assistant only"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "A"}, "content that is not text"),
        ({"prompt": [{"role": "system", "content": "Be brief."}], "answer": "A"}, "it holds a system message only"),
        ({"question": "q", "choices": ["a", "b"], "answer": 1}, "number of 'choices', which the prompt"),
        ({"question": "q", "choices": {"text": ["a", "b"], "label": ["P", "Q"]}, "answer": "Q"}, "'choices', which the prompt"),
        ({"prompt": "q", "options": '["x", "y"]', "answer": "(b)"}, "'options', which the prompt"),
        ({"prompt": "q", "options": {"A": "x", "B": "y"}, "answer": "B"}, "'options', which the prompt"),
        ({"prompt": "q", "options": [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}], "answer": "A"}, "'options', which"),
        ({"question": "q", "A": "x", "B": "y", "answer": "B"}, "'A', 'B', which the prompt"),
        ({"messages": [*ASKED, {"role": "assistant", "content": "A"}], "answer": "A"}, "'messages' ends with a turn"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_columns_that_are_there(tmp_path: Path, row: Row, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        loaded(tmp_path / "a.jsonl", row)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<think> so </think><answer> 4 </answer>\n", "an answer"),
        (r"So it is $\boxed{\frac{1}{2}}$.", "an answer"),
        ('<tool_call>\n{"name": "age", "arguments": {}}\n</tool_call>', "a call without a result"),
        ("<search> Emma </search>", "a call without a result"),
        ("<python>\nprint(1)\n</python>\n", "a call without a result"),
        ("<think>", None),
        ("<think> They want <answer> 4 </answer>", None),
        ("<think> so </think>", None),
        ("<search> Emma </search><result> Austen </result>", None),
        ("<answer> It is", None),
        (r"It goes into \boxed{", None),
        (r"It goes into \boxed{}", None),
        ("Let me see. ", None),
    ],
)
def test_a_prompt_that_ends_with_a_whole_turn_is_refused(tmp_path: Path, text: str, what: str | None) -> None:
    prompt = [*ASKED, {"role": "assistant", "content": text}]
    if what is None:
        ((messages, _),) = loaded(tmp_path / "a.jsonl", {"prompt": prompt, "answer": "A"})
        assert messages[-1] == ("assistant", text)
        assert read_row({"prompt": prompt, "completion": "b"}, COMPLETION).prompt[-1].text == text
        return
    expected = f"'prompt' ends with {what}, which the policy cannot continue. Leave the last turn out"
    with pytest.raises(DataError, match=re.escape(expected)):
        loaded(tmp_path / "a.jsonl", {"prompt": prompt, "answer": "A"})
    with pytest.raises(RowError, match=re.escape(expected)):
        read_row({"prompt": prompt, "completion": "b"}, COMPLETION)
    again = [*prompt, *ASKED]
    assert len(loaded(tmp_path / "a.jsonl", {"prompt": again, "answer": "A"})) == 1


def test_choices_that_are_shown_or_not_meant_are_read(tmp_path: Path) -> None:
    shown = {"prompt": "q A) xx B) yy", "choices": ["xx", "yy"], "answer": "B"}
    by_text = {"prompt": "q", "options": ["Rome", "Oslo"], "answer": "Oslo"}
    settings = {"prompt": "q", "options": {"speed": 1}, "answer": "1"}
    assert [golds for _, golds in loaded(tmp_path / "a.jsonl", shown, by_text, settings)] == [
        ("B",),
        ("Oslo",),
        ("1",),
    ]


def test_thoughts_and_results_of_services_are_those_of_their_twin() -> None:
    def lines(name: str, result: object) -> object:
        call = {"id": "1", "function": {"name": "weather", "arguments": {}}}
        turn = {"role": "assistant", name: "hm", "tool_calls": [call]}
        last = {"role": "assistant", "content": "A"}
        return read_row(
            {"messages": [*ASKED, turn, {"role": "tool", "content": result}, last]},
            COMPLETION,
        )

    for value in ({"t": 4}, [{"t": 4}], 4):
        for name in ("reasoning", "thinking"):
            assert lines(name, value) == lines("reasoning_content", json.dumps(value))
    with pytest.raises(RowError, match="'content' of message 1 of 'messages' is dict"):
        read_row({"messages": [{"role": "user", "content": {"t": 4}}]}, COMPLETION)


def test_an_environment_gets_columns_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "Q?", "solution": "A", "seed": 1}))
    (problem,) = load_problems(path, bare=True).problems
    assert (problem.answer, dict(problem.info)) == ((), {"question": "Q?", "solution": "A", "seed": 1})


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not here (RAMIFY_SHARED)")
@pytest.mark.parametrize(
    ("name", "golds"),
    [
        ("R01/rows.parquet", [("Jane Austen", "Austen")]),
        ("R02/rows.jsonl", [("Jane Austen",)]),
        ("R02/rows.json", [("Jane Austen",)]),
        ("R03/rows.parquet", [("4",)]),
        ("R06/rows.jsonl", [("4",)]),
        ("R11/rows.parquet", "row 1 (rows count from 0): no prompt"),
        ("R17/rows.jsonl", [("4",)]),
        ("R17/rows_rl.jsonl", [("8",)]),
    ],
)
def test_cases_of_public_reports(name: str, golds: list[tuple[str, ...]] | str) -> None:
    if isinstance(golds, list):
        assert [problem.answer for problem in load_problems(CASES / name).problems] == golds
        return
    with pytest.raises(DataError) as caught:
        load_problems(CASES / name)
    assert golds in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "row", "question", "gold"),
    [
        (
            {"prompt": ("Body", "Question"), "answer": "Answer"},
            {"ID": "chal-1", "Body": "Each pack costs 76 dollars.", "Question": "What is the cost?", "Answer": 51.0},
            "Each pack costs 76 dollars.\nWhat is the cost?",
            "51",
        ),
        (
            {"prompt": ("body", "question")},
            {"body": "Seven apples and two pears.", "question": "How many?", "answer": "9", "formula": "7+2=9"},
            "Seven apples and two pears.\nHow many?",
            "9",
        ),
        ({"prompt": "input", "answer": "target"}, {"input": "Mary has 3.", "target": 3.0}, "Mary has 3.", "3"),
        ({"prompt": "content"}, {"content": "Find x.", "answer": "2", "steps": "s"}, "Find x.", "2"),
        ({}, {"problem": "Find $x$.", "solution": r"So $x = \boxed{9.6}$ m."}, "Find $x$.", "9.6"),
        ({"answer": "final_answer"}, {"question": "Find n.", "final_answer": ["$2$"], "solution": ["long"]}, "Find n.", "$2$"),
        ({}, {"question": "How many?", "answer": 27.0, "url": "u"}, "How many?", "27"),
        (
            {"prompt": ("table_title", "table", "question", "choices")},
            {"table_title": None, "table": "a | b\n1 | 2", "question": "Which?", "choices": ["a", "b"], "answer": "b"},
            "a | b\n1 | 2\nWhich?\na, b",
            "b",
        ),
    ],
    ids=["svamp", "asdiv", "mawps", "carp_en", "minerva_math", "olympiadbench", "amc23", "tabmwp"],
)  # fmt: skip
def test_files_of_the_loaders_of_the_releases_are_read_by_their_own_columns(
    tmp_path, columns, row, question, gold
):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (problem,) = load_problems(path, columns=columns).problems
    assert (problem.messages[-1].text, problem.answer) == (question, (gold,))


def test_of_several_columns_one_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"Question": "What?", "Answer": 1}) + "\n")
    with pytest.raises(DataError, match=r"no column 'Body', which data\.columns\.prompt names"):
        load_problems(path, columns={"prompt": ("Body", "Question"), "answer": "Answer"})
    path.write_text(json.dumps({"Body": None, "Question": " ", "Answer": 1}) + "\n")
    with pytest.raises(
        DataError, match=r"no prompt: 'Body' and 'Question', which data\.columns\.prompt names, has no value"
    ):
        load_problems(path, columns={"prompt": ("Body", "Question"), "answer": "Answer"})
