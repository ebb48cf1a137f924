"""Generated rows, in the shapes of other projects and with the nulls of tables, are trained on as their twins in our own format.

Compared are the tokens of each example and which of them carry a loss. `RAMIFY_TWINS` is the number of rows, 2,000 in the issue's figure.
"""

import copy
import csv
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hermes_folders import QWEN3, QWEN25, write_hermes_tokenizer, write_xml_tokenizer
from llama3_folders import write_llama3_tokenizer
from ramify.assemble.examples import open_examples
from ramify.assemble.tools import show_tools
from ramify.config.load import check_recipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.core.errors import DataError
from ramify.core.tree import TreeKey
from ramify.data.problems import load_problems
from ramify.data.prompts import PromptTexts
from ramify.train.examples import ExampleReader, RowRenderer

Row = dict[str, Any]
COUNT = int(os.environ.get("RAMIFY_TWINS", "120"))
SETUPS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "tags": ("tags", lambda folder: write_hermes_tokenizer(folder, QWEN25)),
    "hermes": ("hermes", lambda folder: write_hermes_tokenizer(folder, QWEN25)),
    "hermes-qwen3": ("hermes", lambda folder: write_hermes_tokenizer(folder, QWEN3)),
    "llama3": ("llama3", write_llama3_tokenizer),
    "qwen3_xml": ("qwen3_xml", write_xml_tokenizer),
}


def tool(name: str, required: list[str], **properties: Row) -> Row:
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": schema},
    }


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS = [
    tool("weather", ["city"], city=TEXT, day={"type": ["string", "null"]}, unit={"type": "string", "enum": ["C", "F"]}),
    tool("convert", ["amount", "to"], amount=NUMBER, to={"anyOf": [TEXT, {"type": "null"}]}, exact={"type": "boolean"}),
    tool("find", ["filters"], filters={"type": "object", "properties": {"tags": {"type": "array", "items": TEXT}, "year": {"type": "integer"}}}),
    tool("look", ["query"], query=TEXT),
    tool("now", []),
]  # fmt: skip
WORDS = (
    "Rome", "caf\u00e9", 'a "b"', "x\ny", "{1}", "[2]", "\\n", "5 < 6", "null", "\u65e5\u672c", " edge ", "it's", "a\tb", "```\nc\n```", "<b>x</b>", "<answer> 7 </answer>",
)  # fmt: skip


def arguments(draw: random.Random, name: str) -> Row:
    word = draw.choice(WORDS)
    values = {
        "weather": {"city": word, "day": draw.choice(WORDS), "unit": "C"},
        "convert": {
            "amount": draw.choice([1, 2.5, -3]),
            "to": draw.choice([None, word]),
            "exact": draw.random() < 0.5,
        },
        "find": {"filters": {"tags": [word, "b"][: draw.randint(0, 2)], "year": draw.randint(1, 2000)}},
        "look": {"query": word},
        "now": {},
    }[name]
    optional = {"weather": ["day", "unit"], "convert": ["exact"], "find": [], "look": [], "now": []}[name]
    return {key: value for key, value in values.items() if key not in optional or draw.random() < 0.5}


def dialogue(draw: random.Random, most_calls: int) -> Row:
    """A row in our own format: OpenAI's messages, the arguments as objects, without nulls that say nothing."""
    messages: list[Row] = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": draw.choice(["Be brief.", "Be\nkind."])})
    number = 0
    for _ in range(draw.randint(1, 3)):
        messages.append({"role": "user", "content": f"{draw.choice(WORDS)} Question?"})
        for _ in range(draw.randint(0, 2)):
            names = [draw.choice(TOOLS)["function"]["name"] for _ in range(draw.randint(1, most_calls))]
            calls = []
            for name in names:
                number += 1
                function = {"name": name, "arguments": arguments(draw, name)}
                calls.append({"id": f"c{number}", "type": "function", "function": function})
            turn: Row = {"role": "assistant", "content": draw.choice(["", "I look."]), "tool_calls": calls}
            messages.append(turn)
            for call in calls:
                text = draw.choice(("9", *WORDS))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        answer: Row = {"role": "assistant", "content": f"Answer {draw.choice(WORDS)}."}
        if draw.random() < 0.2:
            answer["reasoning_content"] = draw.choice(["so", "hm,\nyes"])
        messages.append(answer)
    turns = [message for message in messages if message["role"] == "assistant"]
    for turn in turns[:-1]:
        if draw.random() < 0.1:
            turn["weight"] = 0
    return {"messages": messages, "tools": copy.deepcopy(draw.sample(TOOLS, len(TOOLS)))}


