import json
import tomllib

import pytest
from pydantic import ValidationError

from ramify.assemble.model import build_tokenizer
from ramify.assemble.problems import build_problems
from ramify.chat.tag_renderer import TagRenderer
from ramify.commands.check_files import require_excluded
from ramify.config.schema_train import TrainDataSection, TrainRecipe
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import ToolSpec
from train_recipes import RECIPE

TOOLS = [ToolSpec(name, "", {}, True, 1.0) for name in ("search", "python")]


@pytest.fixture
def renderer(model_folder):
    return TagRenderer(build_tokenizer(model_folder))


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path, renderer, most=1000, **more):
    table = tomllib.loads(RECIPE)
    table["data"] = {"train": str(path), "max_prompt_tokens": most, **more}
    recipe = TrainRecipe.model_validate(table)
    return build_problems(recipe, renderer, {"": TOOLS})


def test_excluded_questions_are_dropped_and_counted(tmp_path, renderer):
    train = write(
        tmp_path / "train.jsonl",
        *({"id": text, "prompt": text, "answer": "A"} for text in ("Who?", "Where?", "where", "Why?")),
    )
    held_out = write(tmp_path / "held_out.jsonl", {"question": "who"}, {"question": "Where ?"})
    problems, notes = read(train, renderer, exclude=(str(held_out),))
    assert [problem.id for problem in problems] == ["Why?"]
    assert notes == (
        f"{train}: 1 of 4 problems ask what an earlier one asks: where",
        f"{train}: dropped 3 of 4 problems that are in {held_out}",
    )
    assert len(read(train, renderer)[0]) == 4
    with pytest.raises(
        DataError, match=r"no problem is left, all of them are in data\.exclude \(.*train\.jsonl\)"
    ):
        read(train, renderer, exclude=(str(train),))


def test_the_release_without_the_benchmarks_that_it_holds(shared_dir, renderer):
    folder = shared_dir / "data"
    excluded = (str(folder / "eval"),)
    problems, notes = read(folder / "rl/valid.parquet", renderer, 10**6, exclude=excluded)
    assert len(problems) == 180 - 81
    assert (
        notes[-1]
        == f"{folder / 'rl/valid.parquet'}: dropped 81 of 180 problems that are in {folder / 'eval'}"
    )


def test_instructions_stand_in_front_of_questions_that_have_none(tmp_path, renderer):
    own = {
        "prompt": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "Why?"}],
        "answer": "A",
    }
    train = write(tmp_path / "train.jsonl", {"prompt": "Who?", "answer": "A"}, own)
    (bare, instructed), _ = read(train, renderer, instructions=True)
    assert [message.role for message in bare.messages] == ["system", "user"]
    assert "<search>" in bare.messages[0].text
    assert "<python>" in bare.messages[0].text
    assert instructed.messages[0].text == "Mine."
    assert [len(problem.messages) for problem in read(train, renderer)[0]] == [1, 2]


def test_places_are_looked_for_before_anything_is_loaded(tmp_path):
    require_excluded([str(tmp_path), "hf:org/name"])
    with pytest.raises(
        ConfigError, match=r"data\.exclude: expected a file, a folder or hf:org/name, found nothing at x"
    ):
        require_excluded(["x"])
    data = {"train": "t.jsonl", "max_prompt_tokens": 9}
    assert TrainDataSection.model_validate(data | {"exclude": ["a", "hf:b/c"]}).exclude == ("a", "hf:b/c")
    for places in ([""], ["a\0"], "a", [1]):
        with pytest.raises(ValidationError):
            TrainDataSection.model_validate(data | {"exclude": places})
