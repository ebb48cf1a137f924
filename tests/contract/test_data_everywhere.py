"""Files of all kinds, lists with weights, folders of shards and data sets of the hub mean the same rows to every command."""

import csv
import json
import shutil

import huggingface_hub.constants
import pytest

from e2e_runs import DPO, EVAL, SFT, SYNTH, TRAIN, overrides, write_task
from ramify.cli import main

SANDBOXED = "[tools.python]\ntimeout_seconds = 10\n[sandbox]\nmin_level = 0\n"
RECIPES = {"train": TRAIN.replace(SANDBOXED, ""), "sft": SFT, "dpo": DPO, "eval": EVAL}
RECIPES["synth"] = SYNTH.replace(SANDBOXED, "")
ROWS = {"train": "problems.jsonl", "sft": "demonstrations.jsonl", "dpo": "pairs.jsonl"}
TOO_MANY = {"train": "rollout.problems_per_step=128"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NUM_ROWS = 6


@pytest.fixture
def task(tmp_path, model_folder, monkeypatch):
    """A folder with six rows for each command as a file, a table in text, a folder of shards and a data set in the hub's cache."""
    shutil.copytree(model_folder, tmp_path / "model")
    write_task(tmp_path, tmp_path / "model")
    for command, name in ROWS.items():
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()[:NUM_ROWS]]
        folder = tmp_path / command
        (folder / "shards").mkdir(parents=True)
        write(folder / "rows.jsonl", rows)
        write(folder / "rows.csv", rows)
        for split, number, part in (("train", 0, rows[:2]), ("train", 1, rows[2:]), ("test", 0, rows[:1])):
            write(
                folder / "shards" / f"{split}-0000{number}-of-0000{1 + (split == 'train')}.jsonl",
                [{**row, "id": f"{split}{number}-{index}"} for index, row in enumerate(part)],
            )
        repository = tmp_path / "hub" / f"datasets--org--{command}"
        shutil.copytree(folder / "shards", repository / "snapshots" / COMMIT / "data")
        (repository / "refs").mkdir()
        (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [key for key in rows[0] if key != "id"], extrasaction="ignore")
        table.writeheader()
        for row in rows:
            table.writerow(
                {key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()}
            )


def run(capsys, task, command, *settings):
    """Return the status of a command, and its last line of errors."""
    (task / "recipe.toml").write_text(RECIPES[command].format(model=task / "model", folder=task))
    capsys.readouterr()
    status = main([command, str(task / "recipe.toml"), *overrides(*settings)])
    return status, capsys.readouterr().err.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("train", "more", "rows"),
    [
        ("{0}/rows.csv", (), 6),
        ("{0}/shards", (), 6),
        ("hf:org/{1}:train@v1", (), 6),
        ("hf:org/{1}@v1", ("data.limit=4",), 4),
        ('["{0}/rows.jsonl", "{0}/shards", "hf:org/{1}:test@v1"]', (), 13),
        ('["{0}/rows.csv", "{0}/shards"]', ("data.weights=[2,0.5]",), 15),
        ('["{0}/rows.csv", "hf:org/{1}@v1"]', ("data.weights=[2,0.5]", "data.limit=8"), 13),
    ],
)
@pytest.mark.parametrize("command", ROWS)
def test_the_rows_of_a_source_are_as_many_to_all_that_train(task, capsys, command, train, more, rows):
    train = train.format(task / command, command)
    many = TOO_MANY.get(command, "learner.batch_size=128")
    status, line = run(capsys, task, command, f"data.train={train}", many, *more)
    assert status == 2
    assert line.endswith(f"expected at most {rows}, the number of usable rows of data.train, got 128")


@pytest.mark.parametrize(
    ("test", "rows"),
    [("{0}/rows.csv", 6), ("hf:org/train:train@v1", 6), ('["{0}/rows.jsonl", "{0}/shards", "hf:org/train@v1"]', 8)],
)  # fmt: skip
def test_an_evaluation_reads_the_same_sources(task, capsys, test, rows):
    test = test.format(task / "train")
    status, line = run(
        capsys, task, "eval", f"data.test={test}", "sampling={attempts=1,max_tokens=8,max_calls=1}"
    )
    assert status == 0, line
    assert len((task / "run" / "results.jsonl").read_text().splitlines()) == rows


@pytest.mark.parametrize("command", RECIPES)
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("org/name", "A data set of the hub is written hf:org/name"),
        ("org/name:train@v1", "A data set of the hub is written hf:org/name:train@v1"),
        ("https://huggingface.co/datasets/org/name", "A data set of the hub is written hf:org/name"),
        ("hf:name", "'hf:name': expected hf:org/name[:table][@revision]"),
        ("data/train.jsonl", "expected a file, found none at data/train.jsonl"),
    ],
)
def test_what_is_no_source_is_refused_with_how_one_is_written(task, capsys, command, source, words):
    key = "data.test" if command == "eval" else "data.train"
    status, line = run(capsys, task, command, f"{key}={source}")
    assert status == 2
    assert line.endswith(f"{key}: {words}") or line.endswith(f". {words}")


def test_a_dry_run_that_reads_rows_prints_the_notes_about_them(task, capsys):
    rows = [{"prompt": "what is 1 plus 1 ?", "answer": 2}, {"prompt": "What is 1 plus 1?", "answer": 2}]
    write(
        task / "problems.jsonl",
        [
            *rows,
            {"prompt": "\boxed{1} ?", "reward_model": {"ground_truth": " "}},
            {"prompt": "a \x08oxed", "answer": 1},
        ],
    )
    demonstrations = [{"prompt": "?", "completion": "<answer> 1 </answer>"}] * 6
    write(task / "demonstrations.jsonl", [*demonstrations, {"text": "no example"}])
    expected = {
        "train": ("1 of 3 problems ask what an earlier one asks", "repaired \\boxed", "dropped 1 row with a blank answer"),
        "eval": ("1 of 3 problems ask what an earlier one asks", "repaired \\boxed", "dropped 1 row with a blank answer"),
        "sft": ("left out 1 of 7 rows that cannot be used: row 7: unknown format",),
    }  # fmt: skip
    for command, notes in expected.items():
        (task / "recipe.toml").write_text(RECIPES[command].format(model=task / "model", folder=task))
        words = overrides(*(['data.malformed="drop"'] if command == "sft" else []))
        assert main([command, str(task / "recipe.toml"), "--dry-run", "--rows", *words]) == 0
        out = capsys.readouterr().out
        assert out.endswith("# all files were read, and can be used\n")
        for note in notes:
            assert any(note in line for line in out.splitlines() if line.startswith("# ")), (
                command,
                note,
                out,
            )
