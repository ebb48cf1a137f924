"""The HTML page of an evaluation: summary.json in tables and charts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ramify.eval.evaluation import Evaluation
from ramify.files.durable import replace_file
from ramify.obs.page import (
    Bar,
    BarGroup,
    Card,
    Line,
    Section,
    Table,
    bar_chart,
    flat,
    line_chart,
    render_page,
)

_GROUP_PARTS = {"em": "em", "f1": "f1", "judge": "judge", "evidence_recall": "evidence recall"}
"""Parts in the tables of groups, with their headings."""
_MAX_BARS = 15
"""Most groups that fit into one bar chart."""


def write_page(
    path: Path,
    evaluation: Evaluation,
    summary: Mapping[str, Any],
    times: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    """Write `report.html`: one file without scripts or external resources."""
    scores = manifest["scores"]
    subtitle = (
        f"{_model_name(summary['model'])} on {_datasets(scores['data']['test'])}: {summary['num_problems']} problems, "
        f"{summary['attempts']} independent attempts at each, temperature {scores['sampling']['temperature']:g}, seed "
        f"{scores['seed']}. Intervals are 95 %, over problems."
    )
    sections = (
        Section(
            "Results",
            " ".join(f"{note}." for note in summary["notes"]),
            charts=_charts(evaluation),
            tables=(
                _k_table(summary),
                *_null_tables(summary),
                Table(
                    "Parts of the reward, means over problems",
                    ["part", "mean", "low", "high", "problems"],
                    [
                        [name, *(at[key] for key in ("value", "low", "high", "n"))]
                        for name, at in summary["parts"].items()
                    ],
                ),
            ),
        ),
        *(_group_section(column, groups) for column, groups in summary["groups"].items()),
        *((_judge_section(summary["judge"]),) if "judge" in summary else ()),
        _tool_section(summary["tools"]),
        *((_service_section(summary["services"]),) if "services" in summary else ()),
        *((_repair_section(summary["repairs"], summary.get("helper")),) if summary["repairs"] else ()),
        Section(
            "Tokens, time, cost",
            tables=(
                _use_table(summary, times),
                Table("Why attempts ended", ["stop", "attempts"], list(summary["stops"].items())),
            ),
        ),
        Section(
            "How to reproduce it",
            "The resolved recipe with checksums of the files that it names, and the versions of the code.",
            tables=(_settings(scores), *(_settings(session) for session in manifest["made_with"])),
            folded=True,
        ),
    )
    page = render_page("Evaluation of an agent", subtitle, _cards(summary), sections)
    replace_file(path, page.encode("utf-8", "replace"))


def _null_tables(summary: Mapping[str, Any]) -> list[Table]:
    if "null" not in summary:
        return []
    rows = [
        [name, *(at[key] for key in ("value", "low", "high", "n"))] for name, at in summary["null"].items()
    ]
    title = "Agents that know nothing: the share of problems that they get right"
    return [Table(title, ["agent", "mean", "low", "high", "problems"], rows)]


def _model_name(model: Mapping[str, Any]) -> str:
    address = f" at {model['url']}" if "url" in model else ""
    ids = "" if model.get("exact_ids", True) else "; it gives text, not token ids"
    return f"{model['name']}{address}" + (
        f" (tokenizer {model['tokenizer']}{ids})" if "tokenizer" in model else ""
    )


def _datasets(test: str | Sequence[str]) -> str:
    return test if isinstance(test, str) else f"{len(test)} data sets"


def shown(interval: Mapping[str, Any]) -> str:
    """Return an interval as text: "61.0 % [55.2, 66.8]"."""
    low, high = 100 * interval["low"], 100 * interval["high"]
    return f"{100 * interval['value']:.1f} % [{low:.1f}, {high:.1f}]"


def _cards(summary: Mapping[str, Any]) -> list[Card]:
    return [
        Card(
            f"pass@{k}",
            f"{100 * at['value']:.1f} %",
            f"95 % interval {100 * at['low']:.1f} to {100 * at['high']:.1f}",
        )
        for k, at in summary["pass_at"].items()
    ]


def _charts(evaluation: Evaluation) -> list[Markup]:
    attempts = len(evaluation.results[0].attempts)
    charts = []
    if attempts > 1:
        curve = tuple((float(k), evaluation.pass_at(k).value) for k in _curve_points(attempts))
        majority = tuple((float(k), evaluation.majority_at(k).value) for k in _curve_points(attempts))
        charts.append(
            line_chart(
                "By number of attempts",
                [Line("pass@k", curve, 2), Line("majority@k", majority, 1)],
                "k",
                "share of problems",
                (0.0, 1.0),
            )
        )
    for column in evaluation.columns:
        values = evaluation.values(column)
        if 1 < len(values) <= _MAX_BARS:
            scores = [(value, evaluation.of(column, value).pass_at(1)) for value in values]
            groups = [BarGroup(value, (Bar("pass@1", at.value, at.low, at.high, 2),)) for value, at in scores]
            charts.append(bar_chart(f"pass@1 by {column}", groups, "percent"))
    return charts


def _curve_points(attempts: int) -> list[int]:
    """Return the values of k for a curve: all up to 16, then powers of two and the last one."""
    ks = {k for k in range(1, attempts + 1) if k <= 16 or k & (k - 1) == 0}
    return sorted(ks | {attempts})


def _k_table(summary: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"k = {k}",
            shown(summary["pass_at"][k]),
            shown(summary["mean_at"][k]),
            shown(summary["majority_at"][k]),
        ]
        for k in summary["pass_at"]
    ]
    return Table("", ["", "pass@k, unbiased", "mean of the first k", "majority of the first k"], rows)


def _group_section(column: str, groups: Mapping[str, Any]) -> Section:
    ks = list(next(iter(groups.values()))["pass_at"])
    parts = [name for name in _GROUP_PARTS if any(name in group["parts"] for group in groups.values())]
    is_calibrated = any("calibration" in group for group in groups.values())
    rows: list[list[str | float | None]] = [
        [
            value,
            group["pass_at"][ks[0]]["n"],
            *(shown(group["pass_at"][k]) for k in ks),
            *(shown(group["parts"][name]) if name in group["parts"] else "" for name in parts),
            group["calls_per_attempt"],
            *([group["calibration"]["error"] if "calibration" in group else None] if is_calibrated else []),
        ]
        for value, group in groups.items()
    ]
    header = [column, "problems", *(f"pass@{k}" for k in ks), *map(_GROUP_PARTS.get, parts), "calls"]
    header += ["calibration error"] if is_calibrated else []
    return Section(f"By {column}", tables=(Table("", [str(name) for name in header], rows),))


def _judge_section(judge: Mapping[str, Any]) -> Section:
    rows = [
        [name, score["n"], score["rate"], score["kappa"], score["judge_only"], score["score_only"]]
        for name, score in judge["agreement"].items()
    ]
    text = (
        f"{judge['judged']} answers judged, {judge['right']} of them right, {judge['without_verdict']} without a verdict. "
        "Agreement between the judge and each score on what is right (F1 counts as right from 0.5 on):"
    )
    header = ["score", "answers", "agree", "kappa", "right for the judge only", "right for the score only"]
    return Section("Judge", text, tables=(_k_table(judge), Table("", header, rows)))


def _repair_section(repairs: Mapping[str, Any], helper: Mapping[str, int] | None) -> Section:
    text = "How often a rewriter had an attempt go on from elsewhere, or the debugger was asked, and how such attempts ended."
    if helper is not None:
        text += (
            f" In the last session the helper gave {helper['answers']} answers; {helper['prompt_tokens']} tokens read, "
            f"{helper['completion_tokens']} written."
        )
    rows = [
        [name, *(counts[key] for key in ("times", "attempts", "correct"))] for name, counts in repairs.items()
    ]
    return Section(
        "Repairs", text, tables=(Table("", ["repair", "times", "attempts", "of these correct"], rows),)
    )


def _tool_section(tools: Mapping[str, Any]) -> Section:
    rows = [
        [
            name,
            *(tool[key] for key in ("calls", "executed", "failed", "refused", "repeated")),
            f"{tool['correct_with']} of {tool['attempts_with']}",
            f"{tool['correct_without']} of {tool['attempts_without']}",
        ]
        for name, tool in tools.items()
    ]
    header = [
        "tool",
        "calls",
        "executed",
        "failed",
        "refused",
        "repeated",
        "right with it",
        "right without it",
    ]
    text = (
        "Each call was executed, failed, or was refused without running (unreadable, unknown, over the limit). "
        "Repeated calls, which the same attempt had made before, are counted in these three as well."
    )
    return Section("Tools", text, tables=(Table("", header, rows),))


def _service_section(services: Mapping[str, Mapping[str, int]]) -> Section:
    rows: list[list[str | int | float | None]] = [
        [kind, outcome, count] for kind, outcomes in services.items() for outcome, count in outcomes.items()
    ]
    text = "Page reads and summaries by outcome, and answers from the cache. Where a page could not be read, the policy got its snippet."
    return Section("Pages, summaries, cache", text, tables=(Table("", ["what", "outcome", "times"], rows),))


def _use_table(summary: Mapping[str, Any], times: Mapping[str, Any]) -> Table:
    tokens = summary["tokens"]["mean"]
    rows: list[list[str | float | None]] = [
        [f"tokens of an attempt: {name}", tokens[name]] for name in ("prompt", "written", "results", "sent")
    ]
    rows += [
        [f"seconds of an attempt: {key}", value] for key, value in times["attempts"].items() if key != "n"
    ]
    rows += [[f"seconds of a call of {tool}: mean", at["mean"]] for tool, at in times["calls"].items()]
    rows += [[f"cost: {key.replace('_', ' ')}", value] for key, value in summary.get("cost", {}).items()]
    return Table("", ["", "mean"], rows)


def _settings(table: Mapping[str, Any]) -> Table:
    return Table("", ["key", "value"], [[key, str(value)] for key, value in flat(table)])
