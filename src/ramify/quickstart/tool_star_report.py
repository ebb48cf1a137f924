"""The report of `ramify quickstart --tool-star`: the gain of each stage and of each repair tool. report.json and report.html."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ramify.core.json_types import each, mapping, number, numbers, part, text, whole
from ramify.eval.evaluation import Evaluation, repair_table
from ramify.eval.statistics import Difference, paired_difference
from ramify.files.durable import read_record, write_record
from ramify.obs.charts import Bar, BarGroup, bar_chart
from ramify.obs.page import Card, Page, Section, Table, settings_table, write_page
from ramify.quickstart.run import estimate, versions
from ramify.runs.page import REPORT, origin_section, versions_of
from ramify.synth.results import synthesis_section

What: TypeAlias = Literal["sampled", "greedy"]
WHATS: tuple[What, ...] = ("sampled", "greedy")
STAGES: Mapping[str, str] = {
    "base": "Base: read logs of tools at work",
    "weak": "Weak start: SFT on demonstrations with one tool",
    "sft": "SFT on the rows of the synthesis",
    "rl": "GRPO",
    "dpo": "Self-critic DPO",
}
"""Names of the stages on the page, in order."""

_ADDS = "95 % interval of the change, and the p-value of McNemar's test on the same questions."


@dataclass(frozen=True, slots=True)
class EvaluationKey:
    """An evaluation: of a stage's model, sampled at temperature 1 or greedy, with these repair tools ("": none)."""

    stage: str
    what: What
    repairs: str

    @property
    def title(self) -> str:
        """The name of the evaluation, in one line."""
        return " ".join(filter(None, (self.stage, self.what, self.repairs)))


