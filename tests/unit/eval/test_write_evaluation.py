"""The files of an evaluation."""

import json

import pytest

from ramify.config.schema_eval import EvalRecipe
from ramify.core.tree import StopReason
from ramify.eval.evaluate import Attempt, Evaluation, ProblemResult
from ramify.eval.run import write_evaluation

RESULT = ProblemResult("caf\u00e9", "lookup", (Attempt(True, StopReason.ANSWERED, 1, 7),), {1: 1.0})


def recipe(folder):
    return EvalRecipe.model_validate(
        {
            "model": {"path": "m"},
            "data": {"test": "t.jsonl", "max_prompt_tokens": 9},
            "run": {"dir": folder},
            "sampling": {"max_tokens": 8, "max_calls": 1},
            "engine": {"name": "local"},
            "tools": {},
            "reward": {"name": "hierarchical"},
        }
    )


def test_the_results_come_back_and_nothing_unfinished_stays(tmp_path):
    write_evaluation(recipe(tmp_path), Evaluation((RESULT,), (), 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "recipe.json",
        "results.jsonl",
        "summary.json",
        "trees.jsonl",
    ]
    (row,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (row["id"], row["attempts"][0]["stop"], row["pass_at"]) == ("caf\u00e9", "answered", {"1": 1.0})
    assert json.loads((tmp_path / "summary.json").read_text())["pass_at"]["1"]["value"] == 1.0


def test_what_cannot_be_written_leaves_the_older_file(tmp_path):
    write_evaluation(recipe(tmp_path), Evaluation((RESULT,), (), 0))
    before = (tmp_path / "results.jsonl").read_bytes()
    broken = ProblemResult("p", "lookup", RESULT.attempts, {1: float("nan")})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_evaluation(recipe(tmp_path), Evaluation((RESULT, broken), (), 0))
    assert (tmp_path / "results.jsonl").read_bytes() == before
