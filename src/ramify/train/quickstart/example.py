"""What a quick start consists of, so that every example goes the same way from data to report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.obs.console import RunConsole

Settings: TypeAlias = Mapping[str, Any]
"""Values by the dotted key of a recipe."""


@dataclass(frozen=True, slots=True)
class ExampleData:
    """What an example learns from and is measured by.

    Attributes:
        base: Folder of the model to begin with.
        demonstrations: For the cold start.
        train: Problems for RL.
        passages: The corpus of the search tool.
        test: Held-out problems.
        seen: Problems about what training asked about too; None where an example has none.
    """

    base: Path
    demonstrations: Path
    train: Path
    passages: Path
    test: Path
    seen: Path | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A quick start.

    Attributes:
        name: Its recipes are `recipes/{name}_sft.toml`, `_rl.toml` and `_eval.toml`.
        base: What the model to begin with is called on the page.
        make_data: Writes the data below a folder; arguments: the folder, the seed, the console.
        shares: Of the time that each phase takes, as measured, by its name on the console.
        sft: Changes to the first recipe, besides paths and seed.
        rl: Changes to the second.
        evaluation: Changes to the third.
        greedy: Whether the trained models are also evaluated at temperature 0.
    """

    name: str
    base: str
    make_data: Callable[[Path, int, RunConsole], ExampleData]
    shares: Mapping[str, float]
    sft: Settings
    rl: Settings
    evaluation: Settings
    greedy: bool
