"""A fresh process takes about the memory that the estimates say: for one row, and for a step of a whole run."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from e2e_runs import overrides, python, write_task
from model_folders import write_tokenizer
from ramify.cli import main
from ramify.commands.memory import job_here
from ramify.config.load import load_recipe
from ramify.config.schema_train import TrainRecipe
from ramify.modeling.memory_plan import plan_of, row_bytes
from wide_rows import random_model, tree, update


def high_water_mark():
    """Return that of this process in bytes; ru_maxrss would begin with that of the process that started it."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


def child():
    """Print how far a row of 2048 tokens raises this process's high-water mark, and the estimate."""
    model = random_model()
    update(model, tree(64))
    before = high_water_mark()
    update(model, tree(2048))
    raised = high_water_mark() - before
    print(raised, row_bytes(model.config, 2048, torch.float32.itemsize).without_recompute)  # noqa: T201


def child_of_a_run(folder, *settings):
    """Print how far one step of RL with a model of 60 MB raises the mark of a run with a tiny one, and the estimate."""
    words = overrides(*settings)
    recipes = {}
    for name, hidden, layers in (("tiny", 64, 1), ("wide", 384, 8)):
        model = Path(folder) / name / "model"
        write_tokenizer(model)
        config = Qwen2Config(
            vocab_size=600,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(model)
        recipes[name] = write_task(Path(folder) / name, model)
    assert main(["train", str(recipes["tiny"]), "--max-steps", "1", *words]) == 0
    before = high_water_mark()
    assert main(["train", str(recipes["wide"]), "--max-steps", "1", *words]) == 0
    raised = high_water_mark() - before
    recipe = load_recipe(TrainRecipe, recipes["wide"], settings)
    print(raised, plan_of(job_here(recipe, "cpu")).total)  # noqa: T201


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
@pytest.mark.parametrize("lora", ["", "{}"], ids=["all weights", "adapter"])
def test_the_estimate_and_a_step_of_a_run(tmp_path, lora):
    settings = ["engine.slots=32", "rollout.max_tokens=100", "learner.token_budget=512"]
    settings += [f"model.lora={lora}"] if lora else []
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_memory_of_a_process as t; "
        f"t.child_of_a_run({str(tmp_path)!r}, *{settings!r})"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    raised, estimate = map(int, done.stdout.splitlines()[-1].split())
    assert 0.6 < raised / estimate < 1.6, (raised, estimate)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_the_estimate_and_the_high_water_mark_of_a_process():
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_memory_of_a_process; test_memory_of_a_process.child()"
    done = python(code)
    assert done.returncode == 0, done.stderr
    raised, estimate = map(int, done.stdout.split())
    assert 0.7 < raised / estimate < 2.5
