"""Every recipe names the machine that it is for, and fits it by the estimate of `ramify doctor`, without any network.

The estimate itself is compared with figures that others measured on such machines.
"""

import json
import re
import shlex

import pytest

from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.modeling.load import shapes_of
from ramify.modeling.memory_plan import Job, Layout, ModelSize, plan_of
from ramify.modeling.model_config import published_config

GIB = 1 << 30
RECIPES = {path.stem: path for path in sorted(shipped_recipes().glob("*.toml"))}
HEADERS = {name: path.read_text().partition("\n[")[0] for name, path in RECIPES.items()}
ASKED = re.compile(r"^#   ramify (doctor .*--gpu-memory.*)$", re.MULTILINE)
ON_A_LAPTOP = "doctor {name}.toml --gpu-memory 10 -s model.path=SmolLM2-135M"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_the_machine_that_it_names(name, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["recipes", name, "--json"]) == 0
    hardware = json.loads(capsys.readouterr().out)["hardware"]
    if hardware in ("CPU", "CPU and services"):
        command = ON_A_LAPTOP.format(name=name)
    else:
        number, memory = re.fullmatch(r"(\d+) x (\d+) GB", hardware).groups()
        (command,) = ASKED.findall(HEADERS[name])
        gpus = f"--gpus {number} " if int(number) > 1 else ""
        assert f"recipes/{name}.toml {gpus}--gpu-memory {memory}" in command
    words = [str(RECIPES[name]) if word.endswith(".toml") else word for word in shlex.split(command)]
    assert main(words) == 0
    message = capsys.readouterr().out
    assert ("at a service" in message) == (hardware == "CPU and services")
    assert "together: fits" in message or "at a service" in message
    assert "the machine's memory" not in message


def test_a_recipe_does_not_fit_gpus_that_are_too_small(capsys):
    recipe = shipped_recipes() / "arpo_deepsearch_14b.toml"
    assert main(["doctor", str(recipe), "--gpus", "8", "--gpu-memory", "24"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "takes at least" in message
    assert "take a smaller model or a larger GPU" in message


@pytest.mark.parametrize(("tokens", "measured"), [(16_384, 17.1), (65_536, 36.1)])
def test_the_estimate_is_within_5_percent_of_what_others_measured(tokens, measured):
    """prime-rl's own figures: Qwen3-4B, all weights, 8 H100, layers computed again; by default its optimizer is off the GPU."""
    shapes, config = shapes_of(published_config("Qwen3-4B"), "Qwen3-4B")
    job = Job(config=config, size=ModelSize.of(shapes), number_bytes=2, row_tokens=tokens, processes=8)
    plan = plan_of(job, Layout("by_layer"), recompute=True)
    assert (plan.total - plan.parts["optimizer"]) / GIB == pytest.approx(measured, rel=0.05)
