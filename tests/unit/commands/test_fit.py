"""`ramify doctor RECIPE --gpus N --gpu-memory GB`: mistakes in one line, and what it says of a recipe that fits."""

import re

import pytest

from ramify.cli import main
from ramify.config import shipped_recipes

RECIPES = shipped_recipes()


@pytest.fixture
def asked(capsys, monkeypatch):
    """Runs doctor without a network: its status, what it said, and what it told on standard error."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def ask(name, *words):
        status = main(["doctor", *([str(RECIPES / f"{name}.toml")] if name else []), *words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return ask


ON_EIGHT = ("--gpus", "8", "--gpu-memory", "80")
MISTAKES = {
    "no GPU": (
        "arpo_reasoning_7b_8gpus",
        ("--gpus", "0", "--gpu-memory", "80"),
        "--gpus: expected a whole number",
    ),
    "half a GPU": (
        "arpo_reasoning_7b_8gpus",
        ("--gpus", "0.5", "--gpu-memory", "80"),
        "--gpus: expected a whole number",
    ),
    "no memory": ("arpo_reasoning_7b_8gpus", ("--gpus", "8"), "--gpus 8 --gpu-memory 80"),
    "nonsense": (
        "arpo_reasoning_7b_8gpus",
        ("--gpus", "8", "--gpu-memory", "-80"),
        "--gpu-memory: expected a",
    ),
    "no recipe": (None, ON_EIGHT, "expected a recipe too"),
    "an evaluation": ("eval_reasoning", ON_EIGHT, "leave --gpus out"),
    "copies": (
        "arpo_reasoning_7b_8gpus",
        (*ON_EIGHT, "-s", "learner.copies=3"),
        "learner.copies: expected a divisor",
    ),
    "shared weights": (
        "grpo_reasoning_7b",
        (*ON_EIGHT, "-s", "engine.weights=shared"),
        'engine.weights: expected "copy"',
    ),
    "an unknown model": ("dpo_toolstar_7b", ON_EIGHT, "-s model.path=Qwen/Qwen2.5-7B"),
    "an unknown model of the hub": (
        "arpo_reasoning_7b_8gpus",
        (*ON_EIGHT, "-s", "model.path=org/unknown"),
        "-s model.path=Qwen/Qwen2.5-7B",
    ),
    "a small GPU": (
        "arpo_reasoning_7b_8gpus",
        ("--gpus", "8", "--gpu-memory", "24"),
        "lower learner.token_budget and rollout.max_tokens",
    ),
    "servers that take too much": (
        "arpo_deepsearch_14b",
        (*ON_EIGHT, "-s", 'engine.flags=["--gpu-memory-utilization=0.9"]'),
        "set --gpu-memory-utilization to 0.66 at most",
    ),
    "servers that take too little": (
        "arpo_deepsearch_14b",
        (*ON_EIGHT, "-s", 'engine.flags=["--gpu-memory-utilization", "0.3"]'),
        "does not hold the server's weights",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_do(case, asked):
    name, words, told = MISTAKES[case]
    status, _, errors = asked(name, *words)
    assert status == 2
    assert told in " ".join(errors.split())
    assert "Traceback" not in errors
    assert errors.count("\n") == 1


def test_what_it_says_of_a_recipe_that_fits(asked):
    status, said, errors = asked("arpo_deepsearch_14b", *ON_EIGHT)
    assert (status, errors) == (0, "")
    lines = [line.strip() for line in said.splitlines()]
    parts = [line for line in lines if re.match(r"[\d.]+ [GM]iB  ", line)]
    how = "a row of 24,576 tokens, layers computed again; weights gathered layer by layer"
    assert any(line.endswith(how) for line in lines)
    assert [line.split("  ")[1] for line in parts[:-1]] == [
        "activations",
        "logits",
        "weights",
        "gradients",
        "optimizer",
        "gathered weights",
        "gradients before they are summed",
        "the engine's server, asleep (assumed)",
    ]
    sizes = [float(line.split()[0]) * (1 if "GiB" in line else 1 / 1024) for line in parts]
    assert sum(sizes[:-1]) == pytest.approx(sizes[-1], abs=0.3)
    assert "while the servers write" in lines[-1]


def test_what_does_not_fit_on_the_gpus_may_lie_in_the_machines_memory(asked):
    status, said, _ = asked("aepo_deepsearch_32b", *ON_EIGHT)
    assert status == 0
    assert "lie in the machine's memory: 61.0 GiB for each of its GPUs" in said
    assert "  optimizer" not in said
