"""Scores of an answer by name. Each takes the prediction and the accepted answers and lies in [0, 1].

| name | gold in words | gold that is mathematics (`is_mathematical`) |
| --- | --- | --- |
| em | the same words in any spelling (`qa`) | the same formula but for typesetting |
| f1 | words shared | `math_equal`, since no part of a formula is right by itself |
| acc | the answer contains the gold as whole words | `math_equal` |
| math_equal | `math_equal` | `math_equal` |
| answer | f1 | `math_equal` |

Each gold has its own measure; the best of them counts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ramify.rewards import qa
from ramify.rewards.math_equal import is_mathematical, math_equal, math_equal_quickly, same_text
from ramify.rewards.numerals import is_number

_PROSE = re.compile(r"[\w\s.,;:'\"?()-]*")
"""What holds no sign of mathematics."""

AnswerScore: TypeAlias = Callable[[str, Sequence[str]], float]


def math_scores(prediction: str, golds: Sequence[str]) -> Mapping[str, float]:
    """em, f1, acc and math_equal of a mathematical answer."""
    em = _same_text(prediction, golds)
    equal = em or math_equal(prediction, golds)
    return {"em": em, "f1": equal, "acc": equal, "math_equal": equal}


def qa_scores(prediction: str, golds: Sequence[str]) -> Mapping[str, float]:
    """em, f1, acc and math_equal (values only, nothing symbolic) of an answer in words."""
    in_words = [gold for gold in golds if not is_mathematical(gold)]
    formulas = [gold for gold in golds if is_mathematical(gold)]
    return {
        "em": qa.exact_words(prediction, golds),
        "f1": qa.word_f1(prediction, golds),
        "acc": qa.contains_words(prediction, golds),
        "math_equal": qa.exact_words(prediction, in_words) or math_equal_quickly(prediction, formulas),
    }


def scores(prediction: str, golds: Sequence[str], task: Literal["math", "qa"]) -> Mapping[str, float]:
    """The four scores of an answer; a blank prediction has none."""
    if not prediction.strip():
        return {"em": 0.0, "f1": 0.0, "acc": 0.0, "math_equal": 0.0}
    return math_scores(prediction, golds) if task == "math" else qa_scores(prediction, golds)


def _same_text(prediction: str, golds: Sequence[str]) -> float:
    return float(any(same_text(prediction, gold) for gold in golds))


def _by_gold(words: AnswerScore, mathematics: AnswerScore, *, numbers_are_words: bool = False) -> AnswerScore:
    """Each gold by its kind; with `numbers_are_words` a plain number may also be met as a word ("twelve", "5 moons")."""

    def score(prediction: str, golds: Sequence[str]) -> float:
        formulas = [gold for gold in golds if is_mathematical(gold)]
        others = [gold for gold in golds if not is_mathematical(gold)]
        if numbers_are_words and _PROSE.fullmatch(prediction) and not is_mathematical(prediction):
            others += filter(is_number, formulas)
        return max(mathematics(prediction, formulas), words(prediction, others))

    return score


answer = _by_gold(qa.word_f1, math_equal)
"""Mathematics by value, words by F1."""

SCORES: Mapping[str, AnswerScore] = MappingProxyType(
    {
        "em": _by_gold(qa.exact_words, _same_text, numbers_are_words=True),
        "f1": answer,
        "acc": _by_gold(qa.contains_words, math_equal, numbers_are_words=True),
        "math_equal": math_equal,
        "answer": answer,
    }
)
