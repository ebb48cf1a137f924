"""Finished runs of an ablation as lines of JSON: everything that the comparison needs, so that a line outlives its run's folder."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import (
    FieldError,
    Reader,
    count,
    each,
    mapping,
    number,
    numbers,
    optional,
    part,
    record,
    sparse,
    text,
    whole,
)
from ramify.files.durable import dump_line, parse_line, read_text, replace_lines
from ramify.obs.metrics import MetricsLog, MetricsRow, read_metrics
from ramify.obs.trace_index import TreeSummary, read_index, trace_files
from ramify.runs.manifest import read_manifest
from ramify.runs.run_folder import SCORE
from ramify.study.arms import ARM_NAME, PlannedRun, run_name

RESULTS, STARTS = "results.jsonl", "starts.jsonl"
SCHEMA = 1

COLUMNS = ("step", "tokens", "calls", "seconds", "success")
Point: TypeAlias = tuple[float, ...]
"""A value for each of `COLUMNS`: sampled tokens, executed calls and seconds of training up to a step, and success on held-out
problems after it."""


@dataclass(frozen=True, slots=True)
class YokedMatch:
    """The agreement of a yoked run's numbers of branches with those of its pair, problem by problem in each step.

    Attributes:
        trees: Number of trees.
        same: Those of them with the number of branches of their pair.
        difference: Mean absolute difference of the numbers.
    """

    trees: int
    same: int
    difference: float


@dataclass(frozen=True, slots=True)
class RunLine:
    """A finished run.

    Attributes:
        arm, seed: The run.
        branching: Its rule with every default.
        recipe: Fingerprint of the recipe without its seed and folder.
        curve: A point for each evaluation.
        branches: Branches granted in each step.
        mixed: Share of each step's trees with both right and wrong answers.
        match: Of a yoked run.
        commit, packages: What made it, in its last session.
        schema: Version of the line.
        inputs: Checksums of the files that the recipe names, by key; empty in lines of earlier versions.
    """

    arm: str
    seed: int
    branching: Mapping[str, Any]
    recipe: str
    curve: tuple[Point, ...]
    branches: tuple[float, ...]
    mixed: tuple[float, ...]
    match: YokedMatch | None
    commit: str | None
    packages: Mapping[str, str]
    schema: int = SCHEMA
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """ARM-SEED."""
        return run_name(self.arm, self.seed)

    @property
    def mean_mixed(self) -> float | None:
        """The mean over the steps of `mixed`; None if they are not known."""
        return sum(self.mixed) / len(self.mixed) if self.mixed else None

    @property
    def shared_inputs(self) -> Mapping[str, str]:
        """The checksums of what all arms of a seed have in common: all but the files of the rule."""
        return {key: value for key, value in self.inputs.items() if not key.startswith("rollout.branching")}

    def column(self, name: str) -> list[float]:
        """Return the values of one of `COLUMNS`."""
        return [point[COLUMNS.index(name)] for point in self.curve]


def read_lines(path: Path) -> tuple[RunLine, ...]:
    """Return the finished runs of a file, in its order; none without it.

    Raises:
        DataError: A line cannot be read, or a run has two; names the row.
    """
    rows = read_text(path).splitlines() if path.exists() else []
    lines: dict[tuple[str, int], RunLine] = {}
    for row, content in enumerate(rows, start=1):
        if not content.strip():
            continue
        try:
            line = _READ(parse_line(path, row, content))
        except (ValueError, DataError) as error:
            where = "" if isinstance(error, DataError) else f"{path} row {row}: "
            raise DataError(
                f"{where}{error}. Restore the file, or delete this line: the same command makes it again from its run's folder."
            ) from None
        if line.schema != SCHEMA:
            raise DataError(
                f"{path} row {row}: schema {line.schema}, expected {SCHEMA}. Use the version of ramify that wrote it."
            )
        if (line.arm, line.seed) in lines:
            raise DataError(f"{path} row {row}: a second line of {line.name}. Delete one of the two.")
        lines[line.arm, line.seed] = line
    return tuple(lines.values())


_MOST_COST = 1e15
"""Greatest number of steps, tokens, calls or seconds: no run has as many, and areas of larger ones would not be finite."""


def _point(value: Any) -> Point:  # noqa: ANN401 - any JSON value
    point = numbers(value)
    if len(point) != len(COLUMNS):
        raise FieldError.of(f"{len(COLUMNS)} numbers", value)
    if max(point) > _MOST_COST:
        raise FieldError.of(f"costs of at most {_MOST_COST:g}", value)
    return point


def _points(value: Any) -> tuple[Point, ...]:  # noqa: ANN401 - any JSON value
    points = each(_point)(value)
    if not points or any(first[0] >= second[0] for first, second in pairwise(points)):
        raise FieldError.of("points with rising steps", value)
    costs = [point[:-1] for point in points]
    if any(costs[0]) or any(
        after < before for pair in pairwise(costs) for before, after in zip(*pair, strict=True)
    ):
        raise FieldError.of("points from step 0 and no cost on, with costs that never fall", value)
    if not all(0 <= point[-1] <= 1 for point in points):
        raise FieldError.of("success from 0 to 1", value)
    return points


def _within(most: float) -> Reader[tuple[float, ...]]:
    """Make a reader of numbers from 0 to `most`."""

    def read(value: Any) -> tuple[float, ...]:  # noqa: ANN401 - any JSON value
        values = numbers(value)
        if not all(0 <= each_value <= most for each_value in values):
            raise FieldError.of(f"numbers from 0 to {most:g}", value)
        return values

    return read


def _arm(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if not ARM_NAME.fullmatch(text(value)):
        raise FieldError.of("at most 60 letters, digits and _", value)
    return text(value)


def _yoked_match(value: Any) -> YokedMatch:  # noqa: ANN401 - any JSON value
    match = record(YokedMatch, trees=count, same=count, difference=number)(value)
    if match.same > match.trees or match.difference < 0:
        raise FieldError.of("at most as many same trees as trees, and a difference of at least 0", value)
    return match


_READ = sparse(
    RunLine,
    ("inputs",),
    arm=_arm,
    seed=whole,
    branching=part(),
    recipe=text,
    curve=_points,
    branches=_within(math.inf),
    mixed=_within(1.0),
    match=optional(_yoked_match),
    commit=optional(text),
    packages=mapping(text),
    schema=count,
    inputs=mapping(text),
)


def write_lines(path: Path, lines: Sequence[RunLine]) -> None:
    """Write all lines, as a whole."""
    replace_lines(path, (dump_line(asdict(line)) for line in lines))


def line_of(
    run: PlannedRun, fingerprint: str, inputs: Mapping[str, str], pair: Path | None, starts: Sequence[float]
) -> RunLine:
    """Return the line of a finished run.

    Args:
        run: The run.
        fingerprint: Of the recipe.
        inputs: Checksums of the files that its recipe names, by key.
        pair: Folder of the run that it is yoked to.
        starts: Times at which its processes were started, in seconds since 1970.

    Raises:
        DataError: Its files cannot be read.
    """
    rows = read_metrics(run.folder / "metrics.jsonl")
    evaluations = read_metrics(run.folder / "evals.jsonl")
    session = read_manifest(run.folder)["made_with"][-1]
    return RunLine(
        run.arm,
        run.seed,
        run.branching,
        fingerprint,
        tuple(_curve(run.folder, rows, evaluations, starts)),
        tuple(row.get("branch/taken") or 0.0 for row in rows),
        _mixed_shares(run.folder),
        None if pair is None else _match(run.folder, pair),
        session["commit"],
        {"python": session["python"], **session["packages"]},
        inputs=inputs,
    )


def has_trees(folder: Path, line: RunLine) -> bool:
    """Return True if a run's folder has the trees of all its steps, which its yoked run reads.

    They can be missing where the line came from elsewhere, or where the run is trained again and was stopped.
    """
    steps = MetricsLog(folder / "metrics.jsonl").last_step()
    return (folder / "trees").is_dir() and steps >= len(line.branches)


def _curve(
    folder: Path, rows: Sequence[MetricsRow], evaluations: Sequence[MetricsRow], starts: Sequence[float]
) -> Iterator[Point]:
    seconds = _step_seconds(rows, evaluations, starts)
    sums = {0: (0.0, 0.0, 0.0)}
    for step, row in enumerate(rows, start=1):
        tokens, calls, spent = sums[step - 1]
        sums[step] = (
            tokens + _value(folder, row, "tokens/written"),
            calls + _value(folder, row, "calls/executed"),
            spent + seconds[step - 1],
        )
    for row in evaluations:
        step = int(_value(folder, row, "step"))
        if step not in sums:
            raise DataError(
                f"{folder}: an evaluation at step {step}, and {len(rows)} steps. Remove the folder and train it again."
            )
        tokens, calls, spent = sums[step]
        yield step, tokens, calls, round(spent, 3), _value(folder, row, SCORE)


def _step_seconds(
    rows: Sequence[MetricsRow], evaluations: Sequence[MetricsRow], starts: Sequence[float]
) -> list[float]:
    """Return the seconds of each step, without evaluations; a step in which a process started counts as the mean of the others."""
    after = {row["step"]: row["time"] or 0.0 for row in evaluations}
    begin, seconds, is_whole = 0.0, list[float](), list[bool]()
    for row in rows:
        step, end = row["step"] or 0.0, row["time"] or 0.0
        begin = max(begin, after.get(step - 1, 0.0))
        is_whole.append(begin > 0 and not any(begin < start < end for start in starts))
        # A clock that was set back.
        seconds.append(max(0.0, end - begin))
        begin = end
    whole_steps = [spent for spent, whole_step in zip(seconds, is_whole, strict=True) if whole_step]
    mean = sum(whole_steps) / len(whole_steps) if whole_steps else 0.0
    return [spent if whole_step else mean for spent, whole_step in zip(seconds, is_whole, strict=True)]


def _value(folder: Path, row: MetricsRow, name: str) -> float:
    value = row.get(name)
    if value is None:
        raise DataError(f"{folder}: a step without {name!r}. Remove the folder and train it again.")
    return value


def _match(folder: Path, pair: Path) -> YokedMatch:
    own, others = _branches_by_tree(folder), _branches_by_tree(pair)
    differences = [abs(branches - others.get(key, 0)) for key, branches in own.items()]
    return YokedMatch(len(own), differences.count(0), sum(differences) / max(1, len(own)))


def _branches_by_tree(folder: Path) -> dict[tuple[int, int], int]:
    """Return the number of branches by step and slot."""
    return {(summary.step, summary.slot): summary.branches for summary in _summaries(folder)}


def _mixed_shares(folder: Path) -> tuple[float, ...]:
    mixed: dict[int, list[bool]] = {}
    for summary in _summaries(folder):
        mixed.setdefault(summary.step, []).append("mixed" in summary.flags)
    return tuple(sum(flags) / len(flags) for _, flags in sorted(mixed.items()))


def _summaries(folder: Path) -> Iterator[TreeSummary]:
    return (summary for path in trace_files(folder / "trees") for summary in read_index(path))
