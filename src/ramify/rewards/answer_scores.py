r"""Scores of an answer by name. Each takes the prediction and the accepted answers (golds) and lies in [0, 1].

| name | meaning |
| --- | --- |
| em, f1 | the published metrics of SQuAD and HotpotQA, whatever the gold is (`squad`) |
| answer | the score used in training: a mathematical gold by value (`math_equal`), any other by `f1` |
| lenient | a mathematical gold by value, any other by F1 of normalised words (`word_scores`): 1 if a person would accept it |
| acc | a mathematical gold by value; any other if the answer states it and neither denies nor doubts it |
| math_equal | equal by value |
| unread, timeout | 1 if a mathematical answer could not be read, or its comparison ran out of CPU time or memory |

The best of the golds counts. In `answer`, `lenient` and `acc` each gold is compared by the measure that fits it, `\text{..}`
around it is ignored, and a text always equals itself.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from ramify.rewards import math_equal as mathematics
from ramify.rewards import squad, word_scores
from ramify.rewards.extract import plain

AnswerScore: TypeAlias = Callable[[str, Sequence[str]], float]

_PROSE = re.compile(r"[\w\s.,;:'\"?()-]*")
"""Text without any mathematical sign."""


def accepted_answers(gold: object, *, spelled_lists: bool = True) -> tuple[str, ...]:
    """The golds as texts. A gold is a text, a number or a list of these; blank ones and other types are dropped.

    With `spelled_lists`, a text that looks like a list of words ("[Paris, City of Light]") also gives its items. In
    mathematics such brackets mean an interval, so there this is off.
    """
    if isinstance(gold, str):
        found = [gold, *(_listed(gold.strip()) if spelled_lists else ())]
    elif isinstance(gold, Sequence):
        found = [text for each in gold for text in accepted_answers(each, spelled_lists=spelled_lists)]
    else:
        found = [str(gold)] if isinstance(gold, int | float) and not isinstance(gold, bool) else []
    return tuple(dict.fromkeys(text.strip() for text in found if text.strip()))


def same_answer(answer: str, other: str) -> bool:
    """Whether two answers are the same, without math-verify; used for counting votes."""
    if mathematics.is_mathematical(other):
        return mathematics.math_equal_quickly(answer, [other]) == 1.0
    return word_scores.lenient_f1(answer, [other]) == 1.0


def _listed(text: str) -> list[str]:
    if not (text.startswith("[") and text.endswith("]")):
        return []
    try:
        items = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = text[1:-1]
        return [] if re.search(r"[\[\]()\\]", inner) else [inner, *inner.split(",")]
    return [item for item in items if isinstance(item, str)]


def _by_gold(words: AnswerScore, *, numbers_are_words: bool = False) -> AnswerScore:
    """A score that compares each gold by its kind; with `numbers_are_words` a number also matches in words ("5 moons")."""

    def score(prediction: str, golds: Sequence[str]) -> float:
        golds = [plain(gold.strip()) for gold in golds]
        if prediction.strip() and prediction.strip() in golds:
            return 1.0
        formulas = [gold for gold in golds if mathematics.is_mathematical(gold)]
        others = [gold for gold in golds if not mathematics.is_mathematical(gold)]
        if numbers_are_words and _PROSE.fullmatch(prediction) and not mathematics.is_mathematical(prediction):
            others += filter(str.isdecimal, formulas)
        return max(mathematics.math_equal(prediction, formulas), words(prediction, others))

    return score


SCORES: Mapping[str, AnswerScore] = MappingProxyType(
    {
        "em": squad.exact_match,
        "f1": squad.f1,
        "answer": _by_gold(squad.f1),
        "lenient": _by_gold(word_scores.lenient_f1),
        "acc": _by_gold(word_scores.contains, numbers_are_words=True),
        "math_equal": mathematics.math_equal,
        "unread": mathematics.unread,
        "timeout": mathematics.timeout,
    }
)
