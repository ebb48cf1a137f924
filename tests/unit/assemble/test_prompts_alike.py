"""`data.instructions`: one text, and the same tokens of a prompt in sft, dpo, train, synth and eval; what is wrong is one sentence."""

import json
import tomllib

import pytest

from e2e_runs import DPO, EVAL, SFT, SYNTH, TRAIN, write_lines
from ramify.assemble.dev_evaluation import read_dev_problems
from ramify.assemble.evaluation import evaluation_problems
from ramify.assemble.examples import open_examples
from ramify.assemble.model import build_tokenizer
from ramify.assemble.problems import build_problems
from ramify.assemble.synthesis import synthesis_questions
from ramify.assemble.task import training_problems
from ramify.assemble.tools import show_tools
from ramify.chat.tag_renderer import TagRenderer
from ramify.cli import main
from ramify.config.load import override_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Message, Problem
from ramify.core.tree import TreeKey
from ramify.data.problems import load_problems
from ramify.data.prompts import read_prompt_texts
from ramify.runs.trained_prompts import prompt_notes, training_stage, with_stage

SCHEMAS = {SftRecipe: SFT, DpoRecipe: DPO, TrainRecipe: TRAIN, EvalRecipe: EVAL, SynthRecipe: SYNTH}
QUESTION = "Who wrote Emma?"
WORDS = "You answer step by step.\n\nSearch with <search> words </search>."
ALPACA = {"instruction": WORDS, "input": QUESTION, "output": "<answer> \\boxed{ 4 } </answer>"}


@pytest.fixture
def renderer(tokenizer_folder):
    return TagRenderer(build_tokenizer(tokenizer_folder))


@pytest.fixture
def prompts(tmp_path, tokenizer_folder, renderer):
    """Reads one question as each command would; gives the tokens of its prompt by the name of the schema."""
    answer = "<answer> \\boxed{ 4 } </answer>"
    rows = {"prompt": QUESTION, "answer": "4"}
    example = {"prompt": [{"role": "user", "content": QUESTION}], "completion": answer}
    pair = {**example, "chosen": answer, "rejected": "<answer> \\boxed{ 5 } </answer>"}

    def reads(instructions, train=None, only=tuple(SCHEMAS)):
        tokens = {}
        for schema in only:
            data = write_lines(
                tmp_path / f"{schema.command}.jsonl", [example if schema is SftRecipe else rows]
            )
            if schema is DpoRecipe:
                write_lines(data, [pair])
            key = "data.test" if schema is EvalRecipe else "data.train"
            limit = "data.max_tokens" if schema in (SftRecipe, DpoRecipe) else "data.max_prompt_tokens"
            settings = [
                f"{key}={train or data}",
                f"{limit}=100000",
                "tools.search.corpus=p",
                "tools.python={}",
            ]
            if instructions is not None:
                settings.append(f"data.instructions={json.dumps(instructions)}")
            table = SCHEMAS[schema].format(model=tokenizer_folder, folder=tmp_path)
            recipe = override_recipe(schema, tomllib.loads(table), settings, "recipe")
            tokens[schema.command] = first_prompt(recipe, renderer)
        return tokens

    return reads


def first_prompt(recipe, renderer):
    shown = show_tools(recipe.tools, recipe.environment)
    if isinstance(recipe, SftRecipe):
        rows, reader = open_examples(recipe, shown, print)
        item, *_ = reader
        reader.require_usable()
        return rows.trees(item, TreeKey(0, 0))[0].nodes[0].token_ids
    read = {
        TrainRecipe: lambda: training_problems(recipe),
        EvalRecipe: lambda: evaluation_problems(recipe),
        SynthRecipe: lambda: synthesis_questions(recipe, []),
    }[type(recipe)]()
    problems, _ = read(renderer, {"": shown.specs})
    return renderer.render_prompt(problems[0], shown.specs)


def rendered(renderer, *messages):
    return renderer.tokenizer.encode(renderer.tokenizer.chat_text([Message.of(*each) for each in messages]))


def test_a_text_of_the_users_is_the_same_prompt_everywhere(prompts, tmp_path, renderer):
    expected = rendered(renderer, ("system", WORDS), ("user", QUESTION))
    (tmp_path / "mine.txt").write_text(f"\ufeff{WORDS}\n", encoding="utf-8")
    for value in (WORDS, str(tmp_path / "mine.txt")):
        assert prompts(value) == dict.fromkeys(("sft", "dpo", "train", "eval", "synth"), expected)
    bare = rendered(renderer, ("user", QUESTION))
    assert {*prompts(False).values(), *prompts(None).values()} == {bare}
    assert len({*prompts(True).values()} - {bare}) == 1


