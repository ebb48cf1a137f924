"""The page of an ablation: the verdict, curves against every cost, paired differences, and branches of the control beside its pair's."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ramify.core.errors import ConfigError, DataError
from ramify.eval.statistics import MeanDifference
from ramify.files.durable import write_record
from ramify.obs.charts import Chart, Line, line_chart
from ramify.obs.metrics import Curve
from ramify.obs.page import Card, Cell, Page, Section, Table, write_page
from ramify.runs.page import origin_section
from ramify.study.contrasts import (
    AXES,
    DIFFERENCES,
    ENDPOINT,
    AblationResult,
    Contrast,
    arm_names,
    compare_arms,
    success_at,
)
from ramify.study.lines import RESULTS, STARTS, RunLine, read_lines

ABLATION, ABLATION_PAGE = "ablate.json", "ablate.html"
_POINTS = 41
"""Points of a mean curve."""
_COLOURS = 6


def write_ablation(result: AblationResult, folder: Path, lines: Path) -> None:
    """Write ablate.html and ablate.json into `folder`; `lines` is the file of the runs."""
    write_page(folder / ABLATION_PAGE, ablation_page(result, folder, lines))
    write_record(folder / ABLATION, result.to_json())


def page_of_ablation(folder: Path) -> Page:
    """Return the page of an ablation, finished or not, from its lines.

    Raises:
        DataError: A line cannot be read, or there is none.
    """
    path = folder / RESULTS
    lines = read_lines(path)
    if not lines and (folder / STARTS).is_file():
        raise DataError(f"{folder}: nothing to report yet. No run has ended.")
    if not lines:
        raise DataError(
            f"{folder}: a page of lines that are not in this folder. Write it again with ramify ablate LINES --out {folder}."
        )
    return ablation_page(compare_arms(lines, arm_names(lines)), folder, path)


def refuse_other_content(folder: Path, lines: Path) -> None:
    """Raise ConfigError if the page of `lines` would join something else in a folder, such as another ablation."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there - {ABLATION, ABLATION_PAGE} and not _is_own(folder, lines):
        raise ConfigError(f"--out: {folder} holds more than a page. Name a new folder.")


def _is_own(folder: Path, lines: Path) -> bool:
    """Return True if a file of lines is that of the ablation in a folder."""
    return lines.resolve() == (folder / RESULTS).resolve()


def ablation_page(result: AblationResult, folder: Path, lines: Path) -> Page:
    """Return the page in `folder` of an ablation whose runs are `lines`."""
    cards = [
        Card(name, f"{np.mean(areas):.3f}", "mean success up to equal sampled tokens", _colour(number))
        for number, (name, areas) in enumerate(result.areas[ENDPOINT].items())
        if areas
    ]
    seeds = len(result.seeds)
    return Page(
        f"Ablation: {folder.absolute().name}",
        f"{len(result.arms)} arms, {seeds} seed{'s' * (seeds != 1)} each. Success is that on held-out problems during training; an arm's "
        "value is its mean over the cost that the cheapest arm of the seed reached, the area under the curve. Mixed groups have right "
        "and wrong answers; their share is a mean over all steps.",
        cards,
        (
            Section(
                "Verdict",
                " ".join(
                    f"{text[0].upper()}{text[1:]}." for text in (each.verdict for each in result.contrasts)
                ),
                warnings=result.warnings,
                tables=[contrasts_table(result.contrasts)] if result.contrasts else [],
            ),
            Section(
                "Learning at equal cost",
                "Means over seeds. Training reward is not compared: it flatters rules that look at entropy.",
                charts=[_curves(result, axis) for axis in AXES],
                tables=(arms_table(result),),
            ),
            _branches_section(result),
            _origin(result, folder, lines),
        ),
    )


def contrasts_table(contrasts: Sequence[Contrast]) -> Table:
    """Return a table of paired differences by axis, and of the share of mixed groups."""
    rows: list[list[Cell]] = []
    for contrast in contrasts:
        name = f"{contrast.second} minus {contrast.first}"
        for axis, label in AXES.items():
            is_endpoint = axis == ENDPOINT
            area = contrast.decided if is_endpoint else contrast.areas[axis]
            level = 1 - contrast.alpha if is_endpoint else 0.95
            row = [
                name,
                f"mean success to equal {label}",
                interval_text(area),
                f"{level:.3g}",
                f"{area.sd:.4f}",
            ]
            adjusted = [f"{contrast.adjusted:.2g}", *_needed(contrast)] if is_endpoint else [""] * 3
            rows.append([*row, f"{area.p_value:.2g}", *adjusted])
        if (mixed := contrast.mixed) is not None:
            row = [name, "share of mixed groups", interval_text(mixed), "0.95", f"{mixed.sd:.4f}"]
            rows.append([*row, f"{mixed.p_value:.2g}", *[""] * 3])
    header = (
        "contrast",
        "of",
        "difference",
        "level of the interval",
        "sd of the pairs",
        "p",
        "p among contrasts (Holm)",
        *_NEEDED,
    )
    return Table("", header, rows)