def calls_of(row: Row) -> Iterator[Row]:
    for message in row["messages"]:
        yield from message.get("tool_calls") or []


def filled(value: Any, like: Any) -> Any:
    """A value of a table's column: each record has the fields of all records of its column."""
    if isinstance(value, dict) and isinstance(like, dict):
        # A table has one order of fields for all rows, which no reader can undo; here each record stays in its own.
        return {
            key: filled(value.get(key), like[key]) for key in (*value, *sorted(like.keys() - value.keys()))
        }
    if isinstance(value, list) and isinstance(like, list) and like:
        return [filled(inner, like[0]) for inner in value]
    return value


def merged(values: list[Any]) -> Any:
    """A value with all the fields that records of a column have."""
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: merged([value[key] for value in values if value.get(key) is not None]) for key in keys}
    if all(isinstance(value, list) for value in values):
        inner = [each for value in values for each in value]
        return [merged(inner)] if inner else []
    return values[0]


def with_nulls(row: Row, draw: random.Random) -> Row:
    """As the `datasets` library gives it: the fields of all messages, calls and tools in each of them."""
    extra = {
        "role": "",
        "content": "",
        "name": "",
        "reasoning_content": "",
        "weight": 1,
        "tool_call_id": "",
        "tool_calls": [],
    }
    row["messages"] = filled(row["messages"], [merged([extra, *row["messages"]])])
    row["tools"] = filled(row["tools"], [merged([*row["tools"], {"function": {"strict": True}}])])
    names = draw.sample(
        ["prompt", "completion", "conversations", "instruction", "system", "id", "input", "history"], 3
    )
    return {**dict.fromkeys(names), **row}  # fmt: skip


def with_other_keys(row: Row, draw: random.Random) -> Row:
    name = draw.choice(["parameters", "args", "input"])
    for call in calls_of(row):
        call["function"][name] = call["function"].pop("arguments")
    schema = draw.choice(["input_schema", "inputSchema", "args_schema"])
    for each in row["tools"]:
        each["function"][schema] = each["function"].pop("parameters")
    return row


def with_bare_functions(row: Row, draw: random.Random) -> Row:
    row["tools"] = [each["function"] for each in row["tools"]]
    for message in row["messages"]:
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {"id": call.get("id"), **call["function"]} for call in message["tool_calls"]
            ]
    return row


def with_parts(row: Row, draw: random.Random) -> Row:
    for message in row["messages"]:
        text = message["content"]
        cut = draw.randint(0, len(text))
        message["content"] = [{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:]}]
    return row


def with_other_roles(row: Row, draw: random.Random) -> Row:
    for message in row["messages"]:
        message["role"] = {"system": "developer", "tool": "ipython", "user": "human"}.get(
            message["role"], message["role"]
        )
    return row


def with_results_in_any_order(row: Row, draw: random.Random) -> Row:
    ordered: list[Row] = []
    results: list[Row] = []
    for message in [*row["messages"], {"role": "end"}]:
        if message["role"] == "tool":
            results.append(message)
            continue
        draw.shuffle(results)
        ordered += [*results, message]
        results = []
    row["messages"] = ordered[:-1]
    return row