def tool_star_report(
    evaluations: Mapping[EvaluationKey, Evaluation], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of report.json.

    Args:
        evaluations: All of the same problems.
        facts: Its other entries: seed, seconds, synthesis, cycle, peak_memory_bytes, config, sandbox_level.
    """
    stages = list(STAGES)
    return {
        **facts,
        "pass_at_1": {
            what: {stage: _scores(evaluations[EvaluationKey(stage, what, "")]) for stage in stages}
            for what in WHATS
        },
        "added": {
            what: {
                stage: _added(
                    evaluations[EvaluationKey(before, what, "")], evaluations[EvaluationKey(stage, what, "")]
                )
                for before, stage in itertools.pairwise(stages)
            }
            for what in WHATS
        },
        "repairs": [
            {
                **asdict(key),
                **_scores(evaluation),
                "added": _added(evaluations[EvaluationKey(key.stage, key.what, "")], evaluation),
                "acted": repair_table(evaluation),
            }
            for key, evaluation in evaluations.items()
            if key.repairs
        ],
        "versions": versions(),
    }


def write_tool_star_report(report: Mapping[str, Any], folder: Path) -> None:
    """Write report.json and report.html into `folder`."""
    write_record(folder / "report.json", report)
    write_page(folder / REPORT, tool_star_page(report, folder))


def tool_star_page(report: Mapping[str, Any], folder: Path) -> Page:
    """Return the page of such a report, whose runs are in `folder`."""
    sampled = report["pass_at_1"]["sampled"]
    first, last = sampled["weak"]["pass_at_1"], sampled["dpo"]["pass_at_1"]
    minutes = sum(report["seconds"].values()) / 60
    cards = [
        Card("Weak start", _percent(first), "pass@1 at temperature 1, held-out names"),
        Card("In the end", _percent(last), f"of {last['n']} questions"),
        Card("Time", f"{minutes:.1f} min", f"seed {report['seed']}"),
    ]
    again = f"ramify quickstart {report['options']} --seed {report['seed']} --out NEW_FOLDER"
    sections = [
        _stage_section(report),
        synthesis_section(report["synthesis"]),
        _cycle_section(report["cycle"]),
        _repair_section(report["repairs"]),
        origin_section(folder, versions_of(folder / "selfcritic"), again),
        Section(
            "Settings",
            tables=(settings_table({**report["config"], "seconds": report["seconds"]}),),
            folded=True,
        ),
    ]
    return Page("Tool-Star in the tiny world", "ramify quickstart --tool-star", cards, sections)


def read_tool_star_report(path: Path) -> dict[str, Any]:
    """Read a report.json that `write_tool_star_report` wrote.

    Raises:
        DataError: It cannot be read, or is something else.
    """
    return read_record(path, _READ_REPORT)


_SCORES = part(
    pass_at_1=part(value=number, ci95=numbers),
    by_kind=mapping(part(value=number, ci95=numbers)),
    calls=number,
)
_CHANGE = part(value=number, ci95=numbers, p_value=number)
_READ_REPORT = part(
    seed=whole,
    options=text,
    seconds=mapping(number),
    pass_at_1=part(sampled=mapping(_SCORES), greedy=mapping(_SCORES)),
    added=part(sampled=mapping(_CHANGE), greedy=mapping(_CHANGE)),
    repairs=each(part(stage=text, what=text, repairs=text, added=_CHANGE, acted=mapping(part(times=number)))),
    synthesis=part(),
    cycle=part(rl=part(first=number, last=number), pairs=part(line=text)),
    versions=mapping(text),
    config=part(),
)


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "pass_at_1": estimate(evaluation.pass_at(1)),
        "by_kind": {
            kind: estimate(evaluation.of("kind", kind).pass_at(1)) for kind in evaluation.values("kind")
        },
        "calls": evaluation.calls_per_attempt,
    }


def _added(before: Evaluation, after: Evaluation) -> dict[str, Any]:
    def scores(evaluation: Evaluation) -> list[float]:
        return [result.num_correct / len(result.attempts) for result in evaluation.results]

    change: Difference = paired_difference(scores(before), scores(after), seed=0)
    return {
        "value": change.value,
        "ci95": (change.low, change.high),
        "p_value": change.p_value,
        "better": change.better,
        "worse": change.worse,
    }


def _stage_section(report: Mapping[str, Any]) -> Section:
    trained = {stage: scores for stage, scores in report["pass_at_1"]["sampled"].items() if stage != "base"}
    charts = [
        bar_chart(
            "pass@1 by kind of question, sampled",
            [
                BarGroup(
                    kind,
                    tuple(
                        _bar(stage, scores["by_kind"][kind], colour)
                        for colour, (stage, scores) in enumerate(trained.items())
                    ),
                )
                for kind in trained["weak"]["by_kind"]
            ],
            "percent",
        )
    ]
    tables = []
    for what in WHATS:
        rows = []
        for stage, scores in report["pass_at_1"][what].items():
            added = report["added"][what].get(stage)
            rows.append(
                [STAGES[stage], _interval(scores["pass_at_1"]), *_change(added), round(scores["calls"], 2)]
            )
        title = "Sampled at temperature 1" if what == "sampled" else "Greedy"
        header = ("stage", "pass@1 [95 %]", "added [95 %]", "p", "tool calls an answer")
        tables.append(Table(title, header, rows))
    text = f"Each stage starts from the one above it. {_ADDS}"
    return Section("Gain of each stage", text, charts=charts, tables=tables)


def _cycle_section(cycle: Mapping[str, Any]) -> Section:
    rows = [
        [
            "mean reward, first and last step of GRPO",
            f"{cycle['rl']['first']:.3f}, {cycle['rl']['last']:.3f}",
        ],
        ["pairs", cycle["pairs"]["line"]],
    ]
    if "dpo" in cycle:
        rows.append(
            [
                "DPO: loss and accuracy in its last step",
                f"{cycle['dpo']['loss']:.3f}, {cycle['dpo']['accuracy']:.3f}",
            ]
        )
    return Section("GRPO and self-critic DPO", tables=(Table("", ("what", "figure"), rows),))


def _repair_section(repairs: Sequence[Mapping[str, Any]]) -> Section:
    rows = []
    for entry in repairs:
        acted = ", ".join(f"{name} {counts['times']}" for name, counts in entry["acted"].items())
        rows.append(
            [
                entry["stage"],
                entry["what"],
                entry["repairs"],
                _interval(entry["pass_at_1"]),
                *_change(entry["added"]),
                acted or "never",
            ]
        )
    header = ("model", "answers", "repair tool", "pass@1 [95 %]", "added [95 %]", "p", "acted")
    text = (
        "Against the same model without repair tools. The helper is a function that knows this world, since no tiny model "
        f"can help. {_ADDS}"
    )
    return Section("Gain of each repair tool", text, tables=(Table("", header, rows),))


def _bar(stage: str, scores: Mapping[str, Any], colour: int) -> Bar:
    low, high = scores["ci95"]
    return Bar(stage, scores["value"], low, high, colour)


def _percent(scores: Mapping[str, Any]) -> str:
    return f"{100 * scores['value']:.1f}\u00a0%"


def _interval(scores: Mapping[str, Any]) -> str:
    low, high = (100 * bound for bound in scores["ci95"])
    return f"{100 * scores['value']:.1f} % [{low:.1f}, {high:.1f}]"


def _change(added: Mapping[str, Any] | None) -> tuple[str, str]:
    if added is None:
        return "", ""
    low, high = (100 * bound for bound in added["ci95"])
    return f"{100 * added['value']:+.1f} [{low:+.1f}, {high:+.1f}]", f"{added['p_value']:.3g}"
