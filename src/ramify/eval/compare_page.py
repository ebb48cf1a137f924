"""The page of a comparison of evaluations: scores, paired differences, the problems that flipped, and settings that differ."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.json_types import part, text
from ramify.eval.compare import Comparison, Pair, compare
from ramify.eval.compare_runs import Flip, compare_evaluations
from ramify.files.durable import read_record, write_record
from ramify.obs.charts import Bar, BarGroup, bar_chart
from ramify.obs.page import Card, Cell, Page, Section, Table, in_a_line, write_page
from ramify.runs.page import origin_section

COMPARISON, COMPARISON_PAGE = "compare.json", "compare.html"
_MOST_FLIPS = 25
"""In each direction; `ramify runs compare --json` has all."""
_CHARS = 100


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write compare.html and compare.json into `folder`."""
    write_page(folder / COMPARISON_PAGE, comparison_page(comparison, folder))
    write_record(folder / COMPARISON, comparison.to_json())


def read_comparison(folder: Path) -> Comparison:
    """Compare the evaluations of a written comparison again.

    Raises:
        DataError: The file cannot be read, or an evaluation is no longer there.
    """
    written = read_record(folder / COMPARISON, part(metric=text, scores=part()))
    return compare([Path(name) for name in written["scores"]], written["metric"])


def comparison_page(comparison: Comparison, folder: Path) -> Page:
    """Return the page of a comparison in `folder`.

    Raises:
        DataError: An evaluation cannot be read.
    """
    names = _short_names(comparison.names)
    metric = comparison.metric
    scored = list(zip(names.values(), comparison.scores, strict=True))
    cards = [
        Card(name, f"{score.value:.3f}", f"95 % interval {score.low:.3f} to {score.high:.3f}")
        for name, score in scored
    ]
    groups = [BarGroup(name, (Bar(metric, score.value, score.low, score.high, 2),)) for name, score in scored]
    in_percent = all(score.low >= 0 and score.high <= 1 for _, score in scored)
    settings = Table("", ["key", *names.values()], [[key, *values] for key, values in comparison.settings])
    again = f"ramify eval --compare {' '.join(map(shlex.quote, comparison.names))} --metric {shlex.quote(metric)} --out NEW_FOLDER"
    return Page(
        "Evaluations of the same problems",
        f"{metric}, means over {comparison.scores[0].n} problems: {', '.join(f'{short} is {name}' for name, short in names.items())}.",
        cards,
        (
            Section(
                "Pairs",
                "Problems are compared one by one. p is the probability of a difference at least this large between "
                "models that do not differ.",
                warnings=comparison.warnings,
                charts=[bar_chart(f"{metric}, percent", groups, "percent")] if in_percent else [],
                tables=(_pairs_table(comparison.pairs, names),),
            ),
            *(_flips_section(pair, names, metric) for pair in comparison.pairs),
            Section("Settings that differ", tables=(settings,)),
            origin_section(folder, {}, again),
        ),
    )


def _short_names(names: Sequence[str]) -> Mapping[str, str]:
    """Return the names without the folders that all of them are in, by name."""
    common = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names])  # noqa: PTH100, PTH120
    return {name: os.path.relpath(os.path.abspath(name), common) for name in names}  # noqa: PTH100


def _pairs_table(pairs: Sequence[Pair], names: Mapping[str, str]) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{names[pair.second]} minus {names[pair.first]}",
            f"{pair.difference.value:+.3f} [{pair.difference.low:+.3f}, {pair.difference.high:+.3f}]",
            f"{pair.difference.better}, {pair.difference.worse}",
            pair.difference.p_value,
            pair.adjusted,
            pair.difference.method,
        ]
        for pair in pairs
    ]
    return Table("", ["pair", "difference, 95 %", "better, worse on", "p", "p among all pairs", "test"], rows)


def _flips_section(pair: Pair, names: Mapping[str, str], metric: str) -> Section:
    first, second = names[pair.first], names[pair.second]
    heading = f"Flipped from {first} to {second}"
    try:
        flips = compare_evaluations(Path(pair.first), Path(pair.second), metric).flips
    except DataError as error:
        return Section(heading, warnings=(str(error),))
    better = [flip for flip in flips if flip.is_better]
    worse = [flip for flip in flips if not flip.is_better]
    tables = (
        _flips_table(f"Right in {second} only: {len(better)}", better, first, second),
        _flips_table(f"Right in {first} only: {len(worse)}", worse, first, second),
    )
    return Section(
        heading,
        "Right in more than half of the attempts of one, and not of the other.",
        tables=[table for table in tables if table.rows],
    )


def _flips_table(title: str, flips: Sequence[Flip], first: str, second: str) -> Table:
    more = f", the first {_MOST_FLIPS}" if len(flips) > _MOST_FLIPS else ""
    rows = [
        (
            flip.problem,
            in_a_line(flip.question, _CHARS),
            in_a_line(" | ".join(flip.golds), _CHARS),
            in_a_line(flip.answers[0], _CHARS),
            in_a_line(flip.answers[1], _CHARS),
            f"{flip.right[0]:.0%} to {flip.right[1]:.0%}",
        )
        for flip in flips[:_MOST_FLIPS]
    ]
    return Table(f"{title}{more}", ("problem", "question", "accepted", first, second, "right"), rows)