def with_texts_of_calls(row: Row, draw: random.Random) -> Row:
    for call in calls_of(row):
        function = call["function"]
        key = next(key for key in ("arguments", "parameters", "args", "input") if key in function)
        function[key] = json.dumps(function[key], ensure_ascii=draw.random() < 0.5)
    return row


def with_texts_of_records(row: Row, draw: random.Random) -> Row:
    for message in row["messages"]:
        if message.get("tool_calls"):
            whole = draw.random() < 0.5
            texts = [json.dumps(call) for call in message["tool_calls"]]
            message["tool_calls"] = json.dumps(message["tool_calls"]) if whole else texts
    row["tools"] = [json.dumps(each) if draw.random() < 0.5 else each for each in row["tools"]]
    return row


def with_texts_of_schemas(row: Row, draw: random.Random) -> Row:
    for each in row["tools"]:
        for key in ("parameters", "input_schema", "inputSchema", "args_schema"):
            if key in each["function"]:
                each["function"][key] = json.dumps(each["function"][key])
    if draw.random() < 0.5:
        for each in row["tools"]:
            each["function"] = json.dumps(each["function"])
    return row


INSIDE = (
    with_other_keys,
    with_results_in_any_order,
    with_parts,
    with_other_roles,
    with_texts_of_calls,
    with_texts_of_schemas,
)
"""Other shapes of messages, calls and tools, which may be combined, in this order."""


def as_sharegpt(row: Row, draw: random.Random) -> Row | None:
    """Turns {from, value}; a call is JSON in a turn of its own. None where a field has no place in it."""
    turns: list[Row] = []
    names = {
        "user": "human",
        "assistant": "gpt",
        "tool": "observation",
        "ipython": "tool",
        "system": "system",
    }
    for message in row["messages"]:
        if message.get("reasoning_content"):
            return None
        weight = {"weight": message["weight"]} if "weight" in message else {}
        if message["content"] or not message.get("tool_calls"):
            turns.append({"from": names[message["role"]], "value": message["content"], **weight})
        functions = [call["function"] for call in message.get("tool_calls", [])]
        if functions and draw.random() < 0.5:
            turns.append({"from": "function_call", "value": json.dumps(functions), **weight})
        else:
            turns += [{"from": "function_call", "value": json.dumps(each), **weight} for each in functions]
    system = turns[0]["value"] if turns[0]["from"] == "system" and draw.random() < 0.5 else None
    return {"conversations": turns[system is not None :], "system": system, "tools": row["tools"]}


def as_conversations(row: Row, draw: random.Random) -> Row:
    return {
        **{key: value for key, value in row.items() if key != "messages"},
        "conversations": row["messages"],
    }


def as_prompt_and_completion(row: Row, draw: random.Random) -> Row | None:
    """TRL's rows. None where the prompt is not all that stands before the first turn."""
    first = next(index for index, message in enumerate(row["messages"]) if message["role"] == "assistant")
    if row["messages"][first].get("weight") == 0:
        return None
    prompt: Any = row["messages"][:first]
    if len(prompt) == 1:
        text = prompt[0]["content"]
        prompt = draw.choice(
            [prompt, prompt[0], json.dumps(prompt[0]), *([text] if isinstance(text, str) else [])]
        )
    elif draw.random() < 0.5:
        prompt = json.dumps(prompt)
    others = {key: value for key, value in row.items() if key not in ("messages", "prompt", "completion")}
    return {"prompt": prompt, "completion": row["messages"][first:], **others}


