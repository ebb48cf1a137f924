"""The report of the quick start: report.json for programs, and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.json_types import count, each, mapping, number, numbers, optional, part, text, whole
from ramify.files.durable import read_record
from ramify.obs.charts import Bar, BarGroup, Chart, bar_chart
from ramify.obs.metrics import read_metrics
from ramify.obs.page import Card, Page, Section, Table, settings_table
from ramify.runs.page import LEARNING, charts, origin_section, run_page, versions_of

Report: TypeAlias = Mapping[str, Any]
"""The content of report.json, as `_READ_REPORT` reads it. Shares are 0 to 1.

`base` names the initial model on the page; `branches` are the totals of `branch_metrics.BranchTotals`, with `rate` and `p_std` (the
standard deviation of the probability) None in a run without decisions; `notes` are those of the evaluation of the last model, such
as problems that it was trained on.
"""


def read_report(path: Path) -> Report:
    """Read a report.json of a quick start.

    Raises:
        DataError: It cannot be read, or is something else.
    """
    return read_record(path, _READ_REPORT)


_ESTIMATE = part(value=number, ci95=numbers, n=count)
_STAGED = part(base=_ESTIMATE, sft=_ESTIMATE, rl=_ESTIMATE)
_TRAINED = part(sft=number, rl=number)
_READ_REPORT = part(
    seed=whole,
    options=text,
    base=text,
    seconds=mapping(number),
    pass_at_1=_STAGED,
    by_kind=mapping(_STAGED),
    greedy=optional(_TRAINED),
    train_entities=optional(_TRAINED),
    tool_calls_per_answer=_TRAINED,
    branches=part(
        planned=count, taken=count, by_entropy=count, rate=optional(number), p_std=optional(number)
    ),
    steps=part(sft=count, rl=count),
    peak_memory_bytes=count,
    config=part(),
    versions=mapping(text),
    sandbox_level=count,
    warnings=each(text),
    notes=each(text),
)


def quickstart_page(report: Report, folder: Path) -> Page:
    """Return the page of a quick start, whose runs are in `folder`."""
    measured, steps = report["pass_at_1"], report["steps"]
    cards = [
        Card(name, _percent(estimate["value"]), f"95 % interval {_interval(estimate)}", colour)
        for colour, (name, estimate) in enumerate(
            _staged(measured, (report["base"], "After SFT", "After RL"))
        )
    ]
    subtitle = (
        f"ramify {report['versions'].get('ramify', '')}, seed {report['seed']}: {steps['sft']} steps of supervised training, then "
        f"{steps['rl']} steps of reinforcement learning with real tool calls. Scores are pass@1 on {measured['rl']['n']} held-out "
        f"problems, sampled at temperature 1. {_lift(measured)}"
    )
    rl_page = _page_of_training(folder / "rl")
    command = f"ramify quickstart {report['options']}".strip()
    sections = (
        _results_section(report),
        Section("Learning", charts=[*_curves(folder / "sft", "SFT"), *_curves(folder / "rl", "RL")]),
        _branching_section(report["branches"]),
        *rl_page,
        _run_section(report),
        origin_section(
            folder, versions_of(folder / "rl"), f"{command} --seed {report['seed']} --out NEW_FOLDER"
        ),
        Section("Settings", tables=(settings_table(report["config"]),), folded=True),
    )
    return Page("How the agent learned to use its tools", subtitle, cards, sections)


def _staged(stages: Report, names: Sequence[str]) -> list[tuple[str, Any]]:
    return list(zip(names, (stages["base"], stages["sft"], stages["rl"]), strict=True))


def _results_section(report: Report) -> Section:
    base = report["base"].lower()
    groups = [
        BarGroup(
            kind,
            tuple(
                Bar(name, estimate["value"], estimate["ci95"][0], estimate["ci95"][1], colour)
                for colour, (name, estimate) in enumerate(_staged(stages, (base, "SFT", "RL")))
            ),
        )
        for kind, stages in report["by_kind"].items()
    ]
    rows = [
        ("pass@1, greedy", report["greedy"]),
        ("pass@1, names asked about in training", report["train_entities"]),
    ]
    sft, rl = report["pass_at_1"]["sft"], report["pass_at_1"]["rl"]
    calls = report["tool_calls_per_answer"]
    table = [
        ("pass@1, sampled", _percent(sft["value"]), _percent(rl["value"])),
        *(
            (name, _percent(scores["sft"]), _percent(scores["rl"]))
            for name, scores in rows
            if scores is not None
        ),
        ("tool calls per answer", f"{calls['sft']:.2f}", f"{calls['rl']:.2f}"),
    ]
    text = ""
    if report["greedy"] is not None:
        text = (
            "Sampled: the agent draws every token, as it does in training. Greedy: it takes the likeliest one, which hides most flaws "
            "of the demonstrations. Read both: what reinforcement learning adds here is mostly choosing well among ways that the "
            "demonstrations contain."
        )
    return Section(
        "Results",
        text,
        warnings=(*report["warnings"], *report["notes"]),
        legend=(
            ("s0", base),
            ("s1", "after SFT"),
            ("s2", "after RL"),
            ("", "percent; whiskers are 95 % intervals"),
        ),
        charts=(bar_chart("Success by kind of question", groups, "pass@1, percent"),),
        tables=(Table("", ("", "SFT", "RL"), table),),
    )


def _curves(folder: Path, stage: str) -> tuple[Chart, ...]:
    path = folder / "metrics.jsonl"
    rows = read_metrics(path) if path.is_file() else ()
    return tuple(
        replace(chart, title=f"{stage}: {chart.title[0].lower()}{chart.title[1:]}")
        for chart in charts(LEARNING, rows)
    )


def _branching_section(branches: Mapping[str, Any]) -> Section:
    rate, spread = (
        f"{value:.3f}" if value is not None else "none" for value in (branches["rate"], branches["p_std"])
    )
    return Section(
        "Branching",
        "After each tool result the rollout may branch, and the more entropy has risen the likelier it is: "
        f"{branches['planned']:,} branches wanted, {branches['taken']:,} taken within the budget, {branches['by_entropy']:,} of them only "
        "because entropy had risen. While there was budget, the share of tool results where a branch was wanted: "
        f"{rate}. Standard deviation of the branching probability: {spread}.",
    )


def _page_of_training(folder: Path) -> tuple[Section, ...]:
    """Return what failed in RL, and one of its trees; nothing if its folder is not there."""
    try:
        page = run_page(folder)
    except DataError:
        return ()
    return tuple(section for section in page.sections if section.heading == "Failures" or section.drawing)


def _run_section(report: Report) -> Section:
    seconds = report["seconds"]
    phases = [*seconds.items(), ("all", sum(seconds.values()))]
    machine: list[tuple[str, str]] = [
        ("peak memory", f"{report['peak_memory_bytes'] / 2**30:.2f} GiB"),
        ("sandbox level of the python tool", f"L{report['sandbox_level']}"),
        *report["versions"].items(),
    ]
    tables = (
        Table("", ("phase", "seconds"), [(phase, f"{value:.1f}") for phase, value in phases]),
        Table("", ("", ""), machine),
    )
    return Section("The run", tables=tables)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _interval(estimate: Mapping[str, Any]) -> str:
    low, high = estimate["ci95"]
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _lift(stages: Mapping[str, Any]) -> str:
    """Return one sentence about RL against SFT."""
    points = 100 * (stages["rl"]["value"] - stages["sft"]["value"])
    sft, rl = stages["sft"]["ci95"], stages["rl"]["ci95"]
    apart = sft[1] < rl[0] or rl[1] < sft[0]
    return (
        f"Reinforcement learning changes pass@1 by {points:+.1f} points over supervised training; "
        f"the 95 % intervals {'do not overlap' if apart else 'overlap, so this may be chance'}."
    )
