"""What of a file is trained on, and how what is left out is counted and named."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dialect_folders import WRITERS
from hermes_folders import FAMILIES, write_hermes_tokenizer
from ramify.assemble.examples import open_examples
from ramify.assemble.model import build_tokenizer
from ramify.assemble.tools import show_tools
from ramify.chat.tokenizer import ChatTokenizer
from ramify.config.load import check_recipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.core.errors import DataError
from ramify.core.tree import Source, TreeKey
from ramify.train import examples

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
    """Reads rows as a run would; gives the examples, the reader and the renderer of rows."""

    def reads(
        rows,
        model=tokenizer_folder,
        schema=SftRecipe,
        tools=None,
        dialect="tags",
        environment=None,
        name="rows.jsonl",
        note=lambda _: None,
        **data,
    ):
        path = tmp_path / name
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text(
                "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
            )
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
        rendering, reader = open_examples(recipe, shown, note)
        return tuple(reader), reader, rendering

    return reads


def test_rendering_several_formats_are_read_each_by_its_own(read):
    examples, reader, _ = read([ALPACA, PLAIN, OPENAI, ALPACA])
    reader.require_usable()
    assert [example.row for example in examples] == [1, 2, 3, 4]
    assert examples[0].sides == examples[1].sides
    assert [note.partition("rows.jsonl: ")[2] for note in reader.notes] == [
        "rows of 3 formats: 2 alpaca (from row 1), 1 plain (from row 2), 1 OpenAI (from row 3)"
    ]
    assert read([PLAIN])[1].notes == ()


@pytest.mark.parametrize(
    ("begun", "completion"),
    [
        ("Let me think. ", [{"role": "assistant", "content": "It is <answer> 4 </answer>"}]),
        ("<think>", " easy </think><answer> 4 </answer>"),
    ],
)
def test_a_completion_continues_the_turn_that_the_prompt_begins(read, begun, completion):
    row = {"prompt": [USER, {"role": "assistant", "content": begun}], "completion": completion}
    (example,), reader, rows = read([row])
    reader.require_usable()
    (tree,) = rows.trees(example, TreeKey(0, 0))
    text = completion if isinstance(completion, str) else completion[0]["content"]
    assert "".join(node.text for node in tree.nodes).endswith(f"assistant\n{begun}{text}<|im_end|>")
    assert tree.nodes[-1].text == f"{text}<|im_end|>"


def test_a_sampled_pair_may_hold_an_id_that_the_model_has_and_the_tokenizer_has_not(
    read, tokenizer_folder, tmp_path
):
    """Models pad their vocabulary, and now and then a policy samples one of these ids."""
    padded = shutil.copytree(tokenizer_folder, tmp_path / "padded")
    tokenizer = ChatTokenizer(padded)
    size = tokenizer.vocab_size
    (padded / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": size + 8}))
    prompt, chosen, rejected = map(tokenizer.encode, ("Which?", "It is 4.", "It is 5."))

    def reading(model, beyond):
        ids = {
            "prompt": prompt,
            "chosen": [["policy", [*chosen, beyond]]],
            "rejected": [["policy", rejected]],
        }
        row = {
            "prompt": [USER],
            "prompt_text": "Which?",
            "chosen": "It is 4.",
            "rejected": "It is 5.",
            "ids": ids,
        }
        return read([row], model=model, schema=DpoRecipe)

    (example,), reader, _ = reading(padded, size + 7)
    reader.require_usable()
    assert example.recorded.ids[1] == (*chosen, size + 7)
    for model, beyond in ((padded, size + 8), (tokenizer_folder, size)):
        with pytest.raises(DataError, match="another model's tokenizer"):
            reading(model, beyond)[1].require_usable()


def test_rows_that_cannot_be_used_end_the_run_in_one_line(read):
    rows = [PLAIN, BAD, "{", *[{**PLAIN, "completion": " "}] * 12, {"text": "a"}]
    examples, reader, _ = read(rows)
    assert [example.row for example in examples] == [1]
    with pytest.raises(DataError) as caught:
        reader.require_usable()
    message = str(caught.value).partition("rows.jsonl")[2]
    assert message == (
        ": 15 of 16 rows cannot be used: 12 rows (4, 5, 6, 7, 8, 9, 10, 11, 12, 13, ...): nothing is left to train on; row 2: "
        "tags are not balanced: <think> is not closed; row 3: broken JSON: Expecting property name enclosed in double quotes at "
        "column 2; row 16: unknown format: expected prompt, messages, conversations or instruction: found text. "
        'Mend them, or leave them out with data.malformed = "drop"'
    )
    with pytest.raises(DataError, match=r"rows\.jsonl row 2: .*<think> is not closed"):
        read([PLAIN, BAD])[1].require_usable()


def test_rows_that_cannot_be_used_may_be_left_out(read):
    examples, reader, _ = read([PLAIN, BAD, PLAIN], malformed="drop")
    reader.require_usable()
    assert [example.row for example in examples] == [1, 3]
    assert reader.notes[0].endswith(
        "rows.jsonl: left out 1 of 3 rows that cannot be used: row 2: tags are not balanced: <think> is not closed"
    )
    _, reader, _ = read([BAD, BAD], malformed="drop")
    with pytest.raises(DataError, match=r"left out 2 of 2 rows"):
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


def test_exactly_max_tokens_are_kept(read):
    row = {**PLAIN, "completion": "<think> one two </think>" + ANSWER}
    (example,), _, rendering = read([row])
    (tree,) = rendering.trees(example, TreeKey(0, 0))
    size = sum(len(node.token_ids) for node in tree.nodes)
    assert len(read([row], max_tokens=size)[0]) == 1
    assert read([row], max_tokens=size - 1)[0] == ()


def test_rows_that_are_too_large_to_be_read_have_a_reason_of_their_own(read, monkeypatch):
    monkeypatch.setattr("ramify.data.row_files.MAX_ROW_BYTES", 2 << 20)
    huge, long = ({**PLAIN, "completion": "word " * words} for words in (600_000, 30_000))
    _, reader, _ = read([huge, PLAIN, long])
    reader.require_usable()
    assert [note.partition("rows.jsonl: ")[2] for note in reader.notes] == [
        "left out 1 of 3 rows with more than 2 MiB: row 1",
        "left out 1 of 3 rows with more than data.max_tokens = 400 tokens: row 3",
    ]


def test_rendering_parquet_are_said_to_count_from_0(read):
    rows = [{"prompt": "?", "completion": text} for text in (ANSWER, "<think> a", "<think> a")]
    with pytest.raises(
        DataError, match=r"rows\.parquet \(rows count from 0\): 2 of 3 rows .* 2 rows \(1, 2\)"
    ):
        read(rows, name="rows.parquet")[1].require_usable()
    with pytest.raises(DataError, match=r"rows\.parquet \(rows count from 0\) row 1: "):
        read(rows[:2], name="rows.parquet")[1].require_usable()
    _, reader, _ = read(rows, name="rows.parquet", malformed="drop")
    assert "rows.parquet (rows count from 0): left out 2 of 3 rows" in reader.notes[0]


@pytest.mark.parametrize("dialect", ["tags", "hermes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_turn_of_a_dialogue_is_trained_on(read, tmp_path, dialect, family):
    """Use one context where the template keeps earlier turns, else an example for each exchange."""
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    results = {"role": "tool", "tool_call_id": "c", "content": "2779"}
    close = "<answer> {} </answer>" if dialect == "tags" else "It is {}!"
    asks = [{"role": "user", "content": text} for text in ("one?", "two?", "three?")]
    last = [{"role": "assistant", "content": close.format(text)} for text in ("a", "b", "c")]
    talk = {
        "messages": [
            *(asks[0], calls, results, last[0]),
            *(asks[1], {**last[1], "weight": 0}),
            *(asks[2], calls, results, last[2]),
        ],
        "tools": [TOOL],
    }
    model = write_hermes_tokenizer(tmp_path / "model", family)
    examples, reader, rows = read([talk], model=model, dialect=dialect, max_tokens=4000)
    reader.require_usable()
    trees = [tree for example in examples for tree in rows.trees(example, TreeKey(0, 0))]
    assert len(trees) == (1 if family == FAMILIES[0] else 2)
    written = "".join(node.text for tree in trees for node in tree.nodes if node.source is Source.POLICY)
    end = rows.renderer.ends[0]
    call = "<age> Rome </age>" if dialect == "tags" else None
    assert written.count(call or '{"name": "age", "arguments": {"of": "Rome"}}') == 2
    assert written.count(close.format("a") + end) == written.count(close.format("c") + end) == 1
    assert close.format("b") + end not in written
    assert "2779" not in written
    whole = "".join(node.text for node in trees[-1].nodes)
    for text in ("one?", close.format("a"), "two?", close.format("b"), "three?", close.format("c")):
        assert whole.count(text) == 1, text
    if dialect == "hermes":
        template = rows.renderer.tokenizer.template
        spoken = json.loads(
            json.dumps(talk["messages"]).replace(json.dumps(CALL["function"]["arguments"]), '{"of": "Rome"}')
        )
        shown = template.render(spoken, [{"type": "function", "function": TOOL}])
        assert shown.startswith(whole) or family != FAMILIES[0]


@pytest.mark.parametrize("weight", [1, 0])
@pytest.mark.parametrize(
    ("dialect", "call"),
    [
        ("hermes", "<tool_call>\n{'name': 'move', 'arguments': {'x': 1, 'y': 2}}\n</tool_call>"),
        ("hermes", '<tool_call>\n{"name": "move", "parameters": {"x": 1, "y": 2}}\n</tool_call>'),
        ("tags", "<move> {x: 1, y: 2} </move>"),
    ],
)
def test_a_call_that_rl_would_answer_with_malformed_is_refused_where_it_is_trained_on(
    read, tmp_path, dialect, call, weight
):
    numbers = {"x": {"type": "integer"}, "y": {"type": "integer"}}
    move = {"name": "move", "parameters": {"type": "object", "properties": numbers, "required": ["x", "y"]}}
    spoken = [
        {"role": "assistant", "content": call, "weight": weight},
        {"role": "tool", "content": "no"},
        {"role": "assistant", "content": ANSWER},
    ]
    model = write_hermes_tokenizer(tmp_path / "model")
    _, reader, _ = read(
        [{"messages": [USER, *spoken], "tools": [move]}], model=model, dialect=dialect, max_tokens=4000
    )
    if weight:
        with pytest.raises(
            DataError, match=r"row 1: a call cannot be read: its (text is|arguments are) not a JSON object"
        ):
            reader.require_usable()
    else:
        reader.require_usable()


@pytest.mark.parametrize("form", ["plain", "ShareGPT", "alpaca", "OpenAI"])
def test_rows_that_say_that_they_are_not_trained_on_are_left_out_and_counted(read, form):
    """Leave out rejected rows of KTO and rows without weight, even where nothing else of them can be read."""
    row = {
        "plain": PLAIN,
        "ShareGPT": {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": ANSWER}]},
        "alpaca": ALPACA,
        "OpenAI": OPENAI,
    }[form]
    signs = [{"label": False}, {"label": "False"}, {"weight": 0}, {"loss": 0.0}, {"train": False}]
    trained = [{"label": True, "weight": 1}, {"label": 0, "weight": None}, {"label": "0", "loss": "1.0"}]
    rows = [*({**row, **sign} for sign in (*signs, *trained)), {**BAD, "label": False}]
    examples, reader, _ = read(rows)
    reader.require_usable()
    # The number 0 is KTO's only beside its own column of the answer.
    is_kto = form == "plain"
    assert [example.row for example in examples] == ([6, 8] if is_kto else [6, 7, 8])
    assert [note.partition("rows.jsonl: ")[2] for note in reader.notes] == [
        "left out 3 of 9 rows with label = false: rows 1, 2, 9",
        "left out 1 of 9 rows with weight = 0: row 3",
        "left out 1 of 9 rows with loss = 0: row 4",
        "left out 1 of 9 rows with train = 0: row 5",
        *(["left out 1 of 9 rows with label = 0: row 7"] if is_kto else []),
    ]
    with pytest.raises(DataError, match="no example is left: left out 1 of 1 rows with label = false: row 1"):
        read(rows[:1])[1].require_usable()


@pytest.mark.parametrize(
    ("name", "value"), [("weight", 0.5), ("loss", 2.25), ("train", "often"), ("weight", [])]
)
def test_a_row_with_another_weight_is_refused_by_its_column(read, name, value):
    with pytest.raises(DataError, match=rf"row 2: the weight of a row must be 0 or 1: '{name}' is "):
        read([PLAIN, {**PLAIN, name: value}])[1].require_usable()


def test_rows_beyond_the_limit_are_not_read(read):
    examples, reader, _ = read([PLAIN, PLAIN, BAD], limit=2)
    reader.require_usable()
    assert [example.row for example in examples] == [1, 2]


def test_earlier_turns_of_the_assistant_are_counted(read):
    earlier = {"role": "assistant", "content": "a", "weight": 0}
    talk = {"messages": [USER, earlier, USER, {"role": "assistant", "content": "b"}]}
    _, reader, _ = read([{"messages": talk["messages"][2:]}, talk, talk])
    assert [note.partition("rows.jsonl: ")[2] for note in reader.notes] == [
        "earlier turns of the assistant are prompt, and carry no loss, in 2 of 3 rows: rows 2, 3"
    ]


def test_control_tokens_that_examples_spell_are_counted(read):
    _, reader, _ = read([PLAIN, {**PLAIN, "prompt": "a <|im_end|> b"}])
    assert (
        "1 of 2 rows spell a token that only the chat template may write, such as '<|im_end|>'"
        in reader.notes[0]
    )
    assert read([PLAIN, PLAIN])[1].notes == ()


def test_escaped_programs_are_repaired_and_counted(read):
    code = r"<python>x = 1\nprint(x)</python> <result>1</result>" + ANSWER
    examples, reader, _ = read([PLAIN, {**PLAIN, "completion": code}])
    assert examples[1].sides[0][0] == (Source.POLICY, "<python>x = 1\nprint(x)</python>")
    assert "unescaped newlines in Python calls of 1 of 2 rows: row 2" in reader.notes[0]


def text_of(rendering, example):
    (tree,) = rendering.trees(example, TreeKey(0, 0))
    return tree.nodes[0].text, [node.source for node in tree.nodes[1:]], tree.nodes[1].calls


@pytest.mark.parametrize("dialect", ["tags", "hermes"])
def test_a_rows_own_tools_are_in_its_prompt_and_its_calls_are_read_with_them(
    read, tmp_path, tokenizer_folder, dialect
):
    model = write_hermes_tokenizer(tmp_path / "model") if dialect == "hermes" else tokenizer_folder
    examples, reader, rendering = read(
        [OPENAI, {**OPENAI, "tools": None}, OPENAI], model=model, dialect=dialect, max_tokens=2000
    )
    with pytest.raises(
        DataError, match=r"row 2: it calls a tool that is neither the recipe's nor the row's: age"
    ):
        reader.require_usable()
    first, last = text_of(rendering, examples[0]), text_of(rendering, examples[-1])
    assert first == last
    assert TOOL["description"] in first[0]
    assert first[1] == [Source.POLICY, Source.TOOL, Source.POLICY]
    assert [(call.name, dict(call.arguments)) for call in first[2]] == [("age", {"of": "Rome"})]
    assert rendering.tools_of(examples[0].tools) is rendering.tools_of(examples[-1].tools)


@pytest.mark.parametrize("dialect", WRITERS)
def test_calls_of_tools_that_no_prompt_shows_are_refused_in_all_dialects(read, tmp_path, dialect):
    (tmp_path / "model").mkdir()
    model = WRITERS[dialect](tmp_path / "model")
    row = {**OPENAI, "messages": [*OPENAI["messages"][:3], {"role": "assistant", "content": ANSWER}]}
    examples, reader, _ = read([row, {**row, "tools": []}], model=model, dialect=dialect, max_tokens=4000)
    assert [example.row for example in examples] == [1]
    with pytest.raises(
        DataError, match=r"row 2: it calls a tool that is neither the recipe's nor the row's: age\."
    ):
        reader.require_usable()


def test_tools_that_only_a_system_message_names_are_noted_and_others_refused(read, tmp_path):
    """Read rows of the Hermes models, whose system messages hold the tools; a tool that none names is in no prompt."""
    model = write_hermes_tokenizer(tmp_path / "model")
    system = {"role": "system", "content": f"You call functions. <tools> {json.dumps([TOOL])} </tools>"}
    text = '<tool_call>\n{"name": "age", "arguments": {"of": "Rome"}}\n</tool_call>'
    spoken = [USER, {"role": "assistant", "content": text}, *OPENAI["messages"][2:]]
    shown = [{"messages": [system, *turns]} for turns in (OPENAI["messages"], spoken)]
    other = {**system, "content": "Mind your language and the teenage words."}
    hidden = [{"messages": [*start, *spoken]} for start in ([], [other])]
    examples, reader, rendering = read(
        [*shown, *hidden, OPENAI], model=model, dialect="hermes", max_tokens=2000, malformed="drop"
    )
    assert [example.row for example in examples] == [1, 2, 5]
    assert text_of(rendering, examples[0])[2][0].arguments == {"of": "Rome"}
    assert [note.partition("rows.jsonl: ")[2] for note in reader.notes] == [
        "left out 2 of 5 rows that cannot be used: 2 rows (3, 4): it calls a tool that is neither the recipe's nor the row's (the "
        "first: age)",
        "calls of tools that only the text of the system message names, in 2 of 5 rows: rows 1, 2",
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_have_the_tokens_of_the_chat_template_itself(read, tmp_path, family):
    model = write_hermes_tokenizer(tmp_path / "model", family)
    calling = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, {**CALL, "id": "d"}]}
    tool = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("c", "d")]
    answer = {"role": "assistant", "content": "It is 4.", "reasoning_content": "so"}
    row = {**OPENAI, "messages": [USER, calling, *tool, answer]}
    (example,), _, rendering = read([row], model=model, dialect="hermes", max_tokens=3000)
    (tree,) = rendering.trees(example, TreeKey(0, 0))
    (segment,) = tree.trajectories[0].segments
    for call in calling["tool_calls"]:
        call["function"] = {**call["function"], "arguments": {"of": "Rome"}}
    answer["content"] = "<think>\nso\n</think>\n\nIt is 4."
    tokenizer = rendering.renderer.tokenizer
    whole = tokenizer.template.render(row["messages"], row["tools"]).removesuffix("\n<|im_start|>assistant\n")
    assert segment.token_ids == tokenizer.encode(whole)


def test_the_recipes_tools_stand_above_the_rows(read):
    tools = {"python": {}}
    code = {"prompt": [USER], "completion": f"<python> 1 </python> <result>1</result>{ANSWER}"}
    examples, reader, rendering = read([code, OPENAI, {**code, "tools": [TOOL]}], tools=tools)
    with pytest.raises(DataError, match=r"row 2: .*: age"):
        reader.require_usable()
    assert [example.row for example in examples] == [1, 3]
    assert rendering.tools_of(examples[1].tools) is rendering.tools_of("")


def test_tools_that_the_dialect_cannot_have_are_told_by_row(read):
    row = {
        **OPENAI,
        "tools": [{**TOOL, "name": "get-age"}],
        "messages": [USER, {"role": "assistant", "content": ANSWER}],
    }
    with pytest.raises(DataError, match=r"row 1: .*tool 'get-age'"):
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
    examples, reader, rendering = read(rows, schema=DpoRecipe)
    assert [example.row for example in examples] == [1, 2]
    chosen, rejected = rendering.trees(examples[0], TreeKey(0, 0))
    assert chosen.nodes[0].token_ids == rejected.nodes[0].token_ids
    with pytest.raises(DataError) as caught:
        reader.require_usable()
    assert "2 rows (3, 4): chosen and rejected are the same tokens up to the end of one" in str(caught.value)
    assert "row 5: tags are not balanced" in str(caught.value)


def test_a_pair_with_one_long_side_is_left_out(read):
    longer, far_too_long = "<think> so </think><answer> 5 </answer>", "<think>" + "word " * 30_000
    rows = [
        {"prompt": [USER], "chosen": ANSWER, "rejected": longer},
        {"prompt": [USER], "chosen": longer, "rejected": ANSWER},
        {"prompt": [USER], "chosen": ANSWER, "rejected": far_too_long},
        {"prompt": [USER], "chosen": ANSWER, "rejected": "<answer> 5 </answer>"},
    ]
    examples, _, rendering = read(rows, schema=DpoRecipe)
    assert [example.row for example in examples] == [1, 2, 4]
    size = sum(len(node.token_ids) for node in rendering.trees(examples[0], TreeKey(0, 0))[1].nodes)
    assert len(read(rows, schema=DpoRecipe, max_tokens=size)[0]) == 3
    examples, reader, _ = read(rows, schema=DpoRecipe, max_tokens=size - 1)
    assert [example.row for example in examples] == [4]
    assert (
        f"left out 3 of 4 rows with more than data.max_tokens = {size - 1} tokens: rows 1, 2, 3"
        in reader.notes[0]
    )


@pytest.fixture
def recorded(tokenizer_folder):
    """A row of `ramify pairs`, whose rejected side is longer."""
    tokenizer = build_tokenizer(tokenizer_folder)
    prompt, chosen, rejected = map(
        tokenizer.encode, ("Which is older?", ANSWER, "<answer> 5 and 5 </answer>")
    )
    texts = map(tokenizer.decode, (prompt, chosen, rejected))
    return {
        "prompt": [USER],
        **dict(zip(("prompt_text", "chosen", "rejected"), texts, strict=True)),
        "ids": {"prompt": prompt, "chosen": [["policy", chosen]], "rejected": [["policy", rejected]]},
    }


def test_a_recorded_pair_is_measured_by_its_longer_side(read, recorded):
    size = len(recorded["ids"]["prompt"]) + len(recorded["ids"]["rejected"][0][1])
    assert len(read([recorded], schema=DpoRecipe, max_tokens=size)[0]) == 1
    examples, reader, _ = read([recorded], schema=DpoRecipe, max_tokens=size - 1)
    assert examples == ()
    with pytest.raises(DataError, match=f"1 of 1 rows with more than data.max_tokens = {size - 1} tokens"):
        reader.require_usable()


@pytest.mark.parametrize("damage", ["another id", "an id beyond the vocabulary"])
def test_recorded_pairs_of_another_tokenizer_are_refused(read, recorded, damage):
    (part,) = recorded["ids"]["chosen"]
    part[1] = [*part[1][:-1], 0] if damage == "another id" else [*part[1], 10_000]
    with pytest.raises(DataError, match="row 1: its ids are those of another model's tokenizer"):
        read([recorded], schema=DpoRecipe)[1].require_usable()


def test_a_file_of_rows_that_cannot_be_used_is_not_read_to_its_end(read, monkeypatch):
    monkeypatch.setattr(examples, "MOST_REFUSED", 5)
    rows = [PLAIN, *["{"] * 30]
    usable, reader, _ = read(rows)
    assert len(usable) == 1
    with pytest.raises(DataError, match=r"rows\.jsonl: 5 of the first 6 rows cannot be used: 5 rows \("):
        reader.require_usable()
    _, reader, _ = read(rows, malformed="drop")
    assert any("left out 30 of 31 rows" in note for note in reader.notes)


def test_a_long_file_says_how_far_it_is_read(read, monkeypatch):
    monkeypatch.setattr(examples, "_NOTE_SECONDS", 0.0)
    notes = []
    read([PLAIN, BAD, PLAIN], malformed="drop", note=notes.append)
    assert notes[-1].endswith("rows.jsonl: 3 rows read, 1 cannot be used")
