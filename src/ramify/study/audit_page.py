"""The page of an audit: which estimators rank decisions as their executed effects do, and the decisions that mattered most."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ramify.eval.statistics import Interval
from ramify.obs.charts import Bar, BarGroup, Chart, Line, bar_chart, line_chart
from ramify.obs.page import Card, Page, Section, Table
from ramify.study.audit import HEADER, Audit, AuditSettings, interval_text, ranking_row
from ramify.study.effects import Effect
from ramify.study.ranking import Ranking

_SHOWN = 15
"""Decisions of a table."""


def audit_page(audit: Audit, settings: AuditSettings, folder: Path) -> Page:
    """Return the page of an audit."""
    pairs = sorted(zip(audit.known, audit.intervals, strict=True), key=lambda pair: pair[1].value)
    helped = [pair for pair in pairs if pair[1].low > 0]
    harmed = [pair for pair in pairs if pair[1].high < 0]
    sections = [
        Section(
            "Estimators against executed effects",
            "The effect of a turn is the mean reward of trajectories that go on after it, minus that of trajectories that go "
            f"on from before it. A score is an estimator's mean advantage over the turn's tokens{_judge_text(settings)}. AUROC: "
            "the chance that a turn that helped has a higher score than a turn that harmed; 0.5 is a coin. Intervals "
            "of 95 % count problems: a bootstrap over them for the correlation, Newcombe's for an AUROC.",
            warnings=audit.warnings,
            charts=(_auroc_chart(audit.rankings),),
            tables=(Table("", HEADER, [ranking_row(each) for each in audit.rankings]),),
        ),
        Section(
            "Entropy against the size of effects",
            "Rank correlation of the entropy at the decision with the size of its effect, and the AUROC of effects whose "
            "interval excludes 0.",
            tables=(Table("", (*HEADER[:3], "AUROC of sure effects"), [ranking_row(audit.entropy)[:4]]),),
        ),
        Section(
            "Effects",
            f"Those of {len(audit.known)} decisions in order, with their 95 % intervals, and their mean size by turn.",
            charts=(_effects_chart([interval for _, interval in pairs]), _turns_chart(audit)),
        ),
        Section("Turns that helped", tables=(_decisions_table(reversed(helped[-_SHOWN:]), settings),)),
        Section("Turns that harmed", tables=(_decisions_table(harmed[:_SHOWN], settings),)),
    ]
    return Page(
        f"Audit: {folder.absolute().name}",
        f"{len(audit.effects)} decisions of {', '.join(settings.sources)}, {settings.samples} trajectories on each side. Of ends, "
        f"{audit.rescoring or 'the rewards are the recorded ones'}",
        _cards(audit),
        sections,
    )


def _judge_text(settings: AuditSettings) -> str:
    return f", or the opinion of {settings.judge['model']} as judge" if settings.judge else ""


def _cards(audit: Audit) -> list[Card]:
    best = audit.rankings[0] if audit.rankings and audit.rankings[0].spearman else None
    unknown = len(audit.effects) - len(audit.known)
    cards = [
        Card(
            "Decisions",
            f"{len(audit.known)}",
            f"{unknown} without an interval" if unknown else "with intervals",
        ),
        Card("Sure effects", f"{sum(audit.is_sure)}", "whose interval excludes 0", 2),
    ]
    if best is not None and best.spearman is not None:
        text = interval_text(best.spearman)
        cards.append(Card("Best rank correlation", f"{best.spearman.value:.2f}", f"{best.name}: {text}"))
    if audit.ceiling is not None:
        cards.append(
            Card("Ceiling", f"{audit.ceiling:.2f}", "correlation of the true effects with the measured ones")
        )
    return cards


def _auroc_chart(rankings: Sequence[Ranking]) -> Chart:
    groups = []
    for ranking in rankings:
        bars = [
            Bar(name, interval.value, max(interval.low, 0.0), min(interval.high, 1.0), colour)
            for name, interval, colour in (("all", ranking.auroc, 0), ("sure", ranking.sure, 1))
            if interval is not None
        ]
        if bars:
            groups.append(BarGroup(ranking.name, tuple(bars)))
    return bar_chart("AUROC of the sign of effects, of all and of sure ones", groups, "AUROC, %")


def _effects_chart(intervals: Sequence[Interval]) -> Chart:
    ends = (("effect", "value"), ("low", "low"), ("high", "high"))
    lines = [
        Line(name, tuple((float(rank), getattr(each, end)) for rank, each in enumerate(intervals, 1)), colour)
        for colour, (name, end) in enumerate(ends)
    ]
    return line_chart("Effects in order", lines, "decisions", "effect")


def _turns_chart(audit: Audit) -> Chart:
    sizes: dict[int, list[float]] = {}
    for effect, interval in zip(audit.known, audit.intervals, strict=True):
        sizes.setdefault(effect.turn, []).append(abs(interval.value))
    points = tuple((float(turn), sum(each) / len(each)) for turn, each in sorted(sizes.items()))
    return line_chart("Size of effects by turn", [Line("mean size", points, 0)], "turn", "size of effect")


def _decisions_table(pairs: Iterable[tuple[Effect, Interval]], settings: AuditSettings) -> Table:
    header = ("effect", "file", "line", "tree/node", "turn", "problem", "the turn")
    rows = [
        (
            interval_text(interval),
            effect.trace,
            effect.line,
            f"{effect.row}/{effect.node}",
            effect.turn,
            effect.problem,
            effect.text,
        )
        for effect, interval in pairs
    ]
    if len(settings.sources) == 1:
        return Table("", (header[0], *header[2:]), [(row[0], *row[2:]) for row in rows])
    return Table("", header, rows)
