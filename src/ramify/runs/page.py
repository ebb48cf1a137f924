"""The page of a run that trains or grows trees, from the files in its folder; it can be made while the run goes on."""

import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ramify.core.errors import DataError
from ramify.core.json_types import part
from ramify.files.durable import RECIPE, is_locked, parse_line, read_record, read_text
from ramify.files.untrusted import read_small_file
from ramify.net.secrets import shown
from ramify.obs.branch_metrics import branch_notes
from ramify.obs.charts import Chart, Line, line_chart
from ramify.obs.metrics import Curve, MetricsRow, curve, read_metrics
from ramify.obs.page import Card, FoldedText, Page, Section, Table, settings_table, write_page
from ramify.obs.trace_index import trace_files
from ramify.obs.tree_metrics import tree_metrics
from ramify.obs.tree_sections import StepTrees
from ramify.runs.manifest import MANIFEST
from ramify.runs.status import read_status


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


REPORT, FIGURES = "report.html", "figures"
_MOST_TIMED = 60
"""Steps whose timings are read for the table of calls."""
_NO_FAILURE = ("ok", "empty")
_LATEST = 1e11
"""Seconds since 1970 that a date can show."""


def write_run_page(
    folder: Path, note: Callable[[str], None], make_page: Callable[[Path], Page] | None = None
) -> None:
    """Write the page of a run at its end; `note` gets a line if that fails, which ends no run. `make_page`: None for `run_page`."""
    try:
        write_page(folder / REPORT, make_page(folder) if make_page else run_page(folder, "finished"))
    except (DataError, OSError) as error:
        note(f"the page {folder / REPORT} could not be written: {error}")


def run_page(folder: Path, state: str | None = None) -> Page:
    """Return the page of a run of RL, SFT, DPO or rollouts; `state`: None for the one that its files say.

    Raises:
        DataError: The run has written no step yet, or its metrics cannot be read.
    """
    steps = _read_rows(folder / "metrics.jsonl")
    notes: list[str] = []
    traces = trace_files(folder / "trees")
    last = StepTrees.read(traces[-1], notes.append) if traces else None
    if not steps and not (last and last.summaries):
        raise DataError(f"{folder}: nothing to report yet. {' '.join(notes) or 'No step has been written.'}")
    command, kind = _kind(steps)
    rows = (*(steps or _rollout_rows(last, notes)), *_read_rows(folder / "evals.jsonl"))
    learning: list[Section] = []
    updates: list[Section] = []
    # A rollout has neither.
    if steps:
        branching = " ".join(
            f"{note[0].upper()}{note[1:]}." for note in branch_notes(steps, looks_at_entropy=True)
        )
        learning = [Section("Learning", branching, charts=charts(LEARNING, rows))]
        updates = [Section("Updates", charts=charts(UPDATES, rows))]
    trees: list[Section] = []
    failed: Sequence[FoldedText] = ()
    if last and last.summaries:
        try:
            failed = last.failure_texts()
            trees = [last.tree_section(f"A tree of step {last.name}")]
        except DataError as error:
            notes.append(f"{error}. The drawn tree is left out.")
    sections = [
        *learning,
        _failures_section(folder, rows, last, failed, notes),
        *trees,
        *updates,
        Section("All metrics", tables=(_metrics_table(rows),), folded=True),
        *origin_sections(folder, command),
    ]
    return Page(
        f"{kind}: {folder.absolute().name}",
        _subtitle(folder, state or _state(folder), steps),
        _cards(rows),
        sections,
    )


def origin_sections(folder: Path, command: str) -> tuple[Section, Section]:
    """Return how a run of a command was made, how to look at it and how to repeat it; and its settings."""
    recipe, manifest = _recipe(folder), _manifest(folder)
    again = f"ramify {command} {shlex.quote(str(folder / RECIPE))} -s run.dir=NEW_FOLDER"
    tables = [
        settings_table(table)
        for table in (recipe, manifest.get("scores"), _session(folder))
        if table and isinstance(table, dict)
    ]
    return (
        origin_section(folder, versions_of(folder), again),
        Section("Settings", tables=tables, folded=True),
    )


def versions_of(folder: Path) -> Mapping[str, object]:
    """Return the commit and the versions with which the last session of a run was made; none if its manifest cannot be read."""
    session = _session(folder)
    packages = session.get("packages")
    own = {"commit": session.get("commit"), "Python": session.get("python")}
    return {**own, **(packages if isinstance(packages, dict) else {})}


