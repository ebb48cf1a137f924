"""The recipes of an example: those in `recipes/`, with its own paths and seed and what the example changes."""

import asyncio
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramify.config import shipped_recipes
from ramify.config.build_services import build_provider
from ramify.config.build_tools import build_search
from ramify.config.load import check_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_tools import LocalSearchSection
from ramify.config.schema_train import TrainRecipe
from ramify.train.quickstart.example import Example, ExampleData


def sft_recipe(example: Example, out: Path, seed: int, data: ExampleData) -> SftRecipe:
    """The cold start of the model that the example begins with."""
    filled = {"model.path": data.base, "data.train": data.demonstrations, "run.dir": out / "sft"}
    name = f"{example.name}_sft.toml"
    return check_recipe(SftRecipe, _filled(name, {**filled, "run.seed": seed, **example.sft}), name)


def rl_recipe(example: Example, out: Path, seed: int, model: Path, data: ExampleData) -> TrainRecipe:
    """ARPO on `model`."""
    filled = {
        "model.path": model,
        "data.train": data.train,
        "run.dir": out / "rl",
        "run.seed": seed,
        "tools.search.corpus": data.passages,
    }
    name = f"{example.name}_rl.toml"
    return check_recipe(TrainRecipe, _filled(name, {**filled, **example.rl}), name)


def eval_recipe(
    example: Example, folder: Path, seed: int, model: Path, test: Path, passages: Path, temperature: float
) -> EvalRecipe:
    """Evaluation of `model` on the problems `test`; results go to `folder`."""
    filled = {
        "model.path": model,
        "data.test": test,
        "run.dir": folder,
        "run.seed": seed,
        "tools.search.corpus": passages,
        "sampling.temperature": temperature,
    }
    name = f"{example.name}_eval.toml"
    return check_recipe(EvalRecipe, _filled(name, {**filled, **example.evaluation}), name)


@contextmanager
def search_tool(name: str, passages: Path) -> Iterator[Callable[[str | None, str], str]]:
    """The search tool of an example's RL recipe: (collection, query) -> the text that the agent would get."""
    table = _read(f"{name}_rl.toml")["tools"]["search"]
    section = LocalSearchSection.model_validate({**table, "corpus": passages})
    search = build_search(section, build_provider(section, offline=False))
    with asyncio.Runner() as runner:
        yield lambda collection, query: runner.run(search.look_up(query, collection)).text


def _filled(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    table = _read(name)
    for key, value in values.items():
        *sections, last = key.split(".")
        below = table
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = value
    return table


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((shipped_recipes() / name).read_text(encoding="utf-8"))