def as_texts_of_dialect(row: Row, draw: random.Random, dialect: str) -> Row:
    """Calls in the dialect's text, and results in its tags, in messages of a tool or of the user."""
    if dialect == "tags" and "<answer>" in json.dumps(list(calls_of(row))):
        # No rollout could write it so: the text is refused, where the structured call is written with another spelling.
        return row
    turns: list[Row] = []
    results: list[str] = []
    for message in [*row["messages"], {"role": "end"}]:
        if message["role"] == "tool":
            results.append(message["content"])
            continue
        if results and dialect == "llama3":
            turns += [{"role": "ipython", "content": text} for text in results]
        elif dialect == "tags" and any("<answer>" in text for text in results):
            # Within the dialect's own tags an answer is refused; a message of the tool has it escaped.
            turns += [{"role": "tool", "content": text} for text in results]
        elif results:
            name = "result" if dialect == "tags" else "tool_response"
            wrapped = [f"<{name}>\n{text}\n</{name}>" for text in results]
            turns.append({"role": draw.choice(["user", "tool"]), "content": "\n".join(wrapped)})
        results = []
        calls = [call_text(call["function"], dialect) for call in message.pop("tool_calls", [])]
        if calls and dialect == "llama3":
            message["content"] += ("<|python_tag|>" if message["content"] else "") + "; ".join(calls)
        elif calls:
            message["content"] = "\n".join(filter(None, [message["content"], *calls]))
        turns.append(message)
    return {**row, "messages": turns[:-1]}


def call_text(function: Row, dialect: str) -> str:
    name, values = function["name"], function["arguments"]
    written = json.dumps(values, ensure_ascii=False)
    if dialect == "tags":
        return f"<{name}> {values['query'] if name == 'look' else written} </{name}>"
    if dialect == "llama3":
        return json.dumps({"name": name, "parameters": values}, ensure_ascii=False)
    if dialect == "hermes":
        return f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>"
    pairs = [
        f"<parameter={key}>\n{json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value}\n</parameter>\n"
        for key, value in values.items()
    ]
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"


def as_alpaca(row: Row, draw: random.Random) -> Row | None:
    """None unless it is one question and its answer, without calls."""
    messages = [message for message in row["messages"] if message["role"] != "system"]
    if len(messages) != 2 or "reasoning_content" in messages[1]:
        return None
    system = row["messages"][0]["content"] if len(row["messages"]) > 2 else None
    return {
        "instruction": messages[0]["content"],
        "input": draw.choice([None, ""]),
        "output": messages[1]["content"],
        "system": system,
        "tools": row["tools"],
    }


def shaped(twin: Row, draw: random.Random, dialect: str) -> Row:
    """The row in another shape."""
    row = copy.deepcopy(twin)
    if draw.random() < 0.15:
        row = as_texts_of_dialect(row, draw, dialect)
    whole = draw.choice([as_sharegpt, as_alpaca, as_conversations, as_prompt_and_completion, None, None])
    if whole in (as_sharegpt, as_alpaca):
        assert whole is not None
        if (other := whole(copy.deepcopy(row), draw)) is not None:
            return other
        whole = None
    row = changed_inside(row, draw)
    if whole is not None:
        row = whole(row, draw) or row
    if draw.random() < 0.3:
        for key in sorted({"messages", "conversations", "completion", "tools"} & row.keys()):
            if row[key] is not None and not isinstance(row[key], str):
                row[key] = json.dumps(row[key], indent=draw.choice([None, 1]))
    return row


def changed_inside(row: Row, draw: random.Random) -> Row:
    for change in INSIDE:
        if draw.random() < 0.4:
            row = change(row, draw)
    if any(isinstance(each["function"], str) for each in row["tools"]):
        return row
    if draw.random() < 0.5:
        row = with_nulls(row, draw)
    if draw.random() < 0.3:
        row = with_bare_functions(row, draw) if draw.random() < 0.5 else with_texts_of_records(row, draw)
    return row


