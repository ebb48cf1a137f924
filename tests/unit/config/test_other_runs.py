import json

import pytest
import tomli_w

from ramify.config.other_runs import dialect_notes, trained_dialect, training_overlap_notes
from ramify.core.messages import Message, Problem
from ramify.modeling.configs import ModelConfig

PROBLEMS = [Problem(text, (Message.of("user", text),), ("A",)) for text in ("Who?", "Where?", "When?")]


@pytest.fixture
def run(tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_text(
        "".join(json.dumps({"prompt": text, "answer": "A"}) + "\n" for text in ("who", "WHERE?", "Why?"))
    )
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step-000002").mkdir(parents=True)
    (folder / "recipe.toml").write_text(tomli_w.dumps({"data": {"train": str(train)}}))
    (folder / "manifest.json").write_text("{}")
    return folder


def test_problems_of_the_runs_own_training_data_are_counted(run):
    model = run / "checkpoints" / "step-000002"
    (note,) = training_overlap_notes(model, PROBLEMS)
    assert note == (
        f"2 of 3 problems are in {run.parent / 'train.jsonl'}, which {model} was trained on; their scores measure memory too"
    )
    assert training_overlap_notes(model, PROBLEMS[2:]) == ()


def test_what_the_run_kept_out_was_not_learnt(run):
    kept_out = run.parent / "kept_out.jsonl"
    kept_out.write_text('{"question": "Who?"}\n')
    recipe = {"data": {"train": str(run.parent / "train.jsonl"), "exclude": [str(kept_out)]}}
    (run / "recipe.toml").write_text(tomli_w.dumps(recipe))
    assert training_overlap_notes(run, PROBLEMS)[0].startswith("1 of 3 problems are in")


def test_a_model_that_no_run_made_and_data_that_are_gone(run, tmp_path):
    assert training_overlap_notes(tmp_path / "elsewhere", PROBLEMS) == ()
    (run.parent / "train.jsonl").unlink()
    (note,) = training_overlap_notes(run, PROBLEMS)
    assert note.startswith(f"not checked whether {run} was trained on these problems: ")
    assert note.endswith("no such file or folder")
    for broken in ("{", "data = []", '[data]\ntest = "t.jsonl"'):
        (run / "recipe.toml").write_text(broken)
        assert training_overlap_notes(run, PROBLEMS) == ()


def test_a_recipe_of_the_users_above_a_model_is_no_run(run):
    (run / "manifest.json").unlink()
    assert training_overlap_notes(run / "checkpoints" / "step-000002", PROBLEMS) == ()


def test_a_model_that_was_taught_another_dialect_is_told(run):
    model = run / "checkpoints" / "step-000002"
    assert (trained_dialect(model), trained_dialect(run.parent)) == (None, None)
    (run / "recipe.toml").write_text(tomli_w.dumps({"model": {"dialect": "hermes"}}))
    (note,) = dialect_notes(ModelConfig(path=model))
    assert note.startswith(f'model.dialect = "tags", but the run that made {model} taught it "hermes"')
    assert dialect_notes(ModelConfig(path=model, dialect="hermes")) == ()
