"""GPUs that servers and learner cannot have are refused before anything is loaded, with the key that names them."""

import pytest

from ramify.cli import main
from ramify.commands import gpus
from ramify.config import shipped_recipes
from ramify.config.load import load_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError

RECIPE = shipped_recipes() / "arpo_reasoning_7b.toml"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with four GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.setattr(gpus, "device_of", lambda model: ("cuda", "an NVIDIA driver is here"))


def checked(*settings, trains=True, **environ):
    recipe = load_recipe(TrainRecipe, RECIPE, ["engine.sleep=true", *settings])
    gpus.check_gpus(recipe, trains=trains, environ=environ)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("settings", "environ", "expected"),
    [
        ((), {}, "engine.gpus: there is no GPU 4, only GPUs 0 to 3"),
        (('engine.gpus=["", ""]',), {}, "engine.gpus: several servers would take the same GPUs"),
        (('engine.gpus=["0"]', "engine.sleep=false"), {}, "engine.gpus: GPU 0 is a learner's too"),
        (('engine.gpus=[""]', "engine.sleep=false"), {}, "engine.gpus: GPU 0 is a learner's too"),
        (('engine.gpus=["1"]', "engine.sleep=false"), {"LOCAL_WORLD_SIZE": "2"}, "engine.gpus: GPU 1 is a learner's"),
        (
            ('engine.gpus=["3"]', "engine.sleep=false"),
            {"CUDA_VISIBLE_DEVICES": "3,2"},
            "engine.gpus: GPU 3 is a learner's too",
        ),
        (('engine.gpus=["0"]',), {"LOCAL_WORLD_SIZE": "8"}, "--nproc-per-node: 8 processes have 4 GPUs"),
        (
            ('engine.gpus=["0"]',),
            {"LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "3"},
            "--nproc-per-node: 2 processes have 1 GPUs",
        ),
    ],
)  # fmt: skip
def test_gpus_that_are_not_there_or_not_free_are_refused(settings, environ, expected):
    with pytest.raises(ConfigError) as caught:
        checked(*settings, **environ)
    assert expected in str(caught.value)


@pytest.mark.usefixtures("machine")
def test_gpus_that_both_can_have_pass():
    checked('engine.gpus=["0", "1", "2", "3"]', LOCAL_WORLD_SIZE="4")
    checked('engine.gpus=["2", "3"]', "engine.sleep=false", LOCAL_WORLD_SIZE="2")
    checked('engine.gpus=["0"]', "engine.sleep=false", CUDA_VISIBLE_DEVICES="1")
    checked('engine.gpus=["0"]', "engine.sleep=false", trains=False)
    checked('engine.gpus=["0"]', "engine.sleep=false", CUDA_VISIBLE_DEVICES="", LOCAL_WORLD_SIZE="2")
    # Servers are on the machine of rank 0, and this is another one.
    checked('engine.gpus=["3", "7"]', "engine.sleep=false", LOCAL_WORLD_SIZE="4", GROUP_RANK="1")


def test_a_machine_without_gpus_says_nothing_about_those_of_another(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    checked(LOCAL_WORLD_SIZE="64")


@pytest.mark.usefixtures("machine")
def test_a_dry_run_and_doctor_refuse_them(capsys):
    assert main(["train", str(RECIPE), "--dry-run"]) == 2
    assert "engine.gpus: there is no GPU 4, only GPUs 0 to 3" in capsys.readouterr().err
    assert (
        main(["doctor", str(RECIPE), "--gpus", "4", "--gpu-memory", "80", "-s", "model.path=SmolLM2-135M"])
        == 2
    )
    assert "engine.gpus: there is no GPU 4, only GPUs 0 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "value"), [("sleep", "true"), ("weights", "nccl"), ("weights_dir", "w")])
def test_an_evaluation_refuses_what_acts_beside_a_learner_only(key, value):
    recipe = shipped_recipes() / "eval_reasoning.toml"
    engine = 'engine={name="vllm",urls=["http://127.0.0.1:1"]}'
    assert load_recipe(EvalRecipe, recipe, [engine]).engine.learner_keys == ()
    with pytest.raises(ConfigError, match=rf"engine\.{key}: has no effect here, where nothing is trained"):
        load_recipe(EvalRecipe, recipe, [engine, f"engine.{key}={value}"])
