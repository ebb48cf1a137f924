"""Recipes of released runs say for which GPUs they are; `ramify doctor` says that each fits them, without any network."""

import re
import shlex

import pytest

from ramify.cli import main
from ramify.config import shipped_recipes

HEADERS = {
    path.stem: path.read_text().partition("\n[")[0] for path in sorted(shipped_recipes().glob("*.toml"))
}
FOR_GPUS = re.compile(r"^# For (\d+) GPUs of (\d+) GB", re.MULTILINE)
ASKED = re.compile(r"^#   ramify (doctor .*--gpus.*)$", re.MULTILINE)
RELEASED = {
    "arpo_reasoning_7b_8gpus",
    "arpo_deepsearch_8b",
    "arpo_deepsearch_14b",
    "arpo_deepsearch_32b",
    "aepo_reasoning_7b_8gpus",
    "aepo_deepsearch_14b",
    "aepo_deepsearch_32b",
    "toolstar_grpo",
    "toolstar_selfcritic",
    "toolstar_sft",
}


def test_every_released_run_says_for_which_gpus_it_is():
    assert {name for name, header in HEADERS.items() if FOR_GPUS.search(header)} == RELEASED


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_a_recipe_fits_the_gpus_that_it_names(name, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    header = HEADERS[name]
    (command,) = ASKED.findall(header)
    number, memory = FOR_GPUS.search(header).groups()
    assert f"recipes/{name}.toml --gpus {number} --gpu-memory {memory}" in command
    words = [
        str(shipped_recipes() / f"{name}.toml") if word.endswith(".toml") else word
        for word in shlex.split(command)
    ]
    assert main(words) == 0
    message = capsys.readouterr().out
    assert "together: fits" in message
    assert "the machine's memory" not in message
    assert f"{number} GPUs of {memory} GiB" in message


def test_a_recipe_does_not_fit_gpus_that_are_too_small(capsys):
    recipe = shipped_recipes() / "arpo_deepsearch_14b.toml"
    assert main(["doctor", str(recipe), "--gpus", "8", "--gpu-memory", "24"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "takes at least" in message
    assert "take a smaller model or a larger GPU" in message