def _session(folder: Path) -> Mapping[str, Any]:
    sessions = _manifest(folder).get("made_with")
    last = sessions[-1] if isinstance(sessions, list) and sessions else {}
    return last if isinstance(last, dict) else {}


def origin_section(
    folder: Path, versions: Mapping[str, object], again: str, *, has_runs: bool = True
) -> Section:
    """Return a section with the versions that made what is in `folder`, and commands.

    Args:
        folder: The folder of the page.
        versions: The commit and the packages by name.
        again: The command that repeats what the folder holds.
        has_runs: False if it holds nothing but the page.
    """
    run = shlex.quote(str(folder))
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    purpose = (
        "Look at single trees and attempts, write this page and its figures again, or repeat the run"
        if has_runs
        else "Write this page again"
    )
    return Section(
        "How this was made",
        f"{f'With {listed}. ' if listed else ''}This page was written on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC. {purpose}:",
        commands=(f"ramify view {run}", f"ramify report {run} --figures", again) if has_runs else (again,),
    )


def _read_rows(path: Path) -> tuple[MetricsRow, ...]:
    return read_metrics(path) if path.is_file() else ()


def _rollout_rows(trees: StepTrees | None, notes: list[str]) -> tuple[MetricsRow, ...]:
    """Return the metrics of a rollout, which writes none; `notes` gets a line if a tree cannot be read."""
    try:
        return () if trees is None else ({"step": 1.0, **tree_metrics(tuple(trees.trees()))},)
    except DataError as error:
        notes.append(f"{error}. The metrics of all trees are left out.")
        return ()


def _recipe(folder: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_small_file(folder / RECIPE).decode())
    except (DataError, ValueError):
        return {}


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        return dict(read_record(folder / MANIFEST, part()))
    except (OSError, DataError):
        return {}


def _kind(steps: Sequence[MetricsRow]) -> tuple[str, str]:
    """Return the command that writes such metrics, and what it does."""
    names = {name for row in steps for name in row}
    if not steps:
        return "rollout", "Rollout"
    if "reward/not_counted" in names or "reward/mean" in names:
        return "train", "Reinforcement learning"
    return ("dpo", "Preference training") if "accuracy" in names else ("sft", "Supervised training")


def _subtitle(folder: Path, state: str, steps: Sequence[MetricsRow]) -> str:
    reached = ""
    if steps:
        first, last = (steps[index].get("time") or 0.0 for index in (0, -1))
        span = [
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (first, last) if 0 < at < _LATEST
        ]
        reached = f", step {steps[-1]['step']:.0f}" + (
            f", from {' to '.join(span)} UTC" if len(span) == 2 else ""
        )
    return f"{folder}: {state}{reached}"


def _state(folder: Path) -> str:
    """Return how the last session of a run ended, in words; "" if nothing says so."""
    try:
        status = read_status(folder)
    except (OSError, DataError):
        status = None
    if is_locked(folder):
        return "running"
    if status is None:
        return "state unknown"
    if status.state == "running":
        return "killed"
    return f"{status.state} ({shown(status.reason)})" if status.reason else status.state


def _cards(rows: Sequence[MetricsRow]) -> list[Card]:
    cards = []
    for metric, title, colour in (
        ("eval/pass@1", "pass@1 in evaluations", 3),
        ("reward/mean", "Mean reward", 2),
        ("accuracy", "Pairs won", 2),
        ("loss", "Loss", 1),
    ):
        if points := curve(rows, metric):
            first, last = _ends(points)
            span = f"mean of the last {_window(points)} steps" if _window(points) > 1 else "last value"
            cards.append(Card(title, f"{last:.3g}", f"{span}; it was {first:.3g} at first", colour))
    if broken := _broken(rows):
        calls = curve(rows, "calls/ok_rate")
        failed = f"; {1 - _ends(calls)[1]:.1%} of the calls failed" if calls else ""
        cards.append(
            Card(
                "Malformed or cut",
                f"{100 * _ends(broken)[1]:.1f}\u00a0%",
                f"of the last trajectories{failed}",
                0,
            )
        )
    times = [time for row in rows if (time := row.get("time"))]
    if len(times) > 1:
        cards.append(
            Card(
                "Time",
                # Evaluations stand behind all steps, and one may come before the first.
                f"{(max(times) - min(times)) / 60:.1f}\u00a0min",
                f"for {len(rows)} steps and evaluations",
                0,
            )
        )
    return cards


