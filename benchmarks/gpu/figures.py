"""One measured figure of a GPU, and how it is printed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, or why it was not.

    Attributes:
        row: Its name.
        metric: What the number is, with units.
        value: None when it was not measured; then `settings["not_measured"]` holds the reason.
        target: In words; empty where nothing is asked for.
        met: Whether the target is reached; None without a target or a value.
        settings: Sizes, and what else was measured at the same time.
        proves: What a figure that is met, or is there at all, shows to work on a GPU.
    """

    row: str
    metric: str
    value: float | None
    target: str = ""
    met: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    proves: str = field(kw_only=True)

    @property
    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @property
    def in_words(self) -> str:
        """One line for people."""
        if self.value is None:
            return f"{self.row:28} not measured: {self.settings['not_measured']}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        target = f"; target {self.target}" if self.target else ""
        return f"{self.row:28} {self.value:10.4g} {verdict:7} {self.metric}{target}\n{'':28} proves: {self.proves}"


def not_measured(row: str, reason: str, proves: str) -> Figure:
    """A row that failed, or that there was no time for, and what it would have shown."""
    return Figure(row, "", None, settings={"not_measured": reason}, proves=proves)