def write(path: Path, rows: list[Row]) -> Path:
    """Write rows; what a cell of a table cannot hold, or not all rows alike, as JSON text."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    elif path.suffix == ".parquet":
        pq.write_table(
            pa.Table.from_pydict({name: [row.get(name) for row in rows] for name in columns(rows)}), path
        )
    else:
        names = columns(rows)
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            table.writerow(names)
            for row in rows:
                cells = (row.get(name) for name in names)
                table.writerow([cell if isinstance(cell, str | None) else json.dumps(cell) for cell in cells])
    return path


def columns(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def as_columns_of_texts(row: Row) -> Row:
    """A table that may hold any row."""
    return {key: value if isinstance(value, str | None) else json.dumps(value) for key, value in row.items()}


Trained = list[tuple[tuple[str, tuple[int, ...]], ...]]
"""The examples of a row: the tokens of each node, and whether they carry a loss."""


def trained(recipe: SftRecipe, rows: RowRenderer, path: Path) -> tuple[dict[int, Trained], str]:
    """Return what is trained on by the number of the row, and the notes about rows that cannot be used."""
    data = replace(recipe.data, train=path)
    texts = PromptTexts(recipe.model.dialect)
    pairs = isinstance(recipe, DpoRecipe)
    size = rows.renderer.tokenizer.vocab_size
    reader = ExampleReader(data, rows, print, texts=texts, pairs=pairs, may_end_in_call=False, num_ids=size)
    examples: dict[int, Trained] = {}
    for example in reader:
        nodes = [
            tuple((node.source.value, node.token_ids) for node in tree.nodes)
            for tree in rows.trees(example, TreeKey(0, 0))
        ]
        assert isinstance(example.row, int)
        examples.setdefault(example.row, []).extend(nodes)
    try:
        reader.require_usable()
    except DataError as error:
        return examples, str(error)
    return examples, " ".join(reader.notes)


def opened(tmp_path: Path, setup: str, schema: type[SftRecipe]) -> tuple[SftRecipe, RowRenderer]:
    dialect, write_tokenizer = SETUPS[setup]
    table: Row = {
        "model": {"path": str(write_tokenizer(tmp_path / "model")), "dialect": dialect},
        "data": {"train": "rows.jsonl", "max_tokens": 4000, "malformed": "drop"},
        "run": {"dir": str(tmp_path / "run")},
        "learner": {"batch_size": 1, "optimizer": {"rate": 1e-3}},
    }
    if schema is DpoRecipe:
        table["learner"]["beta"] = 0.1
    recipe = check_recipe(schema, table, "recipe")
    return recipe, open_examples(recipe, show_tools(recipe.tools, recipe.environment), print)[0]


KINDS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")


@pytest.mark.parametrize("setup", SETUPS)
def test_demonstrations_in_any_shape_are_trained_on_as_their_twins(tmp_path: Path, setup: str) -> None:
    recipe, renderer = opened(tmp_path, setup, SftRecipe)
    draw = random.Random(setup)
    twins = [dialogue(draw, 1 if setup == "tags" else 2) for _ in range(COUNT // len(SETUPS))]
    expected, _ = trained(recipe, renderer, write(tmp_path / "twins.jsonl", twins))
    assert len(expected) > 0.7 * len(twins)
    by_kind: dict[str, list[tuple[int, Row]]] = {kind: [] for kind in KINDS}
    for number, twin in enumerate(twins, 1):
        kind = draw.choice(KINDS)
        row = shaped(twin, draw, SETUPS[setup][0])
        by_kind[kind].append((number, as_columns_of_texts(row) if kind == ".parquet" else row))
    for kind, numbered in by_kind.items():
        if not numbered:
            continue
        examples, notes = trained(
            recipe, renderer, write(tmp_path / f"rows{kind}", [row for _, row in numbered])
        )
        for position, (number, row) in enumerate(numbered, kind != ".parquet"):
            assert examples.get(position) == expected.get(number), (kind, twins[number - 1], row, notes)


def as_pair(chosen: Row, rejected: Row) -> Row:
    """One row of two: lists of messages with their prompt, or a prompt with two sides."""
    others = {key: value for key, value in chosen.items() if key not in ("messages", "completion", "output")}
    if chosen.get("completion") is not None or ("instruction" in chosen and chosen.get("output") is not None):
        side = "output" if chosen.get("completion") is None else "completion"
        return {**others, "chosen": chosen[side], "rejected": rejected[side]}
    side = "messages" if chosen.get("messages") is not None else "conversations"
    others.pop("conversations", None)
    return {**others, "chosen": chosen[side], "rejected": rejected[side]}


@pytest.mark.parametrize("setup", SETUPS)
def test_pairs_in_any_shape_are_trained_on_as_their_twins(tmp_path: Path, setup: str) -> None:
    recipe, renderer = opened(tmp_path, setup, DpoRecipe)
    draw = random.Random(setup)
    twins: list[Row] = []
    by_kind: dict[str, list[tuple[int, Row]]] = {kind: [] for kind in KINDS}
    for number in range(1, COUNT // len(SETUPS) + 1):
        chosen = dialogue(draw, 1 if setup == "tags" else 2)
        for message in chosen["messages"]:
            message.pop("weight", None)
        rejected = copy.deepcopy(chosen)
        rejected["messages"][-1]["content"] = "Who knows?"
        twins.append(as_pair(chosen, rejected))
        seed = draw.random()
        row = as_pair(*(shaped(side, random.Random(seed), SETUPS[setup][0]) for side in (chosen, rejected)))
        kind = draw.choice(KINDS)
        by_kind[kind].append((number, as_columns_of_texts(row) if kind == ".parquet" else row))
    expected, _ = trained(recipe, renderer, write(tmp_path / "twins.jsonl", twins))
    assert len(expected) > 0.7 * len(twins)
    for kind, numbered in by_kind.items():
        if not numbered:
            continue
        path = write(tmp_path / f"rows{kind}", [row for _, row in numbered])
        examples, notes = trained(recipe, renderer, path)
        for position, (number, row) in enumerate(numbered, kind != ".parquet"):
            assert examples.get(position) == expected.get(number), (kind, twins[number - 1], row, notes)


def _calls(row: Row) -> Row:
    """The first call's function; the row gets one if it has none."""
    messages = row["messages"]
    first = next((call["function"] for call in calls_of(row)), None)
    if first is None:
        first = {"name": "look", "arguments": {"query": "a"}}
        user = next(index for index, message in enumerate(messages) if message["role"] == "user")
        calls = [{"id": "c0", "type": "function", "function": first}]
        messages[user + 1 : user + 1] = [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c0", "content": "r"},
        ]
    for message in messages:
        message.pop("weight", None)
    return first


