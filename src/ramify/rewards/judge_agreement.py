"""Agreement between a judge and the other scores of the same answers (Cohen 1960, Educ. Psychol. Meas. 20)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

Table: TypeAlias = dict[str, float | None]

RIGHT_FROM: Mapping[str, float] = MappingProxyType(
    {"em": 1.0, "f1": 0.5, "lenient": 1.0, "acc": 1.0, "math_equal": 1.0}
)
"""The value from which a score counts as "right". The one for F1 is our choice."""


def judge_agreement(parts: Sequence[Mapping[str, float]]) -> dict[str, Table]:
    """For each score that some answer has, the 2 x 2 table of its verdicts and the judge's, for a summary.

    Answers without a verdict are in no cell. `rate` is the share on which both agree; None if the table is empty.

    Args:
        parts: The scores of each answer by name; an answer without "judge" got no verdict.
    """
    return {
        name: _table([answer for answer in parts if name in answer], name, edge)
        for name, edge in RIGHT_FROM.items()
        if any(name in answer for answer in parts)
    }


def kappa(both_right: int, judge_only: int, score_only: int, both_wrong: int) -> float | None:
    """Cohen's kappa: 1 is full agreement, 0 agreement by chance; None if chance alone would agree on everything."""
    n = both_right + judge_only + score_only + both_wrong
    judge, score = both_right + judge_only, both_right + score_only
    chance = (judge * score + (n - judge) * (n - score)) / n**2 if n else 1.0
    return None if chance == 1.0 else ((both_right + both_wrong) / n - chance) / (1.0 - chance)


def _table(answers: Sequence[Mapping[str, float]], name: str, edge: float) -> Table:
    both = [(answer["judge"] >= 0.5, answer[name] >= edge) for answer in answers if "judge" in answer]
    cells = [both.count(cell) for cell in ((True, True), (True, False), (False, True), (False, False))]
    return {
        "right_from": edge,
        "n": len(both),
        "without_verdict": len(answers) - len(both),
        **dict(zip(("both_right", "judge_only", "score_only", "both_wrong"), cells, strict=True)),
        "rate": (cells[0] + cells[3]) / len(both) if both else None,
        "kappa": kappa(*cells),
    }
