"""What may change when a run goes on (`--resume`), by key; every other key of the recipe stays what it was."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ramify.config.load import read_toml, resolved
from ramify.core.errors import ConfigError
from ramify.obs.manifest import Difference, differences

MAY_CHANGE = frozenset(
    {
        "run.dir",
        "run.steps",
        "run.save_every",
        "run.keep_last",
        "run.keep_best",
        "run.threads",
        "data.epochs",
        "engine.slots",
        "learner.token_budget",
        "model.device",
        "preflight.enabled",
        "preflight.problems",
        "preflight.allow_zero_variance",
    }
)
"""How long the run is, what is kept of it, and how its work is laid out on the machine."""

_ROUNDS = frozenset({"run.threads", "engine.slots", "learner.token_budget", "model.device"})
"""Of these a result depends by its last bits, so that a deterministic run keeps them."""

_WITH_VALUES = 8
"""Differences that are told with both values; of another run's folder there are dozens."""


def changes(record: Path, recipe: BaseModel) -> tuple[Difference, ...]:
    """The keys at which `recipe` differs from the one that a run was begun with.

    Raises:
        ConfigError: One of them must not, and is named with both values; or the run's recipe cannot be read.
    """
    before, now = read_toml(record), tomllib.loads(resolved(recipe))
    found = tuple(differences(before, now))
    allowed = MAY_CHANGE - _ROUNDS if now.get("run", {}).get("deterministic") else MAY_CHANGE
    if refused := [difference for difference in found if difference.key not in allowed]:
        told = "; ".join(map(str, refused[:_WITH_VALUES]))
        if rest := [difference.key for difference in refused[_WITH_VALUES:]]:
            told += f"; and so do {', '.join(rest)}"
        raise ConfigError(
            f"run.dir: {record} differs from the recipe given: {told}; put "
            f"{'it' if len(refused) == 1 else 'them'} back, or name a new folder (a run that goes on may change "
            f"{', '.join(sorted(allowed - {'run.dir'}))})"
        )
    return found


def lasting(table: dict[str, Any]) -> dict[str, Any]:
    """What is left of a recipe's table without the keys that may change and without `[run]`."""
    kept = {name: value for name, value in table.items() if name != "run"}
    for key in MAY_CHANGE:
        section, _, name = key.partition(".")
        if isinstance(kept.get(section), dict):
            kept[section] = {inner: value for inner, value in kept[section].items() if inner != name}
    return kept
