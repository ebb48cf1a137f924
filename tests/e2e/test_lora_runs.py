"""Runs that train an adapter: resumed bit for bit, evaluated from the adapter's folder, opened by others."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from e2e_runs import EVAL, SFT, TRAIN, overrides, write_task
from ramify.cli import main
from ramify.modeling.load import load_model
from ramify.modeling.lora import adapters_off, has_adapters
from ramify.obs.metrics import read_metrics

LORA = (*("model.lora.rank=4", "model.lora.alpha=8"), *("run.threads=1", "run.deterministic=true", "run.save_every=1"))  # fmt: skip


def ramify(command, recipe, *arguments, settings=LORA):
    assert main([command, str(recipe), *overrides(*settings), *arguments]) == 0
    return recipe.parent / "run"


def last(run):
    return max((run / "checkpoints").iterdir())


def check_equal(run, other):
    for name in ("adapter_config.json", "adapter_model.safetensors", "state/optimizer.safetensors"):
        assert (last(run) / name).read_bytes() == (last(other) / name).read_bytes()


@pytest.fixture(scope="module")
def supervised(tmp_path_factory, model_folder):
    """An adapter after a short cold start, and the same stopped and resumed."""
    runs = []
    for stops in ([], ["--max-steps", "7"]):
        recipe = write_task(tmp_path_factory.mktemp("sft"), model_folder, SFT)
        settings = (*LORA, "data.epochs=10", "learner.optimizer.rate=2e-2")
        if stops:
            ramify("sft", recipe, *stops, settings=settings)
            stops = ["--resume"]
        runs.append(ramify("sft", recipe, *stops, settings=settings))
    return runs


def test_a_resumed_supervised_run_ends_with_the_same_adapter(supervised, model_folder):
    check_equal(*supervised)
    losses = [row["loss"] for row in read_metrics(supervised[0] / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 1
    names = {path.name for path in last(supervised[0]).iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "state.json"} <= names
    assert "model.safetensors" not in names


def test_its_checkpoint_opens_in_peft_and_in_transformers(supervised, model_folder):
    folder, ids = last(supervised[0]), torch.arange(5, 40)[None]
    ours = load_model(folder)
    wrapped = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_folder), folder)
    stock = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = ours(ids).logits
        for theirs in (wrapped, stock):
            torch.testing.assert_close(theirs(ids).logits, logits, atol=1e-4, rtol=1e-5)
        with adapters_off(ours):
            assert not torch.allclose(ours(ids).logits, logits, atol=0.1)


def test_reinforcement_learning_goes_on_with_the_adapter_and_is_resumed(supervised, tmp_path):
    source, runs = last(supervised[0]), []
    for number, steps in enumerate((("3",), ("1", "3"))):
        recipe = write_task(tmp_path / str(number), source, TRAIN)
        for already, step in enumerate(steps):
            ramify("train", recipe, "--max-steps", step, *(["--resume"] if already else []))
        runs.append(recipe.parent / "run")
    check_equal(*runs)
    assert has_adapters(load_model(last(runs[0])))
    before = (source / "adapter_model.safetensors").read_bytes()
    assert (last(runs[0]) / "adapter_model.safetensors").read_bytes() != before
    rows = read_metrics(runs[0] / "metrics.jsonl")
    assert all(row["update/mismatch_max"] < 1e-4 for row in rows if row["update/mismatch_max"] is not None)
    assert any(row["update/mismatch_max"] is not None for row in rows)


def test_an_adapter_is_evaluated(supervised, tmp_path):
    recipe = write_task(tmp_path / "eval", last(supervised[0]), EVAL)
    run = ramify("eval", recipe, settings=())
    summary = json.loads((run / "summary.json").read_text())
    assert summary["num_problems"] == 18


def test_other_sizes_than_those_of_the_adapter_are_refused_in_one_line(supervised, tmp_path, refused):
    recipe = write_task(tmp_path / "other", last(supervised[0]), SFT)
    message = refused("sft", recipe, *overrides("model.lora.rank=8", "model.lora.alpha=8"))
    assert "model.lora: expected the settings of the adapter at" in message
