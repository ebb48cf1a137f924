"""Names in other forms, for whole answers: titles left out, "Davis, Don S.", acronyms, Roman numbers, umlauts.

Nothing here looks inside a sentence: what these forms drop or replace may tell two things apart there.
"""

import re
import unicodedata
from collections.abc import Sequence

from ramify.rewards.qa_words import Words, folded, words

_NAME_WORDS = 2
_MAX_CHARS = 300
"""No name is longer."""
_CHINESE = re.compile("[\u4e00-\u9fff]+")
_RANK = "(?:党委|党总支|党支部|常务)?副?"
"""Before a Chinese title, as part of it."""
_CHINESE_TITLES = (
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
_CHINESE_LEADING_TITLE = re.compile(rf"{_RANK}(?:{'|'.join(_CHINESE_TITLES)})")
_FORMS_OF_ADDRESS = frozenset({"教授", "先生", "女士", "博士", "老师", "医生"})
"""Said of persons alone; "北大校长" is not "北大"."""
_CHINESE_NAME = range(2, 4)
_TITLES = frozenset(
    {
        "mr",
        "mrs",
        "ms",
        "miss",
        "doctor",
        "professor",
        "sir",
        "dame",
        "king",
        "queen",
        "emperor",
        "empress",
        "pope",
    }
)
_LAST_FIRST = re.compile(r"\s*(?P<last>[^\s,\d]+(?: [^\s,\d]+)?), (?P<first>[^\s,\d]+(?: [^\s,\d]+){0,2})\s*")
_ACRONYM = re.compile(r"(?P<name>[^()]*[^()\s])\s*\((?P<short>[A-Z]{2,})\)[\s.]*")
_SMALL_WORDS = frozenset({"of", "the", "and", "for", "in", "on", "de"})
_ROMAN = re.compile(r"\b(?=[IVX]{2,}\b)X{0,3}(?:IX|IV|V?I{0,3})(?<=[IVX])\b")
_ROMAN_DIGITS = {"I": 1, "V": 5, "X": 10}
_UMLAUT = re.compile("[äöüÄÖÜ\u0308]")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})
_COUNTRIES = {
    **dict.fromkeys((("us",), ("u", "s"), ("usa",), ("u", "s", "a")), ("united", "states")),
    ("united", "states", "of", "america"): ("united", "states"),
    **dict.fromkeys((("uk",), ("u", "k")), ("united", "kingdom")),
    ("uae",): ("united", "arab", "emirates"),
    ("ussr",): ("soviet", "union"),
}


def same_name(prediction: str, left: Words, gold: str, right: Words) -> bool:
    """Whether two whole answers, given with their words, are one name in two forms."""
    if _same_acronym(prediction, right) or _same_acronym(gold, left):
        return True
    if _same_titled(prediction.strip(), gold.strip()) or _same_umlauts(prediction, gold):
        return True
    written, wanted = _in_full(prediction, left), _in_full(gold, right)
    return (
        written == wanted
        or _same_but_for_title(written, wanted)
        or (not set(written).isdisjoint(wanted) and _same_turned(prediction, left, gold, right))
    )


def _in_full(text: str, found: Words) -> tuple[str, ...]:
    """The words with Roman numbers in digits and countries by their names."""
    if _ROMAN.search(text):
        return words(_ROMAN.sub(_arabic, text)).bare
    return _COUNTRIES.get(found.bare, found.bare)


def _arabic(match: re.Match[str]) -> str:
    digits = [_ROMAN_DIGITS[letter] for letter in match.group()]
    return str(sum(-a if a < b else a for a, b in zip(digits, (*digits[1:], 0), strict=True)))


def _same_but_for_title(left: Sequence[str], right: Sequence[str]) -> bool:
    """One of them may leave the title out, where a name of two words is left."""
    shorter, longer = sorted((left, right), key=len)
    return (
        len(shorter) >= _NAME_WORDS
        and longer[:1] != shorter[:1]
        and longer[0] in _TITLES
        and longer[1:] == shorter
    )


def _same_turned(prediction: str, left: Words, gold: str, right: Words) -> bool:
    """A name of two words in the other order ("Langmuir Irving"), or with the last name first ("Davis, Don S.")."""
    if len(right.every) == _NAME_WORDS and left.every == right.every[::-1]:
        return all(name.isalpha() and name[0].isupper() and len(name) > 2 for name in folded(gold).split())
    return any(
        match is not None and words(f"{match['first']} {match['last']}").bare == other.bare
        for match, other in (
            (_LAST_FIRST.fullmatch(prediction), right),
            (_LAST_FIRST.fullmatch(gold), left),
        )
    )


def _same_titled(prediction: str, gold: str) -> bool:
    """A Chinese name with its title before or after it, or without a form of address."""
    if not (_CHINESE.fullmatch(prediction) and _CHINESE.fullmatch(gold)):
        return False
    left, right = _name_and_title(prediction), _name_and_title(gold)
    if left[0] != right[0] or left == right == (prediction, ""):
        return False
    titles = {left[1], right[1]} - {""}
    bare = "" in (left[1], right[1])
    return len(titles) == 1 and (not bare or (titles <= _FORMS_OF_ADDRESS and len(left[0]) in _CHINESE_NAME))


def _name_and_title(text: str) -> tuple[str, str]:
    leading = _CHINESE_LEADING_TITLE.match(text)
    if leading:
        return text[leading.end() :], leading.group()
    for title in _CHINESE_TITLES:
        if text.endswith(title):
            name = re.sub(f"{_RANK}$", "", text.removesuffix(title))
            return name, text.removeprefix(name)
    return text, ""


def _same_acronym(full: str, other: Words) -> bool:
    """ "Major League Soccer (MLS)" is also either of the two, where the letters are those of the words."""
    match = _ACRONYM.fullmatch(full.strip()) if "(" in full and len(full) <= _MAX_CHARS else None
    if match is None:
        return False
    initials = "".join(
        word[0] for word in re.split(r"[\s-]+", match["name"]) if word.lower() not in _SMALL_WORDS
    )
    if initials.upper() != match["short"]:
        return False
    return other.bare in (words(match["name"]).bare, words(match["short"]).bare)


def _same_umlauts(prediction: str, gold: str) -> bool:
    """ "Mueller" for "Müller"."""
    if _UMLAUT.search(prediction + gold) is None:
        return False
    left, right = (unicodedata.normalize("NFC", text).translate(_UMLAUTS) for text in (prediction, gold))
    return words(left).bare == words(right).bare != ()
