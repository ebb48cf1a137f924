"""The charts of a run's metrics: which metrics stand in one chart, under which names and in which unit."""

from collections.abc import Sequence
from typing import NamedTuple

from ramify.obs.charts import Chart, Line, line_chart
from ramify.obs.metrics import MetricsRow, curve


class Figure(NamedTuple):
    """A chart of metrics over steps: its title, unit, range (None: that of the data) and (metric, name, colour) of its lines."""

    title: str
    unit: str
    span: tuple[float, float] | None
    lines: tuple[tuple[str, str, int], ...]


_SHARE = (0.0, 1.0)
LEARNING = (
    Figure("Success in evaluations", "share of attempts", _SHARE, (("eval/pass@1", "pass@1", 3),)),
    Figure(
        "Mean reward", "reward", None, (("reward/mean", "by mass", 2), ("reward/leaf_mean", "over leaves", 0))
    ),
    Figure("Success in training", "share", _SHARE, (("reward/part/correct", "right", 2),)),
    Figure("Loss", "nats", None, (("loss", "loss", 1),)),
    Figure("Pairs won", "share of pairs", _SHARE, (("accuracy", "accuracy", 2),)),
    Figure(
        "Rewards of the two sides",
        "nats",
        None,
        (("chosen_reward", "chosen", 3), ("rejected_reward", "rejected", 2), ("margin", "margin", 0)),
    ),
    Figure(
        "Entropy before and after tool results",
        "nats per token",
        None,
        (("entropy/root", "first turn", 0), ("entropy/after_result", "after a result", 3)),
    ),
    Figure(
        "Branching",
        "share of decisions",
        _SHARE,
        (("branch/rate", "branch wanted", 2), ("branch/entropy_acted", "entropy decided", 1)),
    ),
    Figure("Length", "tokens of a trajectory", None, (("health/written", "written", 1),)),
    Figure(
        "Tool calls",
        "calls a trajectory",
        None,
        (("calls/per_trajectory", "on its path", 1), ("calls/executed_per_trajectory", "executed", 0)),
    ),
)
UPDATES = (
    Figure("Policy loss", "1", None, (("update/loss", "loss", 1),)),
    Figure(
        "Gradient norm", "norm", None, (("update/grad_norm", "gradient", 0), ("grad_norm", "gradient", 0))
    ),
    Figure(
        "Learning rate",
        "factor of the schedule",
        None,
        (("update/lr_factor", "rate", 0), ("lr_factor", "rate", 0)),
    ),
    Figure("Clipped credit", "share", None, (("update/clip_fraction", "clipped", 2),)),
    Figure("KL to the reference", "nats per token", None, (("update/kl", "KL", 3),)),
    Figure("Engine against learner", "nats per token", None, (("update/mismatch_kl", "KL", 4),)),
)
FAILURES = Figure(
    "What went wrong",
    "share",
    None,
    (
        ("stop/malformed", "malformed turn", 2),
        ("stop/tokens", "out of tokens", 1),
        ("stop/calls", "out of calls", 4),
        ("stop/deadline", "out of time", 3),
        ("stop/failed", "failed", 0),
        ("health/invalid_calls", "unreadable calls", 5),
    ),
)
"""Shares of trajectories by how they ended, and of calls."""


def charts(figures: Sequence[Figure], rows: Sequence[MetricsRow]) -> tuple[Chart, ...]:
    """Return the charts of those figures that have data."""
    drawn = []
    for figure in figures:
        lines = [Line(name, curve(rows, metric), colour) for metric, name, colour in figure.lines]
        drawn.append(line_chart(figure.title, lines, "step", figure.unit, figure.span))
    return tuple(chart for chart in drawn if chart.body is not None)