def blind_table(contrasts: Sequence[Contrast]) -> Table:
    """Return a table of the spread of paired differences, which does not say which arm is better."""
    rows: list[list[Cell]] = [
        [
            f"{contrast.second} minus {contrast.first}",
            contrast.decided.n,
            f"{contrast.decided.sd:.5f}",
            *_needed(contrast),
        ]
        for contrast in contrasts
    ]
    return Table("", ("contrast", "pairs", "sd of the pairs", *_NEEDED), rows)


_NEEDED = tuple(f"pairs for {size:g} (at Holm's first step)" for size in DIFFERENCES)


def _needed(contrast: Contrast) -> list[str]:
    """Return the pairs that each of `DIFFERENCES` needs."""
    pairs = map(contrast.pairs_for, DIFFERENCES)
    return ["{} ({})".format(*needed) if needed else "" for needed in pairs]


def interval_text(area: MeanDifference) -> str:
    """Return a difference with its interval, if it has one."""
    if not area.sd:
        return f"{area.value:+.4f}"
    return f"{area.value:+.4f} [{area.low:+.4f}, {area.high:+.4f}]"


def arms_table(result: AblationResult) -> Table:
    """Return a table of means over the seeds of each arm."""
    rows = [
        [
            name,
            json.dumps(lines[0].branching),
            *(f"{np.mean([line.column(axis)[-1] for line in lines]):,.0f}" for axis in AXES),
            f"{np.mean([line.column('success')[0] for line in lines]):.3f}",
            f"{np.mean([line.column('success')[-1] for line in lines]):.3f}",
            *(f"{np.mean(result.areas[axis][name]):.4f}" for axis in AXES),
            _share([line.mean_mixed for line in lines]),
        ]
        for name, lines in result.arms.items()
        if lines
    ]
    header = (
        "arm",
        "rule",
        *AXES,
        "success before",
        "success after",
        *(f"mean to equal {axis}" for axis in AXES),
        "mixed groups",
    )
    return Table("", header, rows)


def _share(shares: Sequence[float | None]) -> str:
    """Return a mean share; "" where one is not known."""
    known = [share for share in shares if share is not None]
    return f"{np.mean(known):.3f}" if len(known) == len(shares) else ""


def _curves(result: AblationResult, axis: str) -> Chart:
    lines = [
        Line(name, _mean_curve(runs, axis), _colour(number))
        for number, (name, runs) in enumerate(result.arms.items())
    ]
    return line_chart(f"Success against {AXES[axis]}", lines, AXES[axis], "share of attempts")


def _mean_curve(runs: Sequence[RunLine], axis: str) -> Curve:
    """Return the mean success over seeds at costs that all of them reached."""
    if not runs:
        return ()
    grid = np.linspace(0, min(line.column(axis)[-1] for line in runs), _POINTS)
    means = np.mean([success_at(line, axis, grid) for line in runs], axis=0)
    return tuple(zip(grid.tolist(), means.tolist(), strict=True))


def _branches_section(result: AblationResult) -> Section:
    lines = []
    for number, (name, runs) in enumerate(result.arms.items()):
        steps = min((len(line.branches) for line in runs), default=0)
        means = np.mean([line.branches[:steps] for line in runs], axis=0) if steps else []
        if any(means):
            lines.append(
                Line(
                    name, tuple((step + 1.0, float(mean)) for step, mean in enumerate(means)), _colour(number)
                )
            )
    rows: list[list[Cell]] = [
        [
            match.seed,
            match.rule,
            match.yoked,
            f"{match.ratio:.3f}",
            f"{match.same:.0%}",
            f"{match.difference:.2f}",
        ]
        for match in result.matches
    ]
    header = (
        "seed",
        "branches of the rule",
        "of its yoked run",
        "ratio",
        "trees with as many",
        "mean difference of a tree",
    )
    return Section(
        "Branches",
        "A yoked run takes the branches of its rule's run, problem by problem in each step, at results drawn by chance.",
        charts=[chart]
        if (chart := line_chart("Branches by step", lines, "step", "branches")).body is not None
        else [],
        tables=[Table("", header, rows)] if rows else [],
    )


def _origin(result: AblationResult, folder: Path, lines: Path) -> Section:
    """Return how the runs were made, and how to look at those that are still there."""
    again = f"ramify ablate {shlex.quote(str(lines))}"
    if not _is_own(folder, lines):
        again += f" --out {shlex.quote(str(folder))}"
        return origin_section(folder, _versions(result), again, has_runs=False)
    section = origin_section(folder, _versions(result), again)
    names = [line.name for runs in result.arms.values() for line in runs[:1]]
    views = [f"ramify view {shlex.quote(str(folder / name))}" for name in names if (folder / name).is_dir()]
    return replace(section, commands=(*views[-1:], *section.commands[1:]))


def _versions(result: AblationResult) -> dict[str, object]:
    lines = [line for runs in result.arms.values() for line in runs]
    return {"commit": lines[-1].commit, **lines[-1].packages} if lines else {}


def _colour(number: int) -> int:
    return number % _COLOURS
