"""Two or more sides measured in turns, so that a slow minute of the machine falls on all of them."""

import statistics
from collections.abc import Callable, Mapping

MIN_RUNS = 5


def interleave(
    sides: Mapping[str, Callable[[], float]], runs: int = MIN_RUNS, warm_ups: int = 1
) -> dict[str, list[float]]:
    """Run every side `warm_ups` times unrecorded, then `runs` times, the order reversed from round to round.

    Args:
        sides: By name, a function that runs once and returns its figure (seconds, tokens a second, ...).
        runs: At least 5.
        warm_ups: Rounds that are thrown away.

    Returns:
        Every recorded figure of each side, in order.
    """
    if runs < MIN_RUNS:
        raise ValueError(f"a median needs at least {MIN_RUNS} runs, got {runs}")
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm_ups + runs):
        names = list(sides)
        if turn % 2:
            names.reverse()
        for name in names:
            figure = sides[name]()
            if turn >= warm_ups:
                values[name].append(figure)
    return values


def medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    """The median figure of each side."""
    return {name: statistics.median(figures) for name, figures in values.items()}
