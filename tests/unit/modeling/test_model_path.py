import json
from pathlib import Path

import pytest

from ramify.core.errors import DataError
from ramify.modeling.model_path import fetch_model, local_folder, model_of
from ramify.runs.checkpoint_files import latest_checkpoint


def test_a_run_stands_for_its_last_checkpoint(tmp_path):
    for step in (5, 1200, 999_999, 1_000_000, 40):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".step-009999.partial").mkdir()
    (tmp_path / "checkpoints" / "step-2000000-copy").mkdir()
    assert model_of(tmp_path) == tmp_path / "checkpoints" / "step-1000000" == latest_checkpoint(tmp_path)


def test_a_self_critic_run_stands_for_its_last_cycle_that_is_done(tmp_path):
    for number, model in ((1, "model"), (2, "rl/checkpoints/step-000004"), (3, None)):
        cycle = tmp_path / f"cycle-{number:02d}"
        cycle.mkdir()
        if model is not None:
            (cycle / "done.json").write_text(json.dumps({"model": model}))
    assert model_of(tmp_path) == tmp_path / "cycle-02" / "rl/checkpoints/step-000004"


OUTSIDE = [json.dumps({"model": path}) for path in ("/etc", "..", "rl/../../cycle-02", "\0")]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 7}', "\x00", *OUTSIDE])
def test_a_damaged_record_of_a_cycle_is_named_in_one_line(tmp_path, text):
    done = tmp_path / "cycle-01" / "done.json"
    done.parent.mkdir()
    done.write_text(text)
    with pytest.raises(DataError) as caught:
        model_of(tmp_path)
    assert str(caught.value).startswith(f"{done}: ")
    assert str(caught.value).endswith(
        "put the file back from a copy, or name the model's own folder as model.path"
    )
    assert "\n" not in str(caught.value)


def test_any_other_folder_is_the_model(tmp_path):
    assert model_of(tmp_path) == tmp_path
    assert model_of(tmp_path / "none") == tmp_path / "none"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    assert model_of(tmp_path) == tmp_path


def test_a_use_begins_with_the_newest_model_and_the_folder_of_the_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    for step in (1, 2):
        folder = run / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        fetch_model(run)
        assert local_folder(run) == folder
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fetch_model(run)
    assert local_folder(run) == run
