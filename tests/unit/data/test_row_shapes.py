"""Rows as people bring them are read as their twin in our own format, or refused with the column's name; none is read otherwise."""

import copy
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from hermes_folders import write_hermes_tokenizer
from ramify.assemble.model import build_tokenizer
from ramify.chat.demonstrations import split
from ramify.chat.renderers import renderer_for
from ramify.core.errors import DataError, RowError
from ramify.data.example_formats import COMPLETION, read_row
from ramify.data.problems import load_problems
from ramify.data.row_tools import tool_specs

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
            {"messages": [*ASKED, turn, {"role": "tool", "content": result}, last], "tools": TOOLS},
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


WEATHER = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "day": {"type": ["string", "null"]}, "unit": {"type": "string"}}, "required": ["city", "day"]}}  # fmt: skip
CONVERT = {"name": "convert", "description": "d", "parameters": {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}}  # fmt: skip
TOOLS = [{"type": "function", "function": tool} for tool in (WEATHER, CONVERT)]


def dialogue(draw: random.Random) -> Row:
    """A dialogue in OpenAI's format, with calls whose arguments are objects."""
    messages: list[Row] = [{"role": "system", "content": "Be brief."}] * draw.randint(0, 1)
    for turn in range(draw.randint(1, 3)):
        messages.append({"role": "user", "content": f"Question {turn}?"})
        for _ in range(draw.randint(0, 2)):
            calls = [_call(draw) for _ in range(draw.randint(1, 2))]
            content = draw.choice(["", f"I look {turn}."])
            messages.append({"role": "assistant", "content": content, "tool_calls": calls})
            messages += [{"role": "tool", "content": f"result {draw.randint(0, 99)}"} for _ in calls]
        messages.append({"role": "assistant", "content": f"Answer {draw.randint(0, 99)}."})
    return {"messages": messages, "tools": TOOLS}


def _call(draw: random.Random) -> Row:
    arguments: Row = {"city": draw.choice(["Oslo", "Rome"]), "day": draw.choice([None, "Monday"])}
    if draw.random() < 0.3:
        return {
            "type": "function",
            "function": {"name": "convert", "arguments": {"amount": draw.randint(1, 9)}},
        }
    return {"type": "function", "function": {"name": "weather", "arguments": arguments}}


def _functions(row: Row) -> Iterator[Row]:
    return (call["function"] for message in row["messages"] for call in message.get("tool_calls") or [])


def with_nulls_of_a_table(row: Row) -> Row:
    for message in row["messages"]:
        for key in ("tool_calls", "name", "reasoning_content", "tool_call_id", "weight"):
            message.setdefault(key, None)
    for function in _functions(row):
        for key in ("city", "amount", "unit"):
            function["arguments"].setdefault(key, None)
    for tool in row["tools"]:
        for key in ("city", "amount", "unit"):
            tool["function"]["parameters"]["properties"].setdefault(key, None)
    return row


def as_text(row: Row) -> Row:
    for function in _functions(row):
        function["arguments"] = json.dumps(function["arguments"])
    return {
        "messages": json.dumps(row["messages"]),
        "tools": json.dumps([tool["function"] for tool in row["tools"]]),
    }


def with_other_keys(row: Row) -> Row:
    for function in _functions(row):
        function["parameters"] = function.pop("arguments")
    tools = [{**tool["function"], "input_schema": tool["function"]["parameters"]} for tool in row["tools"]]
    for tool in tools:
        del tool["parameters"]
    for message in row["messages"]:
        message["role"] = {"system": "developer", "tool": "ipython"}.get(message["role"], message["role"])
        message["content"] = [{"type": "text", "text": message["content"]}]
    return {"conversations": row["messages"], "tools": tools}


def as_sharegpt(row: Row) -> Row:
    turns: list[Row] = []
    names = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}
    for message in row["messages"]:
        if message["content"]:
            turns.append({"from": names[message["role"]], "value": message["content"]})
        calls = [call["function"] for call in message.get("tool_calls", [])]
        turns += [{"from": "function_call", "value": json.dumps(call)} for call in calls]
    return {"conversations": turns, "tools": json.dumps(row["tools"])}


def as_hermes_text(row: Row) -> Row:
    """Calls in text, and results in the tags of the dialect: as tool messages, or all of a turn as one of the user."""
    turns: list[Row] = []
    results: list[str] = []
    for message in [*row["messages"], {"role": "end"}]:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            turns.append({"role": ("user", "tool")[len(turns) % 2], "content": "\n".join(results)})
            results = []
        calls = [
            f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>"
            for call in message.get("tool_calls", [])
        ]
        if message["role"] != "end":
            turns.append(
                {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}
            )
    return {"messages": turns, "tools": row["tools"]}


SHAPES: tuple[Callable[[Row], Row], ...] = (
    with_nulls_of_a_table,
    as_text,
    with_other_keys,
    as_sharegpt,
    as_hermes_text,
)


@pytest.mark.parametrize(
    ("dialect", "shape"),
    [("hermes", shape) for shape in SHAPES] + [("tags", shape) for shape in SHAPES[:-1]],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_dialogue_in_any_shape_is_trained_as_its_twin(
    tmp_path: Path, dialect: Literal["hermes", "tags"], shape: Callable[[Row], Row]
) -> None:
    renderer = renderer_for(dialect, build_tokenizer(write_hermes_tokenizer(tmp_path / "m"), lambda _: None))

    def trained(row: Row) -> tuple[object, ...]:
        reading = read_row(row, COMPLETION)
        specs = tool_specs(reading.tools)
        return (
            reading.prompt,
            split(renderer, reading.sides[0], specs),
            [(s.name, s.parameters) for s in specs],
        )

    draw = random.Random(shape.__name__)
    for _ in range(80):
        row = dialogue(draw)
        assert trained(shape(copy.deepcopy(row))) == trained(row)


SPOILED: tuple[tuple[str, Callable[[Row], object]], ...] = (
    ("'kwargs'", lambda call: call.__setitem__("kwargs", call.pop("arguments"))),
    ("'arguments' and args", lambda call: call.__setitem__("args", {"city": "Rome"})),
    ("no name", lambda call: call.pop("name")),
    (
        "key 'city' appears twice",
        lambda call: call.__setitem__("arguments", '{"city": "Oslo", "city": "Rome"}'),
    ),
    ("it is a list", lambda call: call.__setitem__("arguments", ["Oslo"])),
)


@pytest.mark.parametrize(("named", "spoil"), SPOILED, ids=[name for name, _ in SPOILED])
def test_a_call_that_would_lose_something_is_refused(named: str, spoil: Callable[[Row], object]) -> None:
    call: Row = {"name": "weather", "arguments": {"city": "Oslo"}}
    spoil(call)
    messages = [*ASKED, {"role": "assistant", "tool_calls": [{"function": call}]}]
    with pytest.raises(RowError, match=named):
        read_row({"messages": messages, "tools": TOOLS}, COMPLETION)


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
