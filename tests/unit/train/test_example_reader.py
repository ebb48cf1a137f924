"""What of a file is trained on, and how what is left out is counted and named."""

import json

import pytest

from hermes_folders import FAMILIES, write_hermes_tokenizer
from ramify.config.build_model import build_tokenizer
from ramify.config.build_tools import show_tools
from ramify.config.load import check_recipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.core.errors import DataError
from ramify.core.tree import Source, TreeKey
from ramify.train.examples import ExampleReader, RowRenderers

USER = {"role": "user", "content": "Which is older?"}
ANSWER = "<answer> 4 </answer>"
PLAIN = {"prompt": [USER], "completion": ANSWER}
ALPACA = {"instruction": "Which is older?", "output": ANSWER}
TOOL = {"name": "age", "description": "Says how old it is.", "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}}  # fmt: skip
CALL = {"id": "c", "function": {"name": "age", "arguments": '{"of": "Rome"}'}}
OPENAI = {
    "messages": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "2779"},
        {"role": "assistant", "content": "It is 4."},
    ],
    "tools": [{"type": "function", "function": TOOL}],
}
BAD = {**PLAIN, "completion": "<think> a"}


@pytest.fixture
def read(tmp_path, tokenizer_folder):
    """Reads rows as a run would; gives the examples, the reader and the renderers."""

    def reads(
        rows, model=tokenizer_folder, schema=SftRecipe, tools=None, dialect="tags", environment=None, **data
    ):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        table = {
            "model": {"path": str(model), "dialect": dialect},
            "data": {"train": str(path), "max_tokens": 400, **data},
            "run": {"dir": str(tmp_path / "run")},
            "learner": {"batch_size": 1, "optimizer": {"rate": 1e-3}},
            "tools": tools or {},
        }
        if schema is DpoRecipe:
            table["learner"]["beta"] = 0.1
        if environment:
            table["environment"] = environment
        recipe = check_recipe(schema, table, "recipe")
        shown = show_tools(recipe.tools, recipe.environment)
        renderers = RowRenderers(recipe, build_tokenizer(recipe.model.folder), shown)
        reader = ExampleReader(recipe, renderers)
        return tuple(reader), reader, renderers

    return reads


def test_rows_of_several_formats_are_read_each_by_its_own(read):
    examples, reader, _ = read([ALPACA, PLAIN, OPENAI, ALPACA])
    reader.require_usable()
    assert [example.row for example in examples] == [1, 2, 3, 4]
    assert examples[0].sides == examples[1].sides
    assert [note.partition("rows.jsonl: ")[2] for note in reader.notes] == [
        "rows of 3 formats: 2 alpaca (from row 1), 1 plain (from row 2), 1 OpenAI (from row 3)"
    ]
    assert read([PLAIN])[1].notes == ()


def test_rows_that_cannot_be_used_end_the_run_in_one_line(read):
    rows = [PLAIN, BAD, "{", *[{**PLAIN, "completion": " "}] * 12, {"text": "a"}]
    examples, reader, _ = read(rows)
    assert [example.row for example in examples] == [1]
    with pytest.raises(DataError) as caught:
        reader.require_usable()
    told = str(caught.value).partition("rows.jsonl")[2]
    assert told == (
        ": 15 of 16 rows cannot be used: 12 rows (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...): nothing is left to train on; row 2: "
        "tags are not balanced: <think> is not closed; row 3: broken JSON: Expecting property name enclosed in double quotes at "
        "column 2; row 16: its format is not known: expected prompt, messages, conversations or instruction: found text. "
        'Mend them, or leave them out with data.malformed = "drop"'
    )
    with pytest.raises(
        DataError, match=r"rows\.jsonl row 2: tags are not balanced: <think> is not closed\. Mend them"
    ):
        read([PLAIN, BAD])[1].require_usable()


def test_rows_that_cannot_be_used_may_be_left_out(read):
    examples, reader, _ = read([PLAIN, BAD, PLAIN], malformed="drop")
    reader.require_usable()
    assert [example.row for example in examples] == [1, 3]
    assert reader.notes[0].endswith(
        "rows.jsonl: left out 1 of 3 rows that cannot be used: row 2: tags are not balanced: <think> is not closed"
    )
    _, reader, _ = read([BAD, BAD], malformed="drop")
    with pytest.raises(DataError, match=r"no example is left: left out 2 of 2 rows that cannot be used"):
        reader.require_usable()


@pytest.mark.parametrize("content", [[], ["", "  "]])
def test_a_file_without_rows(read, content):
    with pytest.raises(DataError, match=r"rows\.jsonl: expected examples, the file is empty"):
        read(content)[1].require_usable()


def test_long_rows_are_left_out_whatever_else_is_wrong_with_them(read):
    long = {**PLAIN, "completion": "<think>" + "word " * 30_000}
    prompt = {"prompt": "word " * 30_000, "completion": ANSWER}
    examples, reader, _ = read([long, PLAIN, prompt])
    reader.require_usable()
    assert [example.row for example in examples] == [2]
    assert "left out 2 of 3 rows with more than data.max_tokens = 400 tokens: rows 1, 3" in reader.notes[0]


def test_escaped_programs_are_repaired_and_counted(read):
    code = r"<python>x = 1\nprint(x)</python> <result>1</result>" + ANSWER
    examples, reader, _ = read([PLAIN, {**PLAIN, "completion": code}])
    assert examples[1].sides[0][0] == (Source.POLICY, "<python>x = 1\nprint(x)</python>")
    assert (
        "gave python programs their line breaks back, which were escaped, in 1 of 2 rows: row 2"
        in reader.notes[0]
    )


