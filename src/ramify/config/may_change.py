"""The keys of a recipe that may change when a run is resumed (`--resume`); all others must stay the same."""

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
"""The length of the run, which checkpoints are kept, and how the work is placed on the machine."""

_ROUNDS = frozenset({"run.threads", "engine.slots", "learner.token_budget", "model.device"})
"""Keys of these that change the last bits of results, so a deterministic run must keep them."""

_WITH_VALUES = 8
"""Number of differences shown with both values; the folder of another run may have dozens."""


def changes(record: Path, recipe: BaseModel) -> tuple[Difference, ...]:
    """The keys in which `recipe` differs from the recipe that a run was started with, `record`.

    Raises:
        ConfigError: A key differs that must not change, named with both values; or the run's recipe cannot be read.
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
    """A recipe's table without `[run]` and without the keys that may change."""
    kept = {name: value for name, value in table.items() if name != "run"}
    for key in MAY_CHANGE:
        section, _, name = key.partition(".")
        if isinstance(kept.get(section), dict):
            kept[section] = {inner: value for inner, value in kept[section].items() if inner != name}
    return kept
