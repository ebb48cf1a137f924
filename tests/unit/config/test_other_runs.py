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
    assert note.startswith(
        f"2 of 3 problems are in the data that {model} was trained on (2 in {run.parent / 'train.jsonl'}); their scores measure "
        "memory too"
    )
    assert training_overlap_notes(model, PROBLEMS[2:]) == ()


def test_every_training_of_the_weights_counts_and_a_lost_one_is_told(run, tmp_path):
    """SFT, then RL from its checkpoint: both files count, each problem once; an ancestor that is not here is named as unchecked."""
    later = tmp_path / "later"
    later.mkdir()
    (tmp_path / "rl.jsonl").write_text('{"question": "Where?"}\n{"question": "When?"}\n')
    sections = {
        "data": {"train": str(tmp_path / "rl.jsonl")},
        "model": {"path": str(run / "checkpoints" / "step-000002")},
    }
    (later / "recipe.toml").write_text(tomli_w.dumps(sections))
    (later / "manifest.json").write_text("{}")
    (note,) = training_overlap_notes(later, PROBLEMS)
    assert note.startswith("3 of 3 problems are in the data")
    assert f"(2 in {tmp_path / 'rl.jsonl'}; 2 in {tmp_path / 'train.jsonl'})" in note
    stage = {"command": "sft", "dialect": "tags", "tools": [], "prompts": [], "others": 1}
    (later / "trained_prompts.json").write_text(json.dumps({"schema": 1, "stages": [stage] * 2}))
    assert len(training_overlap_notes(later, PROBLEMS)) == 1
    (run / "manifest.json").unlink()
    lost, note = training_overlap_notes(later, PROBLEMS)
    assert lost.startswith(f"not checked whether 1 of the 2 trainings of {later} were on these problems")
    assert note.startswith("2 of 3 problems are in the data")
    # A run that names itself as its model ends the search.
    (later / "recipe.toml").write_text(tomli_w.dumps(sections | {"model": {"path": str(later)}}))
    assert training_overlap_notes(later, PROBLEMS)[-1].startswith("2 of 3")


def test_what_the_run_kept_out_was_not_learnt(run):
    kept_out = run.parent / "kept_out.jsonl"
    kept_out.write_text('{"question": "Who?"}\n')
    recipe = {"data": {"train": str(run.parent / "train.jsonl"), "exclude": [str(kept_out)]}}
    (run / "recipe.toml").write_text(tomli_w.dumps(recipe))
    assert training_overlap_notes(run, PROBLEMS)[0].startswith("1 of 3 problems are in the data")


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
