"""The sandbox levels that tests run at: unit tests at the highest one that this machine reaches, the rest at all."""

from collections.abc import Iterable

import pytest

from ramify.sandbox.levels import MAX_LEVEL, detect_level, why_not

ALL = range(MAX_LEVEL + 1)
HIGHEST = detect_level()
REACHED = [level for level in ALL if why_not(level) is None]


def at_levels(levels: Iterable[int]) -> list:
    """Parameters of a test or a fixture: these levels, of which only the highest is for a unit test."""
    return [
        pytest.param(level, id=f"L{level}", marks=() if level == HIGHEST else pytest.mark.integration)
        for level in levels
    ]