def test_the_cold_starts_text_stays_in_the_users_turn(prompts, tmp_path, renderer):
    file = write_lines(
        tmp_path / "cold.jsonl", [ALPACA, {**ALPACA, "input": "Why?"}, {**ALPACA, "instruction": "a"}]
    )
    expected = rendered(renderer, ("user", f"{WORDS}\n{QUESTION}"))
    assert {*prompts(f"from:{file}").values()} == {expected}
    # The file itself is trained on with that text once, with and without the key.
    for value in (None, f"from:{file}"):
        assert prompts(value, file, only=(SftRecipe,)) == {"sft": expected}


def test_the_released_prompt_is_that_of_its_rows(prompts, shared_dir, tmp_path, renderer):
    released = shared_dir / "data/rl/train_10k.parquet"
    system, _ = load_problems(released).problems[0].messages
    assert "\\boxed" in system.text
    expected = rendered(renderer, ("system", system.text), ("user", QUESTION))
    assert {*prompts(f"from:{released}").values()} == {expected}
    # Trained on and evaluated on, under a benchmark's name too, the rows keep it whatever the key says.
    rows = shared_dir / "data/rl/hard_search_1k.parquet"
    own = rendered(
        renderer, ("system", system.text), ("user", load_problems(rows).problems[0].messages[1].text)
    )
    for value in (None, WORDS):
        assert prompts(value, rows, only=(TrainRecipe,)) == {"train": own}
        for test in (rows, f"gaia={rows}"):
            assert prompts(value, test, only=(EvalRecipe,)) == {"eval": own}
    folder = tmp_path / "bamboogle"
    folder.mkdir()
    write_lines(folder / "test.jsonl", [{"question": QUESTION, "answer": "4"}])
    assert prompts(f"from:{released}", folder, only=(EvalRecipe,)) == {"eval": expected}


@pytest.mark.parametrize(
    "row",
    [
        {
            "prompt": [{"role": "system", "content": WORDS}, {"role": "user", "content": QUESTION}],
            "question": "Q",
        },
        {"prompt": json.dumps([{"role": "system", "content": WORDS}, {"role": "user", "content": QUESTION}])},
        {"conversations": [{"from": "system", "value": WORDS}, {"from": "human", "value": QUESTION}]},
        {"conversations": [{"from": "human", "value": QUESTION}], "system": WORDS},
        {"question": QUESTION, "system": WORDS},
    ],
)
def test_rows_of_all_kinds_keep_a_system_message_of_their_own(row, prompts, tmp_path, renderer):
    expected = rendered(renderer, ("system", WORDS), ("user", QUESTION))
    data = write_lines(tmp_path / "own.jsonl", [{**row, "answer": "4"}])
    assert {*prompts("Another text.", data, only=(TrainRecipe, SynthRecipe, EvalRecipe)).values()} == {
        expected
    }
    for value in (True, False):
        assert prompts(value, f"bamboogle={data}", only=(EvalRecipe,)) == {"eval": expected}
    assert prompts(f"from:{data}")["sft"] == expected


def test_a_question_gets_the_text_of_its_language(prompts, tmp_path, renderer):
    texts = ("Answer step by step.", "\u8bf7\u9010\u6b65\u56de\u7b54\u95ee\u9898\u3002")
    file = write_lines(tmp_path / "both.jsonl", [{"messages": [], "system": text} for text in texts])
    questions = (QUESTION, "\u8c01\u5199\u4e86\u7ea2\u697c\u68a6\uff1f")
    for text, question in zip(texts, questions, strict=True):
        data = write_lines(tmp_path / "test.jsonl", [{"question": question, "answer": "4"}])
        expected = rendered(renderer, ("system", text), ("user", question))
        assert prompts(f"from:{file}", f"bamboogle={data}", only=(EvalRecipe,)) == {"eval": expected}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n", "is empty"),
        (b"Du bist \xe4lter.", "byte 8 is not UTF-8"),
        (None, "expected a file, found none at"),
        (
            b"You are <|im_start|>system here.",
            "spells '<|im_start|>', which only the chat template may write",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(content, words, prompts, tmp_path, capsys):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"^data\.instructions: ") as error:
        prompts(str(file), only=(TrainRecipe,))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    # A dry run looks at the file too, but has no tokenizer.
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(EVAL.format(model=tmp_path, folder=tmp_path))
    assert main(["eval", str(recipe), "--dry-run", "-s", f"data.instructions={file}"]) == 2
    assert (words in capsys.readouterr().err) == ("spells" not in words)


