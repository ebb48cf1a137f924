"""Row coverage: how often the 95 % intervals of an evaluation hold the truth, by simulation."""

from collections.abc import Sequence

import numpy as np

from benchmarks.harness.rows import Row
from ramify.eval.statistics import mean_interval

_TRIALS = 1000
_LEAST = 0.9


def coverage() -> Sequence[Row]:
    """Attempts drawn at known success rates: equal for all problems, or spread over them (a beta distribution)."""
    intervals: dict[str, list[float]] = {}
    for n in (4, 30, 200):
        for share in (0.02, 0.5, 0.9):
            for attempts, spread in ((1, False), (4, False), (4, True)):
                name = f"n {n}, p {share}, {attempts} attempts{', problems differ' if spread else ''}"
                intervals[name] = _simulate(n, share, attempts, spread)
    least = min(hits for name, (hits, _) in intervals.items() if not name.startswith("n 4,"))
    return [
        Row(
            "coverage",
            "share of 95 % intervals that hold the true success rate, and their mean width; ours is the least for n >= 30",
            least,
            None,
            least,
            f"at least {_LEAST} for n >= 30",
            least >= _LEAST,
            intervals,
            {"trials": _TRIALS, "runs": "[coverage, mean width]", "differ": "beta(2 p, 2 (1 - p))"},
        )
    ]


def _simulate(n: int, share: float, attempts: int, spread: bool) -> list[float]:
    generator = np.random.default_rng(7)
    hits, width = 0, 0.0
    for trial in range(_TRIALS):
        rates = generator.beta(2 * share, 2 * (1 - share), n) if spread else np.full(n, share)
        interval = mean_interval((generator.binomial(attempts, rates) / attempts).tolist(), trial)
        hits += interval.low <= share <= interval.high
        width += interval.high - interval.low
    return [hits / _TRIALS, round(width / _TRIALS, 3)]


ROWS = {"coverage": coverage}
