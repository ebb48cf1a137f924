"""The quick start's recipes: `recipes/quickstart_*.toml` with its own paths, seed, temperature, limits and warm-up."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.config.load import check_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_sft import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.shipped import shipped_recipes
from ramify.data.world import WorldFiles
from ramify.train.quickstart.sizes import QuickstartSize


def sft_recipe(out: Path, seed: int, size: QuickstartSize, demonstrations: Path) -> SftRecipe:
    """The cold start of `out/base`."""
    filled = {
        "model.path": out / "base",
        "data.train": demonstrations,
        "run.dir": out / "sft",
        "run.seed": seed,
        "learner.optimizer.warmup_steps": size.sft_warmup,
    }
    return check_recipe(SftRecipe, _filled("quickstart_sft.toml", filled), "quickstart_sft.toml")


def rl_recipe(out: Path, seed: int, size: QuickstartSize, model: Path, world: WorldFiles) -> TrainRecipe:
    """ARPO on `model`."""
    filled = {
        "model.path": model,
        "data.train": world.train,
        "run.dir": out / "rl",
        "run.seed": seed,
        "learner.optimizer.warmup_steps": size.rl_warmup,
        "preflight.enabled": size.preflight,
        "tools.search.corpus": world.passages,
        **{f"rollout.{name}": value for name, value in size.limits.items()},
    }
    return check_recipe(TrainRecipe, _filled("quickstart_rl.toml", filled), "quickstart_rl.toml")


def eval_recipe(
    folder: Path, seed: int, size: QuickstartSize, model: Path, test: Path, passages: Path, temperature: float
) -> EvalRecipe:
    """Evaluation of `model` on the problems `test`; results go to `folder`."""
    filled = {
        "model.path": model,
        "data.test": test,
        "run.dir": folder,
        "run.seed": seed,
        "tools.search.corpus": passages,
        "sampling.temperature": temperature,
        **{f"sampling.{name}": value for name, value in size.limits.items()},
    }
    return check_recipe(EvalRecipe, _filled("quickstart_eval.toml", filled), "quickstart_eval.toml")


def _filled(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((shipped_recipes() / name).read_text(encoding="utf-8"))
    for key, value in values.items():
        *sections, last = key.split(".")
        below = table
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = value
    return table
