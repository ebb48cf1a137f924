r"""Scores of an answer by name. Each takes the prediction and the accepted answers and lies in [0, 1].

| name | is |
| --- | --- |
| em, f1 | the published metrics of SQuAD and HotpotQA, whatever the gold is (`squad`) |
| answer | what training pays: a gold that is mathematics by value (`math_equal`), another one by `f1` |
| lenient | by value too, and by the F1 of words in their one spelling (`word_scores`): 1 where people would say that it is right |
| acc | a gold that is mathematics by value; another one stands in the answer and nothing denies or doubts it |
| math_equal | equal by value |
| unread, timeout | 1 where a mathematical answer could not be read, or its comparison ran out of CPU time or memory |

The best of the golds counts. In answer, lenient and acc each gold has the measure that fits it, without `\text{..}` around
it, and a text equals itself.
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
"""What holds no sign of mathematics."""


def accepted_answers(gold: object, *, spelled_lists: bool = True) -> tuple[str, ...]:
    """The golds as texts: a list, one text, a number; nothing matches what is blank or none of these.

    With `spelled_lists` a text that spells a list of words ("[Paris, City of Light]") gives its items too; mathematics
    means an interval by that.
    """
    if isinstance(gold, str):
        found = [gold, *(_listed(gold.strip()) if spelled_lists else ())]
    elif isinstance(gold, Sequence):
        found = [text for each in gold for text in accepted_answers(each, spelled_lists=spelled_lists)]
    else:
        found = [str(gold)] if isinstance(gold, int | float) and not isinstance(gold, bool) else []
    return tuple(dict.fromkeys(text.strip() for text in found if text.strip()))


def same_answer(answer: str, other: str) -> bool:
    """Whether two answers are one, without asking math-verify: for counting votes."""
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
    """Each gold by its kind; with `numbers_are_words` a plain number may also be met in words ("5 moons")."""

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
