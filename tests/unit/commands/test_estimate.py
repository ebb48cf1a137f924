"""What a recipe asks for, held against sums by hand and against the tensors of the model itself."""

from math import prod

import pytest
import torch

from ramify.commands.estimate import Work, device_of, memory_of, work_of
from ramify.commands.pace import Pace
from ramify.config.load import check_recipe
from ramify.config.schema_dpo import DpoRecipe
from ramify.config.schema_parts import ModelSection
from ramify.config.schema_sft import SftRecipe
from ramify.modeling.load import load_model
from ramify.modeling.lora import LoraSettings, add_lora


@pytest.fixture
def table(tmp_path, model_folder):
    (tmp_path / "rows.jsonl").write_text("{}\n" * 7 + "\n")
    return {
        "model": {"path": str(model_folder)},
        "data": {"train": str(tmp_path / "rows.jsonl"), "epochs": 3, "max_tokens": 100},
        "run": {"dir": "runs/a"},
        "learner": {"batch_size": 2, "optimizer": {"rate": 1e-3}},
    }


def test_the_steps_are_those_of_the_data_or_those_that_the_recipe_says(table):
    work = work_of(check_recipe(SftRecipe, table, "r"))
    assert (work.steps, work.per_step, work.tokens) == (11, 2, 100)
    table["run"]["steps"] = 4
    assert work_of(check_recipe(SftRecipe, table, "r")).steps == 4
    del table["run"]["steps"]
    table["data"]["train"] = "nowhere.jsonl"
    unknown = work_of(check_recipe(SftRecipe, table, "r"))
    assert unknown.steps is None
    assert "as many steps as the data give" in next(unknown.in_words)


@pytest.mark.parametrize(
    "lora", [None, {"rank": 4, "alpha": 8.0}, {"rank": 2, "alpha": 2.0, "targets": ["q_proj"]}]
)
@pytest.mark.parametrize("schema", [SftRecipe, DpoRecipe])
def test_memory_is_that_of_the_models_tensors(table, model_folder, schema, lora):
    if lora is not None:
        table["model"]["lora"] = lora
    if schema is DpoRecipe:
        table["learner"]["beta"] = 0.1
    recipe = check_recipe(schema, table, "r")
    model = load_model(model_folder)
    if lora is not None:
        add_lora(
            model,
            LoraSettings(lora["rank"], lora["alpha"], tuple(lora.get("targets", ())) or "all-linear"),
            0,
        )
    everything = sum(prod(parameter.shape) for parameter in model.parameters())
    trained = sum(prod(parameter.shape) for parameter in model.parameters() if parameter.requires_grad)
    # The adapters' base is its own reference.
    reference = everything if schema is DpoRecipe and lora is None else 0
    found = memory_of(recipe, work_of(recipe), "cpu")
    assert found.least == 4 * everything + 12 * trained + 4 * reference
    assert found.row > 0


def test_an_engine_at_a_service_takes_no_memory_here(table):
    recipe = check_recipe(SftRecipe, table, "r")
    assert memory_of(recipe, Work(1, "x", 1, 1, 1, writes=True, trains=False), "cpu") is None


def test_the_device_is_the_one_that_torch_would_take(model_folder):
    assert device_of(ModelSection(path=model_folder, device="cpu"))[0] == "cpu"
    assert device_of(ModelSection(path=model_folder))[0] == ("cuda" if torch.cuda.is_available() else "cpu")


def test_the_time_of_a_step_by_hand():
    pace = Pace(flops=1e12, bandwidth=1e10)
    train = Work(10, "x", per_step=100, tokens=1000, context=1200, writes=True, trains=True)
    # 1e5 tokens; with 10 at once 1e4 rounds read 4e9 bytes each, far slower than 2e14 operations.
    assert pace.seconds(train, 10**9, slots=10, size=4) == pytest.approx(1e4 * 4e9 / 1e10 + 6e9 * 1e5 / 1e12)
    sft = Work(10, "x", per_step=10, tokens=100, context=100, writes=False, trains=True)
    assert pace.seconds(sft, 10**9, slots=10, size=4) == pytest.approx(6)