def test_a_data_file_without_one_text_is_refused(prompts, tmp_path):
    for rows, words in (
        ([{"prompt": "Who?", "answer": "A"}], "expected rows with a system message"),
        ([{"system": f"Text {i}.", "prompt": "Who?"} for i in range(3)], "3 different texts"),
        (
            [{"prompt": "Who?"}, {"prompt": "Who?"}, {"system": "A text.", "prompt": "Who?"}],
            'has 1 different text in front of questions, and none in half of its 3 rows: the most frequent is the system message "A text."',
        ),
        (
            [{"system": f"Text {i % 2}.", "prompt": "Who?"} for i in range(4)],
            r'two texts of .* in 2 of 4 rows each: the system message "Text 0\."[^,]*, and the system message "Text 1\."',
        ),
    ):
        file = write_lines(tmp_path / "rows.jsonl", rows)
        with pytest.raises(DataError, match=words):
            prompts(f"from:{file}", only=(TrainRecipe,))
    for value in ("prompts/system", "", "from:", 3, "true"):
        with pytest.raises(
            ConfigError, match=r"data\.instructions: expected true, false, a text of several words"
        ):
            prompts(value, only=(TrainRecipe,))


def test_a_note_says_how_many_rows_have_the_text(tmp_path, renderer):
    """Count rows that have none."""
    rows = [{"system": "A text.", "prompt": "Who?"}, {"prompt": "Who?"}]
    file = write_lines(tmp_path / "rows.jsonl", rows)
    (note,) = read_prompt_texts("data.instructions", f"from:{file}", renderer, "tags").notes
    assert note.endswith(f'the system message "A text." (7 characters) of {file}, as in 1 of 2 rows')
    write_lines(file, rows[:1])
    (note,) = read_prompt_texts("data.instructions", f"from:{file}", renderer, "tags").notes
    assert note.endswith(f"of {file}")


def test_evaluations_in_training_have_the_prompt_of_training_or_say_so(tmp_path, tokenizer_folder, renderer):
    data = write_lines(tmp_path / "problems.jsonl", [{"prompt": QUESTION, "answer": "4"}])
    table = tomllib.loads(TRAIN.format(model=tokenizer_folder, folder=tmp_path))
    table |= {"eval": {"test": str(data), "every": 1}, "reward": {"name": "answer"}}
    table["data"]["instructions"] = WORDS

    def notes(**settings):
        recipe = TrainRecipe.model_validate(table | {"eval": table["eval"] | settings})
        trained, _ = build_problems(recipe, renderer, {"": ()})
        return read_dev_problems(recipe, recipe.eval, renderer, (), trained)[1]

    same, differing = notes(), notes(instructions=False)
    assert not any("prompts have" in note for note in same)
    assert differing[-1].startswith(
        "eval.test: 1 of 1 prompts have no fixed text, but this run trains under the system message"
    )


@pytest.fixture
def noted(tmp_path):
    """Trains a model, as far as its record goes, and gives the notes of another run of it: prompts are (system message, question)."""

    def problems(prompts):
        return [
            Problem(
                f"{i}", (*[Message.of("system", system)] * bool(system), Message.of("user", question)), ("A",)
            )
            for i, (system, question) in enumerate(prompts)
        ]

    def trained(prompts):
        stage = training_stage("sft", "tags", {"search", "python"}, problems(prompts), tmp_path)
        for name, content in with_stage(tmp_path, stage).items():
            (tmp_path / name).write_bytes(content)

        def notes(prompts, tools=("python", "search")):
            return prompt_notes(tmp_path, tmp_path, problems(prompts), tools)

        return notes

    return trained


def test_other_prompts_and_tools_than_those_of_training_are_one_note(noted, tmp_path):
    assert prompt_notes(tmp_path, tmp_path, [], ()) == ()
    notes = noted([("Mine.", "1?"), ("Mine.", "2?"), ("Yours.", "3?")])
    assert notes([("Mine.", "4?"), ("Yours.", "5?")]) == ()
    (line,) = notes([("Mine.", "4?"), ("Other.", "4?"), ("Other.", "5?")], ("python",))
    assert line.startswith('2 of 3 prompts have the system message "Other."')
    assert f'but {tmp_path} was trained under the system message "Mine."' in line
    assert f"the tools are python, but {tmp_path} was trained with python, search" in line
    (tmp_path / "trained_prompts.json").write_text('{"schema": 1, "stages": [{}]}')
    with pytest.raises(DataError, match=r"trained_prompts\.json: .*delete this file"):
        notes([])


def test_a_text_in_the_users_turn_is_known_again(noted):
    cold = [("", f"{WORDS}\n{question}") for question in ("Who?", "Where?", "Why?\nAnd when?")]
    notes = noted(cold)
    # Of one prompt, or of prompts with one question, it is known too.
    assert notes(cold[:1]) == notes([cold[2]] * 2) == ()
    (line,) = notes([("", "Who?"), cold[0]])
    assert line.startswith("1 of 2 prompts have no fixed text, but")
    assert "was trained under in the user's turn the text \"You answer step by step." in line
    notes = noted([cold[0]] * 2)
    assert notes(cold) == ()
    notes = noted([("", "Who?"), ("", "Where?")])
    assert notes(cold)[0].startswith("3 of 3 prompts have in the user's turn the text")
    assert notes([("", "When?")]) == ()
