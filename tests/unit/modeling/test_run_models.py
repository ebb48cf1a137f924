import json

from ramify.modeling.run_models import model_of


def test_a_run_stands_for_its_last_checkpoint(tmp_path):
    for step in (5, 1200, 40):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".step-009999.partial").mkdir()
    assert model_of(tmp_path) == tmp_path / "checkpoints" / "step-001200"


def test_a_self_critic_run_stands_for_its_last_cycle_that_is_done(tmp_path):
    for number, model in ((1, "model"), (2, "rl/checkpoints/step-000004"), (3, None)):
        cycle = tmp_path / f"cycle-{number:02d}"
        cycle.mkdir()
        if model is not None:
            (cycle / "done.json").write_text(json.dumps({"model": model}))
    assert model_of(tmp_path) == tmp_path / "cycle-02" / "rl/checkpoints/step-000004"


def test_any_other_folder_is_the_model(tmp_path):
    assert model_of(tmp_path) == tmp_path
    assert model_of(tmp_path / "none") == tmp_path / "none"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    assert model_of(tmp_path) == tmp_path
