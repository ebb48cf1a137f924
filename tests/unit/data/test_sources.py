"""The data that a recipe names: files, folders, lists with weights, and what is there when nothing is."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramify.config.load import check_recipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.sizes import work_of
from ramify.core.errors import ConfigError, DataError
from ramify.data.example_formats import COMPLETION
from ramify.data.examples import read_examples
from ramify.data.problems import load_problems
from ramify.data.sources import data_files, read_data, require_data
from ramify.runs.manifest import data_sha256, file_sha256


def write(path: Path, *texts: str) -> Path:
    rows = [{"prompt": text, "answer": "a", "completion": "b"} for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe_of(**data: object) -> dict[str, object]:
    return {
        "model": {"path": "m"},
        "data": {"train": "a.jsonl", "max_tokens": 9, **data},
        "run": {"dir": "r"},
        "learner": {"batch_size": 1, "optimizer": {"rate": 1e-3}},
    }


def prompts(data: object, **options: object) -> list[str]:
    return [problem.messages[0].text for problem in load_problems(data, **options).problems]


def test_several_files_come_in_order_and_as_often_as_their_weights_say(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", "a1", "a2", "a3", "a4")
    second = write(tmp_path / "b.parquet", "b1", "b2")
    assert prompts((first, second)) == ["a1", "a2", "a3", "a4", "b1", "b2"]
    assert prompts((first, second), weights=(0.5, 2)) == ["a2", "a4", "b1", "b1", "b2", "b2"]
    problems = load_problems((first, second), weights=(1.5, 1)).problems
    assert len({problem.id for problem in problems}) == len(problems) == 8
    examples = list(read_examples((first, second), COMPLETION, weights=(0.25, 1)))
    assert [name for name, _ in examples] == ["a.jsonl:4", "b.parquet:0", "b.parquet:1"]
    assert next(row.where for row in read_data((second,))).endswith("b.parquet row 0 (rows count from 0)")
    assert data_sha256(first) == file_sha256(first) == data_sha256((first,)) != data_sha256((first, second))


@pytest.mark.parametrize(("weight", "copies"), [(0.29, 29), (1.13, 113), (1 / 3, 33), (0.01, 1)])
def test_a_weight_gives_its_share_of_rows_whatever_floating_point_makes_of_it(
    tmp_path: Path, weight: float, copies: int
) -> None:
    path = write(tmp_path / "a.jsonl", *map(str, range(100)))
    assert len(prompts((path,), weights=(weight,))) == copies
    recipe = check_recipe(SftRecipe, recipe_of(train=[str(path)], weights=[weight]), "recipe")
    assert work_of(recipe).rows == copies


def test_a_list_among_the_rows_is_an_array_only_where_each_line_is_a_row(tmp_path: Path) -> None:
    for name, end in (
        ("a.jsonl", r"got list\. Name a file that is one array of rows \.json$"),
        ("a.json", "got list$"),
    ):
        (tmp_path / name).write_text('[[{"prompt": "Q?"}]]')
        with pytest.raises(DataError, match=end):
            load_problems(tmp_path / name)
        ((_, error),) = read_examples(tmp_path / name, COMPLETION)
        with pytest.raises(DataError, match=end):
            raise error


def test_a_weight_that_uses_no_row_is_named(tmp_path: Path) -> None:
    few, many = write(tmp_path / "few.jsonl", "a", "b"), write(tmp_path / "many.jsonl", *"abcdef")
    expected = r"^data\.weights: 0\.3 uses no row of .*few\.jsonl, which has 2\. Use at least 1/2, or leave"
    for data, weights in ((few, [0.3]), ((many, few), [1, 0.3])):
        with pytest.raises(DataError, match=expected):
            load_problems(data, weights=weights)
        with pytest.raises(DataError, match=expected):
            list(read_examples(data, COMPLETION, weights=weights))
    with pytest.raises(DataError, match=r"0\.3 uses no row of .*many\.jsonl, which has 3"):
        prompts(many, weights=[0.3], limit=3)
    assert prompts((many, few), weights=[1, 0.3], limit=6) == [*"abcdef"]
    assert prompts((many, few), weights=[0.3, 0.5], limit=8) == ["d", "b"]


def test_ids_of_two_files_may_be_alike(tmp_path: Path) -> None:
    paths = tuple(write(tmp_path / name / "rows.jsonl", name) for name in ("x", "y"))
    assert [problem.id for problem in load_problems(paths).problems] == ["rows-1", "y/rows/rows-1"]
    # As data sets of the hub have them.
    paths = tuple(write(tmp_path / name / "data/train.parquet", *name) for name in ("ab", "c", "d", "e"))
    ids = [problem.id for problem in load_problems(paths).problems]
    first, others = ids[:2], ids[2:]
    assert first == ["train-0", "train-1"]
    assert others == ["data/train/train-0", "3/data/train/train-0", "4/data/train/train-0"]
    (tmp_path / "d/data/train.parquet").unlink()
    twice = tmp_path / "d/data/train.jsonl"
    twice.write_text('{"prompt": "Q?", "answer": "1", "id": "train-0"}\n' * 2)
    with pytest.raises(
        DataError, match=r"train\.jsonl row 2 .*id 'data/train/train-0' is already that of row 1"
    ):
        load_problems((paths[0], twice))


def test_a_folder_is_its_shards_and_of_several_splits_the_one_that_is_meant(tmp_path: Path) -> None:
    for number in (1, 0):
        write(tmp_path / f"data/train-0000{number}-of-00002.parquet", f"t{number}")
        write(tmp_path / f"parts/p{number}.jsonl", f"p{number}")
    write(tmp_path / "data/test-00000-of-00001.parquet", "held out")
    (tmp_path / "data/dataset_info.json").write_text("{}")
    assert prompts(tmp_path / "data") == ["t0", "t1"]
    (note,) = load_problems(tmp_path / "data").notes
    assert note.endswith(
        "read 2 of 3 files, those of the split 'train': train-00000-of-00002.parquet, train-00001-of-00002.parquet"
    )
    assert prompts(tmp_path / "data", split="test") == ["held out"]
    assert prompts(tmp_path / "parts") == ["p0", "p1"]
    (tmp_path / "data/test-00000-of-00001.parquet").rename(tmp_path / "parts/validation.parquet")
    with pytest.raises(
        DataError, match=r"parts: expected files of the split 'train', found p0\.jsonl, p1\.jsonl"
    ):
        data_files(tmp_path / "parts")


def test_nothing_where_data_should_be_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    require_data("data.train", (Path("hf:org/name:train@main"), tmp_path, write(tmp_path / "a.jsonl", "a")))
    with pytest.raises(
        ConfigError,
        match=r"a data set of the hub is written hf:openai/gsm8k|A data set of the hub is written hf:openai/gsm8k",
    ):
        require_data("data.train", Path("openai/gsm8k"))
    with pytest.raises(ConfigError, match=r"^data\.train: expected a file, found none at .*absent\.jsonl$"):
        require_data("data.train", (tmp_path / "a.jsonl", tmp_path / "absent.jsonl"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"columns": {"promt": "q"}}, "data.columns: expected names of ours before the ="),
        ({"weights": [1.0, 2.0]}, "data.weights: expected 1, one for each entry of data.train, got 2"),
        ({"train": []}, "data.train"),
    ],
)
def test_wrong_keys_are_named(data: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_recipe(SftRecipe, recipe_of(**data), "recipe")
    assert expected in str(caught.value)
