"""Scores of answers in words: exact match, F1 and containment, each the best over the accepted answers."""

import ast
import bisect
import functools
import re
from collections import Counter
from collections.abc import Sequence

from ramify.rewards import dates
from ramify.rewards.qa_assertion import VERDICTS, closing_verdict, is_asserted, leading_verdict
from ramify.rewards.qa_names import same_name
from ramify.rewards.qa_words import CURRENCIES, Words, has_ordinal, joined_letters, words

_SEPARATOR = re.compile(
    r"\s*(?:,\s+|[;\uff1b\uff0c、]|,(?=[^\s\d])|\band\b|&|(?<=[\w)\u300b\uff09]) ?(?:以及|[和与及]) ?(?=[\w\u300a(]))\s*"
)
_SIGNS_OF_MONEY = frozenset("$€£")
_INTERVAL = re.compile(r"\s*([\[(])[^,()\[\]]*\d[^,()\[\]]*,[^,()\[\]]*([\])])\s*")
_SMALL = "am as at be by do go he i if in is it me my no of ok on or so to up us we"
_SMALL_WORDS = frozenset(_SMALL.split())
"""What a sentence holds without saying it: "in" as an alias of India."""
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
    cut = tuple(gold[:_MAX_CHARS] for gold in golds)
    return float(any(_contains(prediction[:_MAX_CHARS], gold, cut) for gold in cut))


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
    if not left.every or not right.every or _other_brackets(prediction, gold):
        return False
    if left.every == right.every or left.bare == right.bare or _same_letters(prediction, gold):
        return True
    return (
        _same_list(prediction, gold)
        or same_name(prediction, left, gold, right)
        or _same_short_date(prediction, gold)
    )


def _other_brackets(prediction: str, gold: str) -> bool:
    """Whether both are intervals in brackets that are not the same."""
    if gold.strip()[:1] not in ("[", "(") or len(prediction) > _MAX_LIST_CHARS:
        return False
    left, right = _INTERVAL.fullmatch(prediction), _INTERVAL.fullmatch(gold)
    return left is not None and right is not None and left.groups() != right.groups()


def _read(prediction: str, gold: str) -> tuple[Words, Words]:
    """Both as words; "second" is 2 where both speak of ordinals, and not where two are counted.

    A sign of money in one of them says nothing where the other has no currency, and pounds are money where the other's are.
    """
    if has_ordinal(gold) and has_ordinal(prediction):
        left, right = words(prediction, ordinals=True), words(gold, ordinals=True)
    else:
        left, right = words(prediction), words(gold)
    if ("sterling" in left.every) != ("sterling" in right.every):
        left, right = left.with_sterling(), right.with_sterling()
    signs = (_SIGNS_OF_MONEY.isdisjoint(prediction), _SIGNS_OF_MONEY.isdisjoint(gold))
    if signs[0] != signs[1] and CURRENCIES.isdisjoint((right if signs[1] else left).every):
        return left.without(CURRENCIES), right.without(CURRENCIES)
    return left, right


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


def _contains(prediction: str, gold: str, golds: Sequence[str]) -> bool:
    if _same(prediction, gold):
        return True
    written, wanted = (each.bare for each in _read(prediction, gold))
    if not wanted or not written:
        return False
    if len(wanted) == 1 and wanted[0] in VERDICTS:
        return wanted[0] == (leading_verdict(prediction) or closing_verdict(prediction, written))
    if len(wanted) == 1 and wanted[0] in _SMALL_WORDS and not _stands_in_capitals(gold, prediction):
        return False
    size = len(wanted)
    places = _places(wanted, written)
    if places and len(golds) > 1:
        places = _not_within(places, size, written, golds)
    return is_asserted(prediction, written, places, size)


def _places(wanted: Sequence[str], written: Sequence[str]) -> list[int]:
    size = len(wanted)
    return [i for i in range(len(written) - size + 1) if written[i : i + size] == wanted]


def _not_within(places: list[int], size: int, written: Sequence[str], golds: Sequence[str]) -> list[int]:
    """The places that are no part of a longer gold: with "Warner Music", "Warner Music Group or Sony" says neither."""
    for longer in (words(gold).bare for gold in golds):
        if len(longer) > size and (starts := _places(longer, written)):
            last = ((i, starts[bisect.bisect_right(starts, i) - 1]) for i in places)
            places = [i for i, start in last if not start <= i <= start + len(longer) - size]
    return places


def _stands_in_capitals(gold: str, prediction: str) -> bool:
    """Whether a gold such as "US" or "Up" stands there so: in a sentence "us" is another word, and "It" may begin one."""
    inside = "" if gold.isupper() else r"(?<!^)(?<![.!?]\s)"
    return not gold.islower() and re.search(rf"{inside}\b{re.escape(gold.strip())}\b", prediction) is not None


def _same_letters(prediction: str, gold: str) -> bool:
    """ "U.S." and "US", "Spider-Man" and "Spiderman"; what a blank parts is two words."""
    if "".join(words(prediction).bare) != "".join(words(gold).bare):
        return False
    return words(joined_letters(prediction)).bare == words(joined_letters(gold)).bare


def _same_list(prediction: str, gold: str) -> bool:
    """The same items in any order."""
    wanted = _items(gold)
    if len(wanted) < 2:
        return False
    written = _items(prediction)
    return len(written) == len(wanted) and sorted(map(_item, written)) == sorted(map(_item, wanted))


def _items(text: str) -> list[str]:
    return [part for part in _SEPARATOR.split(text[:_MAX_LIST_CHARS]) if part.strip()]


def _item(text: str) -> tuple[str, ...]:
    return words(text).bare


def _same_short_date(prediction: str, gold: str) -> bool:
    """ "4-14" where a month and a day are meant, "1941-06" where a month of a year is."""
    return any(
        short is not None and sorted(short.split()) == sorted(words(other).every)
        for short, other in (
            (read(text), other)
            for read in (dates.month_and_day, dates.month_of_year)
            for text, other in ((prediction, gold), (gold, prediction))
        )
    )
