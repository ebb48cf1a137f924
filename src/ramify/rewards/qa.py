"""Scores of answers in words: exact match, F1 and containment, each the best over the accepted answers."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Sequence

from ramify.rewards import dates
from ramify.rewards.qa_assertion import VERDICTS, closing_verdict, is_asserted, leading_verdict
from ramify.rewards.qa_words import Words, folded, has_ordinal, joined_letters, words

_SEPARATOR = re.compile(
    r"\s*(?:,\s+|;|、|,(?=[^\s\d])|\band\b|&|(?<=[\u4e00-\u9fff])[和与及](?=[\u4e00-\u9fff]))\s*"
)
_CHINESE = re.compile("[\u4e00-\u9fff]+")
_TITLES = (
    "教授",
    "主任",
    "先生",
    "女士",
    "博士",
    "老师",
    "院长",
    "校长",
    "书记",
    "主席",
    "总理",
    "部长",
    "市长",
    "医生",
)
_NAME_WORDS = 2
_MAX_CHARS, _MAX_LIST_CHARS = 10_000, 1000
"""What is read of an answer; no answer in words is longer."""


def exact_words(prediction: str, golds: Sequence[str]) -> float:
    """1.0 when the prediction says the same as a gold, else 0.0."""
    return float(any(_same(prediction[:_MAX_CHARS], gold[:_MAX_CHARS]) for gold in golds))


def word_f1(prediction: str, golds: Sequence[str]) -> float:
    """F1 of the words (Chinese: characters) shared with a gold, 1.0 for an exact match; in [0, 1].

    A gold "yes" or "no" is met by an answer that begins with it ("No, both are ..") and not by one that begins with
    the other.
    """
    return max((_f1(prediction[:_MAX_CHARS], gold[:_MAX_CHARS]) for gold in golds), default=0.0)


def contains_words(prediction: str, golds: Sequence[str]) -> float:
    """1.0 when a gold stands in the prediction as whole words, neither denied nor beside another candidate ("or")."""
    return float(any(_contains(prediction[:_MAX_CHARS], gold[:_MAX_CHARS]) for gold in golds))


def accepted_answers(gold: object, *, spelled_lists: bool = True) -> tuple[str, ...]:
    """The golds as texts: a list, one text, a number. Blank ones are left out, so that nothing matches them.

    With `spelled_lists` a text that spells a list of words ("[Paris, City of Light]") gives its items too; mathematics
    means an interval by that.
    """
    if isinstance(gold, str):
        found = [gold, *(_listed(gold.strip()) if spelled_lists else ())]
    elif isinstance(gold, Sequence):
        found = [text for each in gold for text in accepted_answers(each, spelled_lists=spelled_lists)]
    else:
        found = [] if gold is None else [str(gold)]
    return tuple(dict.fromkeys(text.strip() for text in found if text.strip()))


def _listed(text: str) -> list[str]:
    if not (text.startswith("[") and text.endswith("]")):
        return []
    try:
        items = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = text[1:-1]
        return [] if re.search(r"[\[\]()\\]", inner) else [inner, *inner.split(",")]
    return [item for item in items if isinstance(item, str)]


@functools.lru_cache(maxsize=1 << 12)
def _same(prediction: str, gold: str) -> bool:
    left, right = _read(prediction, gold)
    if not left.every or not right.every:
        return False
    if left.every == right.every or left.bare == right.bare or _same_letters(prediction, gold):
        return True
    return (
        _same_list(prediction, gold)
        or _same_turned_name(left, right, gold)
        or _same_titled_name(prediction, gold)
        or _same_short_date(prediction, gold)
    )


def _read(prediction: str, gold: str) -> tuple[Words, Words]:
    """Both as words; "second" is 2 where both speak of ordinals, and not where two are counted."""
    if has_ordinal(gold) and has_ordinal(prediction):
        return words(prediction, ordinals=True), words(gold, ordinals=True)
    return words(prediction), words(gold)


def _f1(prediction: str, gold: str) -> float:
    if _same(prediction, gold):
        return 1.0
    written, wanted = (each.bare for each in _read(prediction, gold))
    if len(wanted) == 1 and wanted[0] in VERDICTS:
        verdict = leading_verdict(prediction)
        if verdict is not None:
            return float(verdict == wanted[0])
    shared = (Counter(written) & Counter(wanted)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(written), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _contains(prediction: str, gold: str) -> bool:
    if _same(prediction, gold):
        return True
    written, wanted = (each.bare for each in _read(prediction, gold))
    if not wanted or not written:
        return False
    if len(wanted) == 1 and wanted[0] in VERDICTS:
        return wanted[0] == (leading_verdict(prediction) or closing_verdict(prediction, written))
    size = len(wanted)
    places = [i for i in range(len(written) - size + 1) if written[i : i + size] == wanted]
    return is_asserted(prediction, written, places, size)


def _same_letters(prediction: str, gold: str) -> bool:
    """ "U.S." and "US", "Spider-Man" and "Spiderman"; what a blank parts is two words."""
    if "".join(words(prediction).bare) != "".join(words(gold).bare):
        return False
    return words(joined_letters(prediction)).bare == words(joined_letters(gold)).bare


def _same_list(prediction: str, gold: str) -> bool:
    """The same items in any order."""
    wanted = _SEPARATOR.split(gold[:_MAX_LIST_CHARS])
    if len(wanted) < 2:
        return False
    written = _SEPARATOR.split(prediction[:_MAX_LIST_CHARS])
    return len(written) == len(wanted) and sorted(map(_item, written)) == sorted(map(_item, wanted))


def _item(text: str) -> tuple[str, ...]:
    return words(text).bare


def _same_turned_name(left: Words, right: Words, gold: str) -> bool:
    """A name of two words in the other order ("Langmuir Irving")."""
    if len(right.every) != _NAME_WORDS or left.every != right.every[::-1]:
        return False
    return all(name.isalpha() and name[0].isupper() and len(name) > 2 for name in folded(gold).split())


def _same_titled_name(prediction: str, gold: str) -> bool:
    """A Chinese name with its title before or after it."""
    if not (_CHINESE.fullmatch(prediction.strip()) and _CHINESE.fullmatch(gold.strip())):
        return False
    left, right = _name_and_title(prediction.strip()), _name_and_title(gold.strip())
    return left is not None and left == right


def _name_and_title(text: str) -> tuple[str, str] | None:
    for title in _TITLES:
        if text.startswith(title):
            return text.removeprefix(title), title
        if text.endswith(title):
            return text.removesuffix(title), title
    return None


def _same_short_date(prediction: str, gold: str) -> bool:
    """ "4-14" where a month and a day are meant."""
    return any(
        short is not None and tuple(short.split()) == words(other).every
        for short, other in ((dates.month_and_day(prediction), gold), (dates.month_and_day(gold), prediction))
    )
