r"""Answers as words: one spelling for what is written in many ways.

Beyond SQuAD's normalisation (arXiv 1606.05250: lower case, no punctuation, no articles): Unicode is folded, accents
too; dates, numbers in words, ordinals and units have one spelling; a Chinese character is a word; signs, decimal points
and the symbols that are part of a word or number (C++, AB-, <5) stay.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from ramify.rewards import dates, numerals

_APOSTROPHES = "'`\u00b4\u2018\u2019\u02bc"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"


class _Folding(dict[int, str | int | None]):
    """Letters with one spelling; digits of every script in ASCII; accents go. What is not listed is read once."""

    def __missing__(self, point: int) -> str | int | None:
        letter = chr(point)
        accent = "\u0300" <= letter <= "\u036f"
        self[point] = None if accent else str(unicodedata.digit(letter)) if letter.isdigit() else point
        return self[point]


_OTHER_LETTERS: dict[str, str | int | None] = {
    **dict(zip("ðÐøØłŁđĐ\u0131", "dDoOlLdDi", strict=True)),
    **{"♯": "#", "♭": "b", "þ": "th", "Þ": "Th", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ß": "ss"},
    **dict.fromkeys(_APOSTROPHES, ""),
    **dict.fromkeys(_DASHES, "-"),
}
_LETTERS = _Folding(str.maketrans(_OTHER_LETTERS))
_SQUARE_UNIT = re.compile(r"\b(?P<unit>ft|km|m|cm|mm|mi|in|yd)(?:\^?\{?2\}?|²)(?!\w)", re.IGNORECASE)
_CUBIC_UNIT = re.compile(r"\b(?P<unit>ft|km|m|cm|mm|mi|in|yd)(?:\^?\{?3\}?|³)(?!\w)", re.IGNORECASE)
_MACRO = re.compile(r"\\(?:[A-Za-z]+\s*(?=\{)|(?=[ $%&_#]))")
_EMPHASIS = re.compile(r"</?(?:b|i|u|em|strong)>", re.IGNORECASE)
_BARE_POINT = re.compile(r"(?<![\w.)])\.(?=[0-9])")
_CJK = "\u3007\u3400-\u4dbf\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7af"
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9])(?:\.[0-9]+)?(?:-[0-9]+)*"
_TOKEN = re.compile(
    rf"(?:(?<![-=<>])(?:[<>]=?|[≤≥])\s*)?(?:(?<![\w.)])-)?{_NUMBER}(?:\+(?![\w+]))?"
    r"|[%°]"
    rf"|[{_CJK}]"
    # Ions and blood groups end with a sign ("Cl-", "AB-"); a longer word with a hyphen does not ("pre- and post-war").
    rf"|[A-Z][A-Za-z]{{0,2}}[0-9]?-(?![\w-])"
    rf"|[^\W\d_{_CJK}]+[0-9]*(?:(?:\+\+?|\#)(?![\w+#]))?"
    rf"|[^\W_{_CJK}]"
)
_ORDINAL = re.compile(r"(?<=[0-9])(?:st|nd|rd|th)\b", re.IGNORECASE)
_BOUNDS = "<>=≤≥"
_BOUND_SIGNS = {"<=": "≤", ">=": "≥"}
_NUMBER_STARTS = frozenset("0123456789-<>≤≥")
_INITIALS = re.compile(r"(?<![^\W_])([^\W\d_])\.?\s+(?=[^\W\d_](?![^\W_]))")
_JOINT = re.compile(r"(?<=[^\W\d_])[.·•:/&*!_-]+(?=[^\W\d_])")
_ARTICLES = frozenset({"a", "an", "the"})
_UNITS = {
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometers"), "kilometer"),
    **dict.fromkeys(("m", "metre", "metres", "meters"), "meter"),
    **dict.fromkeys(("cm", "centimetre", "centimetres", "centimeters"), "centimeter"),
    **dict.fromkeys(("mm", "millimetre", "millimetres", "millimeters"), "millimeter"),
    **dict.fromkeys(("ft", "feet"), "foot"),
    **dict.fromkeys(("mi", "miles"), "mile"),
    **dict.fromkeys(("kg", "kilograms", "kilogramme", "kilogrammes"), "kilogram"),
    **dict.fromkeys(("lb", "lbs", "pounds"), "pound"),
    **dict.fromkeys(("min", "mins", "minutes"), "minute"),
    **dict.fromkeys(("hr", "hrs", "hours"), "hour"),
    **dict.fromkeys(("sec", "secs", "seconds"), "second"),
    **dict.fromkeys(("yrs", "years"), "year"),
    **dict.fromkeys(("°", "degrees"), "degree"),
    **dict.fromkeys(("%", "pct"), "percent"),
    "sq": "square",
}


@dataclass(frozen=True, slots=True)
class Words:
    """The words of an answer in one spelling, all of them, and without articles."""

    every: tuple[str, ...]
    bare: tuple[str, ...]


@functools.lru_cache(maxsize=1 << 12)
def words(text: str) -> Words:
    """Read an answer."""
    form = folded(text)
    raw = _TOKEN.findall(form)
    lowered = [token.lower() for token in raw]
    every = _spelled(lowered)
    kept = lowered if _ARTICLES.isdisjoint(lowered) else _without_articles(form, raw, lowered)
    return Words(every, every if len(kept) == len(lowered) else _spelled(kept))


def folded(text: str) -> str:
    """Compatibility characters, accents, apostrophes, dashes, LaTeX macros and dates in one form; case is kept."""
    if not text.isascii():
        text = _CUBIC_UNIT.sub(r"cubic \g<unit>", _SQUARE_UNIT.sub(r"square \g<unit>", text))
        text = unicodedata.normalize("NFKD", text)
        text = text.translate(_LETTERS)
    else:
        text = text.replace("'", "").replace("`", "")
    if "\\" in text:
        text = _MACRO.sub("", text)
    if "<" in text:
        text = _EMPHASIS.sub("", text)
    if "." in text:
        text = _BARE_POINT.sub("0.", text)
    return _ORDINAL.sub("", dates.spelled_alike(text))


def joined_letters(text: str) -> str:
    """The text with the letters of initials and of words with punctuation in them run together: U.S., E. H., AC/DC."""
    return _JOINT.sub("", _INITIALS.sub(r"\1", folded(text)))


def _without_articles(form: str, raw: Sequence[str], lowered: Sequence[str]) -> list[str]:
    """Drop articles only before another word: the A of "Vitamin A" and the name "The The" stay."""
    last = max((i for i, token in enumerate(lowered) if token not in _ARTICLES), default=-1)
    before_blank = [form[match.end() : match.end() + 1].isspace() for match in _TOKEN.finditer(form)]
    return [
        token
        for position, token in enumerate(lowered)
        if position >= last
        or not (token == "the" or (before_blank[position] and _is_indefinite(raw, position)))
    ]


def _is_indefinite(raw: Sequence[str], position: int) -> bool:
    """Whether "a" or "an" is an article there, and not an initial ("A P J") or a letter by itself ("Vitamin A pill")."""
    token, following = raw[position], raw[position + 1]
    is_letter = token == "A" and (len(following) == 1 or (position > 0 and not following[0].isupper()))
    return token.lower() in ("a", "an") and not is_letter


def _spelled(tokens: Sequence[str]) -> tuple[str, ...]:
    written: list[str] = []
    for token in _with_chinese_numbers(tokens):
        after_number = bool(written) and numerals.is_number(written[-1].lstrip(_BOUNDS).rstrip("+"))
        if token[0] in _NUMBER_STARTS:
            written.append(_number(token))
        elif token in _UNITS and (after_number or (written and written[-1] in ("square", "cubic"))):
            written.append(_UNITS[token])
        else:
            written.append(dates.MONTHS.get(token, token))
    return tuple(numerals.in_digits(written))


def _number(token: str) -> str:
    """A number in its one spelling, between the signs of a bound ("< 1,000", "18+")."""
    number = token.lstrip(_BOUNDS).lstrip().rstrip("+")
    value = numerals.canonical(number) if numerals.is_number(number) else number
    before, _, after = token.partition(number)
    return f"{_BOUND_SIGNS.get(before.strip(), before.strip())}{value}{after}"


def _with_chinese_numbers(tokens: Sequence[str]) -> list[str]:
    if not any(token in numerals.CHINESE_NUMERAL for token in tokens):
        return list(tokens)
    written: list[str] = []
    run = ""
    for token in (*tokens, ""):
        if token and token in numerals.CHINESE_NUMERAL:
            run += token
            continue
        if run:
            value = numerals.chinese_number(run)
            written.append(run if value is None else str(value))
            run = ""
        if token:
            written.append(token)
    return written
