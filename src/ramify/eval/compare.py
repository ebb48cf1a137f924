"""Several evaluations of the same problems, side by side."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.eval.evaluation import Evaluation, ProblemResult, make_evaluation
from ramify.eval.results import read_manifest, read_records
from ramify.eval.statistics import Difference, Interval, holm, mean_interval, paired_difference
from ramify.obs.page import flat


@dataclass(frozen=True, slots=True)
class Side:
    """One evaluation: its folder, its manifest, its attempts."""

    folder: Path
    manifest: Mapping[str, Any]
    evaluation: Evaluation

    @property
    def name(self) -> str:
        """The folder, as the user gave it."""
        return str(self.folder)

    @property
    def in_order(self) -> list[ProblemResult]:
        """The problems in the order of their ids, which is that of all sides."""
        return sorted(self.evaluation.results, key=lambda result: result.id)


@dataclass(frozen=True, slots=True)
class Pair:
    """The second side compared with the first; `adjusted` is the p-value corrected for the number of pairs (Holm)."""

    first: str
    second: str
    difference: Difference
    adjusted: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sides in the order given, their scores by `metric`, all pairs, settings that differ, and warnings.

    `settings` holds rows (key, value for each side).
    """

    metric: str
    names: tuple[str, ...]
    scores: tuple[Interval, ...]
    pairs: tuple[Pair, ...]
    settings: tuple[tuple[str, tuple[str, ...]], ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object: the content of compare.json."""
        return {
            "metric": self.metric,
            "scores": {name: asdict(score) for name, score in zip(self.names, self.scores, strict=True)},
            "pairs": [
                {
                    "first": pair.first,
                    "second": pair.second,
                    **asdict(pair.difference),
                    "p_value_adjusted": pair.adjusted,
                }
                for pair in self.pairs
            ],
            "warnings": list(self.warnings),
            "different_settings": {
                key: dict(zip(self.names, values, strict=True)) for key, values in self.settings
            },
        }


def compare(folders: Sequence[Path], metric: str) -> Comparison:
    """Compare finished evaluations problem by problem.

    Args:
        folders: At least two.
        metric: "correct" (share of correct attempts) or a part of the reward (its mean over the attempts).

    Raises:
        DataError: A folder has no finished evaluation, or one of other problems, or an attempt without the metric.
    """
    return compare_sides(read_sides(folders), metric)


def read_sides(folders: Sequence[Path]) -> list[Side]:
    """Read finished evaluations of the same problems.

    Raises:
        DataError: A folder has no finished evaluation, or one of other problems.
    """
    sides = [read_side(folder) for folder in folders]
    problems = sides[0].manifest["scores"]["problems"]
    for side in sides[1:]:
        if side.manifest["scores"]["problems"] != problems:
            raise DataError(
                f"{side.folder}: its problems are not those of {sides[0].folder} (ids, texts or golds differ). Compare "
                "evaluations of the same problems"
            )
    return sides


def compare_sides(sides: Sequence[Side], metric: str) -> Comparison:
    """Compare evaluations problem by problem; `metric` as for `compare`.

    Raises:
        DataError: An attempt has no such metric.
    """
    scores = {side.name: _by_problem(side, metric) for side in sides}
    pairs = [
        (first, second, paired_difference(scores[first], scores[second], seed=0))
        for first, second in itertools.combinations([side.name for side in sides], 2)
    ]
    adjusted = holm([difference.p_value for _, _, difference in pairs])
    return Comparison(
        metric,
        tuple(scores),
        tuple(mean_interval(values, 0) for values in scores.values()),
        tuple(Pair(*pair, p) for pair, p in zip(pairs, adjusted, strict=True)),
        _different_settings(sides),
        _missing_verdicts(sides) if metric == "correct" else (),
    )


def score_line(name: str, metric: str, score: Interval) -> str:
    """Return a side's score in words."""
    return f"{name}: {metric} {score.value:.3f}  95 % [{score.low:.3f}, {score.high:.3f}]"


def difference_line(first: str, second: str, difference: Difference, adjusted: float | None = None) -> str:
    """Return a paired difference in words; `adjusted`: its p-value among all pairs, if there are several."""
    among = "" if adjusted is None else f"; {adjusted:.3g} among all pairs"
    return (
        f"{second} minus {first}: {difference.value:+.3f}  95 % [{difference.low:+.3f}, {difference.high:+.3f}]  "
        f"p {difference.p_value:.3g} ({difference.method}{among})  better on {difference.better}, "
        f"worse on {difference.worse} of {difference.n}"
    )


def read_side(folder: Path) -> Side:
    """Read a finished evaluation.

    Raises:
        DataError: There is none in the folder, or its files cannot be read.
    """
    if not (folder / "summary.json").is_file():
        raise DataError(f"{folder}: expected a finished evaluation, {folder / 'summary.json'} is missing")
    manifest = read_manifest(folder)
    records = read_records(folder)
    ids = tuple(dict.fromkeys(record.problem for record in records))
    if len(ids) != (count := manifest["scores"]["problems"]["count"]):
        raise DataError(
            f"{folder}: expected a finished evaluation of {count} problems, the results are of {len(ids)}; go on with --resume"
        )
    attempts = manifest["scores"]["sampling"]["attempts"]
    return Side(folder, manifest, make_evaluation(records, ids, attempts, manifest["scores"]["seed"]))


def _by_problem(side: Side, metric: str) -> list[float]:
    if metric == "correct":
        return [r.num_correct / len(r.attempts) for r in side.in_order]
    scores = []
    for result in side.in_order:
        values = [attempt.parts[metric] for attempt in result.attempts if metric in attempt.parts]
        if len(values) < len(result.attempts):
            everywhere = [
                name
                for name in side.evaluation.part_names
                if name != "correct" and all(name in attempt.parts for attempt in side.evaluation.attempts)
            ]
            raise DataError(
                f"{side.folder}: an attempt at problem {result.id!r} has no {metric!r}; expected one of "
                f"{', '.join(('correct', *everywhere))}, which all attempts have"
            )
        scores.append(sum(values) / len(values))
    return scores


def _missing_verdicts(sides: Sequence[Side]) -> tuple[str, ...]:
    lines = []
    for side in sides:
        missing = sum("judge" not in attempt.parts for attempt in side.evaluation.attempts)
        if missing and side.manifest["scores"]["sampling"]["right_by"] == "judge":
            lines.append(f"{side.name}: {missing} attempts have no verdict and count as wrong")
    return tuple(lines)


def _different_settings(sides: Sequence[Side]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    tables = [{key: str(value) for key, value in flat(side.manifest["scores"])} for side in sides]
    every = {key for table in tables for key in table}
    # If one side lacks a whole table, list the keys of the table.
    keys = sorted(key for key in every if not any(other.startswith(f"{key}.") for other in every))
    rows = [(key, tuple(table.get(key, "") for table in tables)) for key in keys]
    return tuple((key, values) for key, values in rows if len(set(values)) > 1)