def _broken(rows: Sequence[MetricsRow]) -> Curve:
    """Return the share of trajectories that were malformed, cut or failed, by step."""
    names = [metric for metric, _, _ in FAILURES.lines if metric.startswith("stop/")]
    return tuple(
        (step, sum(row.get(name) or 0.0 for name in names))
        for row in rows
        if (step := row.get("step")) is not None and row.get(names[0]) is not None
    )


def _window(points: Curve) -> int:
    return max(1, len(points) // 10)


def _ends(points: Curve) -> tuple[float, float]:
    """Return the means over the first and the last tenth."""
    count = _window(points)
    first, last = (sum(y for _, y in part) / count for part in (points[:count], points[-count:]))
    return first, last


def _failures_section(
    folder: Path,
    rows: Sequence[MetricsRow],
    last: StepTrees | None,
    failed: Sequence[FoldedText],
    notes: Sequence[str],
) -> Section:
    shares = {line: max((value for _, value in curve(rows, line[0])), default=0.0) for line in FAILURES.lines}
    lines = tuple(line for line, share in shares.items() if share)
    figure = FAILURES._replace(lines=lines, span=(0.0, max(shares.values())))
    warnings = list(notes)
    for metric, what in (
        ("group/failed", "problems of which every trajectory failed"),
        ("update/non_finite", "mini-batches that were skipped, since loss or gradient was not finite"),
        ("guard/violated", "steps that the collapse detector refused"),
        ("pages/failed", "pages that could not be read"),
    ):
        if total := sum(value for _, value in curve(rows, metric)):
            warnings.append(f"{total:,.0f} {what}.")
    tables = [_calls_table(folder)]
    tables += [last.problems_table("Problems of the last step with the smallest rewards")] if last else []
    return Section(
        "Failures",
        "" if lines or warnings else "No trajectory was malformed, cut or failed.",
        warnings=warnings,
        charts=charts((figure,), rows),
        tables=[table for table in tables if table.rows],
        texts=failed,
    )


def _calls_table(folder: Path) -> Table:
    """Return the results of calls by tool and status, over at most `_MOST_TIMED` steps."""
    paths = sorted((folder / "timing").glob("*.jsonl"))
    sampled = paths[:: -(-len(paths) // _MOST_TIMED) or 1]
    statuses: Counter[tuple[str, str]] = Counter()
    slowest: dict[tuple[str, str], float] = {}
    for path in sampled:
        for key, seconds in _timed_calls(path):
            statuses[key] += 1
            slowest[key] = max(seconds, slowest.get(key, 0.0))
    rows = [
        (*key, count, slowest[key])
        for key, count in sorted(statuses.items(), key=lambda each: (each[0][1] in _NO_FAILURE, each[0]))
    ]
    title = "Calls by their results" + (
        f", of {len(sampled)} of {len(paths)} steps" if len(sampled) < len(paths) else ""
    )
    return Table(title, ("tool", "result", "calls", "slowest, seconds"), rows)


def _timed_calls(path: Path) -> list[tuple[tuple[str, str], float]]:
    calls = []
    try:
        for row, line in enumerate(read_text(path).split("\n")[:-1], start=1):
            event = parse_line(path, row, line)
            kind, fields, seconds = event.get("kind"), event.get("fields"), event.get("seconds")
            if (
                isinstance(kind, str)
                and kind.startswith("tool/")
                and isinstance(fields, dict)
                and isinstance(seconds, int | float)
            ):
                calls.append(((kind.removeprefix("tool/"), str(fields.get("status"))), float(seconds)))
    except DataError:
        # Times are an addition: a step whose file is damaged is left out.
        return []
    return calls


def _metrics_table(rows: Sequence[MetricsRow]) -> Table:
    names = dict.fromkeys(name for row in rows for name in row if name not in ("step", "time"))
    table = []
    for name in names:
        if points := curve(rows, name):
            values = [value for _, value in points]
            table.append((shown(name), *_ends(points), min(values), max(values), len(values)))
    header = ("metric", "first tenth, mean", "last tenth, mean", "least", "most", "values")
    return Table("", header, table)
