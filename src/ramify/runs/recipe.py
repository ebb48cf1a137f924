"""The recipe of a run as its folder records it, and which of its keys may change when the run goes on."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError
from ramify.runs.manifest import Difference, differences

_WITH_VALUES = 8
"""Number of differences shown with both values; the folder of another run may have dozens."""


@dataclass(frozen=True, slots=True)
class RecipeRecord:
    """A checked recipe, as runs write it down.

    Attributes:
        text: The whole recipe as TOML that loads again.
        fingerprint: Of the keys that a run which goes on must not change.
        may_change: The other keys, as `section.name`.
    """

    text: str
    fingerprint: str
    may_change: frozenset[str]

    def changes(self, record: Path) -> tuple[Difference, ...]:
        """Return the keys in which this recipe differs from the one that a run was started with, `record`.

        Raises:
            ConfigError: A key differs that must not change, named with both values; or the run's recipe cannot be read.
        """
        differing = tuple(differences(_read(record), tomllib.loads(self.text)))
        if refused := [difference for difference in differing if difference.key not in self.may_change]:
            shown = "; ".join(map(str, refused[:_WITH_VALUES]))
            if others := [difference.key for difference in refused[_WITH_VALUES:]]:
                shown += f"; and so do {', '.join(others)}"
            raise ConfigError(
                f"run.dir: {record} differs from the recipe given: {shown}; put "
                f"{'it' if len(refused) == 1 else 'them'} back, or name a new folder (a run that goes on may change "
                f"{', '.join(sorted(self.may_change - {'run.dir'}))})"
            )
        return differing


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected a recipe file: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from None
