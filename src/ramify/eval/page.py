"""The page of an evaluation: summary.json in tables and charts, and attempts."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_types import Reader, count, each, mapping, number, part, text
from ramify.core.tree import StopReason
from ramify.eval.attempts_section import attempts_section
from ramify.eval.evaluation import (
    Evaluation,
    make_evaluation,
    summarise,
    summarise_services,
    summarise_times,
)
from ramify.eval.results import answered_by, read_manifest, read_records, read_times
from ramify.files.durable import read_record
from ramify.obs.charts import Bar, BarGroup, Chart, Line, bar_chart, line_chart
from ramify.obs.page import Card, Page, Section, Table
from ramify.runs.page import origin_sections
from ramify.runtime.call_clock import EventLoopLag

_GROUP_PARTS = {"em": "em", "f1": "f1", "judge": "judge", "evidence_recall": "evidence recall"}
"""Parts in the tables of groups, with their headings."""
_MEANINGS = {
    "correct": "the answer is right",
    "acc": "the answer contains a gold",
    "em": "the answer is a gold, letter by letter after normalisation",
    "f1": "words that the answer shares with a gold",
    "math_equal": "the answer is mathematically equal to a gold",
    "lenient": "f1 of the best reading of the answer",
    "format": "the output has the form that the reward wants",
    "bonus": "added for right answers that use several tools",
    "unread": "the answer could not be read as mathematics: it counts as wrong",
    "timeout": "comparing the answer took too long: it counts as wrong",
    "judge": "the judge's verdict",
    "confidence": "how sure the answer says that it is",
    "evidence_recall": "documents of the evidence that a search showed",
}
_MAX_BARS = 15
"""Most groups that fit into one bar chart."""


def evaluation_page(
    folder: Path,
    evaluation: Evaluation,
    summary: Mapping[str, Any],
    times: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> Page:
    """Return the page of an evaluation in `folder`."""
    scores = manifest["scores"]
    test = scores["data"]["test"]
    subtitle = (
        f"{_model_name(summary['model'])} on {test if isinstance(test, str) else f'{len(test)} data sets'}: {summary['num_problems']} problems, "
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
                    ["part", "mean", "low", "high", "problems", "meaning"],
                    [
                        [name, *(at[key] for key in ("value", "low", "high", "n")), _MEANINGS.get(name, "")]
                        for name, at in summary["parts"].items()
                    ],
                ),
            ),
        ),
        attempts_section(folder, evaluation),
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
        *origin_sections(folder, "eval"),
    )
    return Page("Evaluation of an agent", subtitle, _cards(summary, evaluation), sections)


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


def shown(interval: Mapping[str, Any]) -> str:
    """Return an interval as text: "61.0 % [55.2, 66.8]"."""
    low, high = 100 * interval["low"], 100 * interval["high"]
    return f"{100 * interval['value']:.1f} % [{low:.1f}, {high:.1f}]"


def _cards(summary: Mapping[str, Any], evaluation: Evaluation) -> list[Card]:
    attempts = evaluation.attempts
    cut = sum(attempt.stop not in (StopReason.ANSWERED, StopReason.ENDED) for attempt in attempts)
    calls = [call for attempt in attempts for call in attempt.calls]
    failed = sum(call.outcome != "executed" for call in calls)
    return [
        *(
            Card(
                f"pass@{k}",
                f"{100 * at['value']:.1f}\u00a0%",
                f"95 % interval {100 * at['low']:.1f} to {100 * at['high']:.1f}",
            )
            for k, at in summary["pass_at"].items()
        ),
        Card(
            "Malformed or cut",
            f"{100 * cut / len(attempts):.1f}\u00a0%",
            f"{cut:,} of {len(attempts):,} attempts; {failed:,} of {len(calls):,} calls failed",
            0,
        ),
    ]


def _charts(evaluation: Evaluation) -> list[Chart]:
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


def page_of_run(folder: Path) -> Page:
    """Return the page of an evaluation from its files; of one that is not finished, with the problems whose attempts are all done.

    Raises:
        DataError: No problem is done, or a file cannot be read.
    """
    manifest = read_manifest(folder)
    scores = manifest["scores"]
    attempts = scores["sampling"]["attempts"]
    records = read_records(folder)
    done = Counter(record.problem for record in records)
    ids = [problem for problem, number_done in done.items() if number_done == attempts]
    if not ids:
        raise DataError(f"{folder}: nothing to report yet. No problem has all of its {attempts} attempts.")
    whole = [record for record in records if done[record.problem] == attempts]
    evaluation = make_evaluation(whole, ids, attempts, scores["seed"])
    judged = any("judge" in record.parts for record in whole)
    path = folder / "summary.json"
    # What the attempts do not say: notes, prices, agents that know nothing.
    before = read_record(path, _read_summary) if path.is_file() else {}
    ks = (
        [int(k) for k in before["pass_at"] if k.isdecimal() and 0 < int(k) <= attempts]
        if before
        else sorted({1, attempts})
    )
    notes = before.get("notes", (f"{len(ids)} of {scores['problems']['count']} problems are done so far",))
    measured = read_times(folder)
    summary = {
        "model": answered_by(scores),
        **summarise(evaluation, ks, None, judged=judged, notes=notes),
        **summarise_services(measured),
        **{name: before[name] for name in _FROM_SUMMARY if name in before},
    }
    return evaluation_page(
        folder, evaluation, summary, summarise_times(measured, EventLoopLag(0.0, 0.0)), manifest
    )


_FROM_SUMMARY: Mapping[str, Reader[Any]] = {
    "null": mapping(part(value=number, low=number, high=number, n=count)),
    "cost": mapping(number),
    "helper": part(answers=count, prompt_tokens=count, completion_tokens=count),
}


def _read_summary(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    readers = {
        name: read for name, read in _FROM_SUMMARY.items() if isinstance(value, dict) and name in value
    }
    return part(pass_at=part(), notes=each(text), **readers)(value)