def _rename(record: Row, old: str, new: str) -> None:
    record[new] = record.pop(old)


SPOILED: dict[str, Callable[[Row], object]] = {
    "has no argument 'town'": lambda row: _calls(row)["arguments"].update(town="Oslo"),
    "needs 'query'": lambda row: _calls(row).update(name="look", arguments={}),
    "neither the recipe's nor the row's": lambda row: _calls(row).update(name="fly"),
    "'kwargs'": lambda row: _calls(row).update(kwargs={"city": "Oslo"}),
    "'arguments' and args": lambda row: _calls(row).update(args={"city": "Oslo"}),
    "the arguments of a call of message": lambda row: _calls(row).update(arguments="{'query': 'a'}"),
    "'messages' has 'critic'": lambda row: row["messages"][-1].update(role="critic"),
    "'messages' has 'refusal'": lambda row: row["messages"][-1].update(refusal="no"),
    "'messages' has content that is not text": lambda row: row["messages"][0].update(content=[{"type": "image"}]),
    "the weight of a message must be 0 or 1": lambda row: row["messages"][-1].update(weight=0.5),
    "'messages' cannot be read": lambda row: row.update(messages=str(row["messages"])),
    "has 'schema', which is not read": lambda row: _rename(row["tools"][0]["function"], "parameters", "schema"),
    "its tools cannot be read": lambda row: row.update(tools=str(row["tools"])),
    "dialogue": lambda row: _rename(row, "messages", "dialogue"),
}  # fmt: skip


