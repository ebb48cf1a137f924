import pytest
import tomli_w

from ramify.config.other_runs import dialect_notes, trained_dialect
from ramify.modeling.configs import ModelConfig


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step-000002").mkdir(parents=True)
    (folder / "recipe.toml").write_text(tomli_w.dumps({"data": {"train": "train.jsonl"}}))
    (folder / "manifest.json").write_text("{}")
    return folder


def test_a_model_that_was_taught_another_dialect_is_told(run):
    model = run / "checkpoints" / "step-000002"
    assert (trained_dialect(model), trained_dialect(run.parent)) == (None, None)
    (run / "recipe.toml").write_text(tomli_w.dumps({"model": {"dialect": "hermes"}}))
    (note,) = dialect_notes(ModelConfig(path=model))
    assert note.startswith(f'model.dialect = "tags", but the run that made {model} taught it "hermes"')
    assert dialect_notes(ModelConfig(path=model, dialect="hermes")) == ()
