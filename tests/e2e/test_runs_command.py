"""`ramify runs`: every state of a run in one table, a thousand runs, and what differs between two."""

import json
import shutil
import time
import tomllib
from pathlib import Path

import pytest

from e2e_runs import EVAL, SCRIPT, SFT, TRAIN, overrides, read_lines, write_lines, write_task
from file_limits import file_size_limit
from ramify.cli import main
from ramify.files.durable import locked_folder


@pytest.fixture
def listed(capsys):
    """Return a function: the rows of `ramify runs DIR --json` by folder, relative to it."""

    def rows(folder: Path) -> dict[str, dict]:
        capsys.readouterr()
        assert main(["runs", str(folder), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["schema"] == 1
        return {str(Path(row["dir"]).relative_to(folder)): row for row in answer["runs"]}

    return rows


def words(folder, **settings):
    engine = f'engine={{name="scripted",script="{folder / "script.toml"}"}}'
    return overrides(
        engine,
        "sampling.max_calls=3",
        "sampling.max_tokens=120",
        "tools.python.timeout_seconds=10",
        "sandbox.min_level=0",
        settings,
    )


def test_every_state_of_a_run_is_a_row(tmp_path, model_folder, listed, capsys):
    recipe, runs = str(write_task(tmp_path / "task", model_folder, SFT)), tmp_path / "runs"

    def sft(name, *more):
        return main(["sft", recipe, "-s", f"run.dir={runs / name}", *more])

    assert sft("whole") == 0
    assert sft("deep/er/short", "--max-steps", "2") == 0
    with file_size_limit(80 << 10):
        assert sft("broken") == 1
    for name in ("held", "killed", "cut", "old"):
        shutil.copytree(runs / "whole", runs / name)
    (runs / "killed" / "status.json").write_text(
        '{"state": "running", "steps": 9, "reason": "", "schema": 1}'
    )
    (runs / "cut" / "recipe.toml").write_bytes((runs / "cut" / "recipe.toml").read_bytes()[:40])
    (runs / "old" / "status.json").unlink()
    (runs / "old" / ".lock").unlink()
    (runs / "theirs").mkdir()
    (runs / "theirs" / "recipe.toml").write_text("mine")
    (runs / "loop").symlink_to(runs)
    with locked_folder("run.dir", runs / "held"):
        rows = listed(runs)
    expected = {
        "whole": ("finished", 3, 3, ""),
        "deep/er/short": ("interrupted", 2, 3, ""),
        "held": ("running", 3, 3, ""),
        "killed": ("interrupted", 3, 9, "killed"),
        "old": ("unknown", 3, None, ""),
    }
    assert rows.keys() == {*expected, "broken", "cut"}
    for name, (state, step, steps, reason) in expected.items():
        row = rows[name]
        assert (row["state"], row["step"], row["steps"], row["reason"]) == (state, step, steps, reason), name
        assert (row["kind"], row["model"], row["score"]["name"]) == ("sft", str(model_folder), "loss")
    assert rows["broken"]["state"] == "failed"
    assert "cannot be written" in rows["broken"]["reason"]
    assert rows["cut"]["state"] == "damaged"
    assert str(runs / "cut" / "recipe.toml") in rows["cut"]["reason"]
    # A start that is refused changes nothing; one that goes on does.
    assert sft("whole") == 2
    assert sft("deep/er/short", "--resume") == 0
    rows = listed(runs)
    assert (rows["whole"]["state"], rows["deep/er/short"]["state"]) == ("finished", "finished")
    assert list(rows)[-1] == "deep/er/short", "the last change is at the end"
    assert main(["runs", str(runs)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["run", "kind", "state", "step", "best", "score", "age", "model"]
    assert len(table) == 1 + len(rows)
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_thousand_runs_take_less_than_two_seconds(tmp_path, model_folder, listed):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(recipe)]) == 0
    run = recipe.parent / "run"
    write_lines(
        run / "metrics.jsonl", [{**read_lines(run / "metrics.jsonl")[-1], "step": n} for n in range(2000)]
    )
    for number in range(1000):
        folder = tmp_path / "many" / f"{number:03d}"
        folder.mkdir(parents=True)
        for name in (".lock", "recipe.toml", "manifest.json", "status.json", "metrics.jsonl"):
            (folder / name).hardlink_to(run / name)
    begin = time.process_time()
    rows = listed(tmp_path / "many")
    seconds = time.process_time() - begin
    begin = time.process_time()
    for path in (tmp_path / "many").glob("*/recipe.toml"):
        tomllib.loads(path.read_text())
    # On a slow machine, a few times what parsing their recipes takes there.
    assert seconds < max(2.0, 8 * (time.process_time() - begin))
    assert len(rows) == 1000
    assert {row["step"] for row in rows.values()} == {1999}


@pytest.fixture
def evaluated(tmp_path, model_folder):
    """Two evaluations of the same six problems: the second answers 42 where the first says Paris."""
    rows = [
        {"id": f"p{i}", "prompt": f"what is {i} plus 30 ?", "answer": ["42", "Paris", "x"][i % 3]}
        for i in range(6)
    ]
    recipe = write_task(tmp_path / "task", model_folder, EVAL, problems=rows)
    other = tmp_path / "other"
    other.mkdir()
    (other / "script.toml").write_text(SCRIPT.replace("Paris }", "42 }"))
    for name, script in (("a", recipe.parent), ("b", other)):
        assert (
            main(
                ["eval", str(recipe), *words(script, **{"run.dir": tmp_path / name, "sampling.attempts": 4})]
            )
            == 0
        )
    return tmp_path / "a", tmp_path / "b"


def test_two_evaluations_are_compared_with_the_problems_that_flipped(evaluated, capsys):
    first, second = evaluated
    capsys.readouterr()
    assert main(["runs", "compare", str(first), str(second), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["kind"], answer["metric"]) == (1, "eval", "correct")
    shares = {
        folder: {
            problem: sum(
                row["correct"] for row in read_lines(folder / "results.jsonl") if row["problem"] == problem
            )
            / 4
            for problem in (f"p{i}" for i in range(6))
        }
        for folder in evaluated
    }
    flipped = {
        problem: [before, shares[second][problem]]
        for problem, before in shares[first].items()
        if (before > 0.5) != (shares[second][problem] > 0.5)
    }
    assert flipped
    assert {flip["problem"]: flip["right"] for flip in answer["flips"]} == flipped
    for flip in answer["flips"]:
        number = int(flip["problem"][1:])
        assert flip["question"] == f"what is {number} plus 30 ?"
        assert flip["golds"] == [["42", "Paris", "x"][number % 3]]
        assert "42" in flip["answers"]
    means = [sum(by_problem.values()) / 6 for by_problem in shares.values()]
    assert [score["value"] for score in answer["scores"]] == pytest.approx(means)
    assert answer["difference"]["value"] == pytest.approx(means[1] - means[0])
    assert any(each["key"].startswith("script") for each in answer["different"])
    assert all(each["key"] != "run.dir" for each in answer["different"])
    assert main(["runs", "compare", str(first), str(second)]) == 0
    text = capsys.readouterr().out
    assert f"{second} minus {first}" in text
    assert all(problem in text for problem in flipped)


def test_runs_that_cannot_be_compared_are_refused(evaluated, capsys):
    first, second = evaluated
    assert main(["runs", "compare", str(first), str(second), "--metric", "judge"]) == 2
    assert "expected one of correct" in capsys.readouterr().err
    manifest = json.loads((second / "manifest.json").read_text())
    manifest["scores"]["problems"]["sha256"] = "0"
    (second / "manifest.json").write_text(json.dumps(manifest))
    for words, message in (
        ((first, first), "the same run twice"),
        ((first, first.parent), "no run"),
        ((first, second), "its problems are not those of"),
        ((first,), "expected two folders"),
        ((), "expected two folders"),
    ):
        assert main(["runs", "compare", *map(str, words)]) == 2, message
        assert message in capsys.readouterr().err
    assert main(["runs", str(first), "--metric", "f1"]) == 2
    assert "--metric: belongs to ramify runs compare" in capsys.readouterr().err


def test_two_training_runs_are_compared_by_the_trees_of_their_last_steps(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder, TRAIN)
    for name, rate in (("a", 1e-3), ("b", 2e-3)):
        settings = {
            "run.dir": tmp_path / name, "learner.optimizer.rate": rate, "rollout.n": 2, "rollout.m": 1,
        }  # fmt: skip
        assert main(["train", str(recipe), "--max-steps", "2", *overrides(settings)]) == 0
    capsys.readouterr()
    assert main(["runs", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["metric"], answer["step"]) == ("train", "mean reward in steps 1 to 2", 2)
    means = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("a", "b")]
    assert answer["metrics"]["reward/mean"] == [rows[-1]["reward/mean"] for rows in means]
    assert answer["difference"]["n"] == answer["scores"][0]["n"] == 4
    assert answer["different"] == [{"key": "learner.optimizer.rate", "first": 1e-3, "second": 2e-3}]
    assert any("not independent" in warning for warning in answer["warnings"])