@pytest.mark.parametrize("setup", SETUPS)
def test_a_row_that_would_be_trained_on_otherwise_is_refused(tmp_path: Path, setup: str) -> None:
    recipe, renderer = opened(tmp_path, setup, SftRecipe)
    draw = random.Random(setup)
    for number in range(max(COUNT // len(SETUPS) // 4, len(SPOILED))):
        reason, spoil = list(SPOILED.items())[number % len(SPOILED)]
        row = dialogue(draw, 1)
        spoil(row)
        examples, notes = trained(recipe, renderer, write(tmp_path / "rows.jsonl", [row]))
        assert (examples, reason in notes) == ({}, True), (reason, row, notes)


PROMPTS: tuple[Callable[[list[Row]], Row], ...] = (
    lambda prompt: {"prompt": prompt},
    lambda prompt: {"prompt": json.dumps(prompt)},
    lambda prompt: {"messages": prompt, "prompt": None},
    lambda prompt: {"conversations": [{"from": ROLES[each["role"]], "value": each["content"]} for each in prompt]},
    lambda prompt: {"prompt": [{**each, "name": None, "tool_calls": None} for each in prompt]},
    lambda prompt: {"prompt": [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in prompt]},
    lambda prompt: {"question": prompt[0]["content"]} if len(prompt) == 1 else {"messages": json.dumps(prompt)},
    lambda prompt: {"prompt": prompt[0] if len(prompt) == 1 else prompt},
    lambda prompt: {"prompt": json.dumps(prompt[0] if len(prompt) == 1 else prompt)},
)  # fmt: skip
ROLES = {"system": "system", "user": "human"}
GOLDS: tuple[Callable[[list[str]], Row], ...] = (
    lambda golds: {"answer": golds},
    lambda golds: {"answer": golds[0] if len(golds) == 1 else golds},
    lambda golds: {"ground_truth": golds, "answer": None},
    lambda golds: {"ground_truth": {"target": golds}},
    lambda golds: {"ground_truth": json.dumps({"target": golds})},
    lambda golds: {"reward_model": {"style": "rule", "ground_truth": golds}},
    lambda golds: {"reward_model": json.dumps({"style": "rule", "ground_truth": {"target": golds}}), "extra_info": None},
    lambda golds: {"reward_model": {"style": "rule", "ground_truth": {"target": golds}}, "extra_info": json.dumps({"n": 1})},
    lambda golds: {"golden_answers": golds},
)  # fmt: skip


def test_problems_in_any_shape_and_file_are_their_twins(tmp_path: Path) -> None:
    draw = random.Random(0)
    by_kind: dict[str, list[tuple[Row, Row]]] = {kind: [] for kind in KINDS}
    for number in range(COUNT):
        prompt = [{"role": "user", "content": f"{number} {draw.choice(WORDS)} Q?"}]
        if draw.random() < 0.5:
            prompt.insert(0, {"role": "system", "content": "Be brief."})
        golds = [f"{word} {number}" for word in draw.sample(WORDS, draw.randint(1, 2))]
        gold = draw.choice(GOLDS)(golds)
        # In a table of texts a list would be one text, with a note.
        kind = draw.choice(KINDS[:2] if any(isinstance(value, list) for value in gold.values()) else KINDS)
        row = {**gold, **draw.choice(PROMPTS)(prompt)}
        by_kind[kind].append(({"prompt": prompt, "answer": golds}, row))
    for kind, pairs in by_kind.items():
        rows = [as_columns_of_texts(row) if kind == ".parquet" else row for _, row in pairs]
        problems = load_problems(write(tmp_path / f"rows{kind}", rows)).problems
        twins = load_problems(write(tmp_path / "twins.jsonl", [twin for twin, _ in pairs])).problems
        assert [(p.messages, p.answer) for p in problems] == [(p.messages, p.answer) for p in twins], kind