def text_of(renderers, example):
    (tree,) = renderers.trees(example, TreeKey(0, 0))
    return tree.nodes[0].text, [node.source for node in tree.nodes[1:]], tree.nodes[1].calls


@pytest.mark.parametrize("dialect", ["tags", "hermes"])
def test_a_rows_own_tools_are_in_its_prompt_and_its_calls_are_read_with_them(
    read, tmp_path, tokenizer_folder, dialect
):
    model = write_hermes_tokenizer(tmp_path / "model") if dialect == "hermes" else tokenizer_folder
    examples, reader, renderers = read(
        [OPENAI, {**OPENAI, "tools": None}, OPENAI], model=model, dialect=dialect, max_tokens=2000
    )
    if dialect == "tags":
        with pytest.raises(
            DataError, match="row 2: it calls a tool that is neither the recipe's nor the row's: age"
        ):
            reader.require_usable()
    first, last = text_of(renderers, examples[0]), text_of(renderers, examples[-1])
    assert first == last
    assert TOOL["description"] in first[0]
    assert first[1] == [Source.POLICY, Source.TOOL, Source.POLICY]
    assert [(call.name, dict(call.arguments)) for call in first[2]] == [("age", {"of": "Rome"})]
    assert renderers.of(examples[0].tools) is renderers.of(examples[-1].tools)


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_have_the_tokens_of_the_chat_template_itself(read, tmp_path, family):
    model = write_hermes_tokenizer(tmp_path / "model", family)
    asked = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, {**CALL, "id": "d"}]}
    tool = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("c", "d")]
    said = {"role": "assistant", "content": "It is 4.", "reasoning_content": "so"}
    row = {**OPENAI, "messages": [USER, asked, *tool, said]}
    (example,), _, renderers = read([row], model=model, dialect="hermes", max_tokens=3000)
    (tree,) = renderers.trees(example, TreeKey(0, 0))
    (segment,) = tree.trajectories[0].segments
    for call in asked["tool_calls"]:
        call["function"] = {**call["function"], "arguments": {"of": "Rome"}}
    said["content"] = "<think>\nso\n</think>\n\nIt is 4."
    tokenizer = renderers.of("").tokenizer
    whole = tokenizer.template.render(row["messages"], row["tools"]).removesuffix("\n<|im_start|>assistant\n")
    assert segment.token_ids == tokenizer.encode(whole)


def test_the_recipes_tools_stand_above_the_rows(read):
    tools = {"python": {}}
    code = {"prompt": [USER], "completion": f"<python> 1 </python> <result>1</result>{ANSWER}"}
    examples, reader, renderers = read([code, OPENAI, {**code, "tools": [TOOL]}], tools=tools)
    with pytest.raises(
        DataError, match="row 2: it calls a tool that is neither the recipe's nor the row's: age"
    ):
        reader.require_usable()
    assert [example.row for example in examples] == [1, 3]
    assert renderers.of(examples[1].tools) is renderers.of("")


def test_tools_that_the_dialect_cannot_have_are_told_by_row(read):
    row = {
        **OPENAI,
        "tools": [{**TOOL, "name": "get-age"}],
        "messages": [USER, {"role": "assistant", "content": ANSWER}],
    }
    with pytest.raises(
        DataError, match="row 1: its tools cannot be shown: tool 'get-age': expected a name of letters"
    ):
        read([row])[1].require_usable()


def test_an_environment_may_end_a_demonstration_with_its_call(read, tmp_path):
    world = tmp_path / "world.py"
    world.write_text(
        "class World:\n    def reset(self) -> str:\n        return ''\n    def take(self, count: str) -> str:\n"
        '        """Takes.\n\n        Args:\n            count: How many.\n        """\n        return ""\n'
    )
    row = {"prompt": [USER], "completion": "<take> 1 </take> <result>1</result><take> 2 </take>"}
    examples, reader, _ = read([row], environment={"path": str(world), "function": "World"})
    reader.require_usable()
    assert len(examples) == 1


def test_pairs(read):
    sides = {"chosen": ANSWER, "rejected": "<answer> 5 </answer>"}
    sharegpt = {"conversations": [{"from": "human", "value": "?"}], "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}}  # fmt: skip
    rows = [
        {"prompt": [USER], **sides},
        sharegpt,
        {"prompt": [USER], "chosen": ANSWER, "rejected": ANSWER},
        {"prompt": [USER], "chosen": f"<search> a </search> <result>\nb\n</result>{ANSWER}", "rejected": f"<search> a </search> <result>b</result>{ANSWER}"},
        {"prompt": [USER], **sides, "rejected": "<think> a"},
    ]  # fmt: skip
    examples, reader, renderers = read(rows, schema=DpoRecipe)
    assert [example.row for example in examples] == [1, 2]
    chosen, rejected = renderers.trees(examples[0], TreeKey(0, 0))
    assert chosen.nodes[0].token_ids == rejected.nodes[0].token_ids
    with pytest.raises(DataError) as caught:
        reader.require_usable()
    assert "2 rows (3, 4): chosen and rejected are the same tokens up to the end of one" in str(caught.value)
    assert "row 5: tags are not balanced" in str(caught.value)
