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
from ramify.rewards.qa_notation import one_notation

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
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", None),
    **dict.fromkeys(_DASHES, "-"),
}
_LETTERS = _Folding(str.maketrans(_OTHER_LETTERS))
_SQUARE_UNIT = re.compile(r"\b(?P<unit>ft|km|m|cm|mm|mi|in|yd)(?:\^?\{?2\}?|²)(?!\w)", re.IGNORECASE)
_CUBIC_UNIT = re.compile(r"\b(?P<unit>ft|km|m|cm|mm|mi|in|yd)(?:\^?\{?3\}?|³)(?!\w)", re.IGNORECASE)
_MIXED = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_POWER = re.compile(r"(?<=\d)(?=[\u2070\u00b9\u00b2\u00b3\u2074-\u2079])")
_MACRO = re.compile(r"\\(?:[A-Za-z]+\s*(?=\{)|(?=[ $%&_#]))")
_BLANKS, _LINES = re.compile(r"[^\S\n]+"), re.compile(r" ?\n[ \n]*")
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
_JOINT = re.compile(r"(?<=[^\W\d_])[.·•:/&*!_-]+(?=[^\W\d_])|(?<=\b[A-Za-z])-(?=\d)")
_MINUS = frozenset({"minus", "negative", "负", "負"})
_UNDER_TEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINAL_WORDS = {
    "first": "one",
    "second": "two",
    "third": "three",
    "fifth": "five",
    "eighth": "eight",
    "ninth": "nine",
    **{
        f"{number}th": number
        for number in ("four", "six", "seven", *_TEENS, "hundred", "thousand", "million", "billion")
    },
    "twelfth": "twelve",
    **{number.replace("y", "ieth"): number for number in _TENS},
}
_COUNTS = frozenset({*_UNDER_TEN, *_TEENS, "twelve", "a", "per", "hundred", "thousand"})
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
    **dict.fromkeys(("dollars", "usd"), "dollar"),
    **dict.fromkeys(("euros", "eur"), "euro"),
    "gbp": "sterling",
    "sq": "square",
}
_BELOW = {"h": "hour", "s": "second"}
_TEMPERATURES = {"f": "fahrenheit", "c": "celsius"}
CURRENCIES = frozenset({"dollar", "euro", "sterling"})
"""As words have them; signs of money are read so too."""
_SPELLINGS = {
    **dates.MONTHS,
    **{"st": "saint", "mt": "mount", "jr": "junior", "sr": "senior", "dr": "doctor", "prof": "professor"},
    **{"adm": "admiral", "gen": "general", "capt": "captain", "lt": "lieutenant", "gov": "governor"},
    **{"vs": "v", "versus": "v", "bce": "bc"},
    **{"theatre": "theater", "centre": "center", "colour": "color", "harbour": "harbor", "honour": "honor"},
    **{"defence": "defense", "programme": "program"},
    **{"organisation": "organization", "organisations": "organizations"},
}
"""One spelling for abbreviations, and for British and American ones."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of an answer in one spelling, all of them, and without articles."""

    every: tuple[str, ...]
    bare: tuple[str, ...]

    def without(self, left_out: frozenset[str]) -> "Words":
        """The same without some words."""
        every, bare = (tuple(w for w in found if w not in left_out) for found in (self.every, self.bare))
        return Words(every, bare)

    def with_sterling(self) -> "Words":
        """The same with pounds as money."""
        every, bare = (
            tuple("sterling" if w == "pound" else w for w in found) for found in (self.every, self.bare)
        )
        return Words(every, bare)


@functools.lru_cache(maxsize=1 << 12)
def words(text: str, *, ordinals: bool = False) -> Words:
    """Read an answer; with `ordinals`, "second" is 2 as "2nd" is."""
    form = folded(text)
    raw = _TOKEN.findall(form)
    lowered = [token.lower() for token in raw]
    if ordinals:
        lowered = _ordinals_as_cardinals(lowered)
    every = _spelled(lowered)
    kept = lowered if _ARTICLES.isdisjoint(lowered) else _without_articles(form, raw, lowered)
    return Words(every, every if len(kept) == len(lowered) else _spelled(kept))


def folded(text: str) -> str:
    """Compatibility characters, accents, apostrophes, dashes, LaTeX macros and dates in one form; case is kept."""
    text = _without_runs(text)
    if not text.isascii():
        text = _CUBIC_UNIT.sub(r"cubic \g<unit>", _SQUARE_UNIT.sub(r"square \g<unit>", text))
        # Both would be further digits of the number that they follow: 2½ is not 21/2, 5² not 52.
        text = _POWER.sub(" power ", _MIXED.sub(" ", text))
        text = unicodedata.normalize("NFKD", text)
        text = _without_runs(text.translate(_LETTERS))
    else:
        text = text.replace("'", "").replace("`", "")
    text = one_notation(text)
    if "\\" in text:
        text = _MACRO.sub("", text)
    if "<" in text:
        text = _EMPHASIS.sub("", text)
    if "." in text:
        text = _BARE_POINT.sub("0.", text)
    return _ORDINAL.sub("", dates.spelled_alike(text))


def _without_runs(text: str) -> str:
    """Blanks one by one, those of LaTeX too: runs of them would cost the patterns their speed."""
    if "\\ " in text:
        text = text.replace("\\ ", " ")
    if "  " in text or not text.isprintable():
        text = _LINES.sub("\n", _BLANKS.sub(" ", text))
    return text


def has_ordinal(text: str) -> bool:
    """Whether an ordinal stands in the text, so that ordinals in words are to be read as numbers."""
    return _ORDINAL.search(text) is not None or not _ORDINAL_WORDS.keys().isdisjoint(words(text).every)


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


def _ordinals_as_cardinals(tokens: Sequence[str]) -> list[str]:
    """Ordinals as the number words of the same value; a second that is counted is a unit."""
    return [
        token if token == "second" and _is_count(before) else _ORDINAL_WORDS.get(token, token)
        for before, token in zip(("", *tokens), tokens, strict=False)
    ]


def _is_count(token: str) -> bool:
    return token in _COUNTS or numerals.is_number(token)


def _spelled(tokens: Sequence[str]) -> tuple[str, ...]:
    written = [
        _number(token) if token[0] in _NUMBER_STARTS else _SPELLINGS.get(token, token)
        for token in _with_chinese_numbers(tokens)
    ]
    return tuple(_with_units(_signed(numerals.in_digits(written))))


def _with_units(tokens: Sequence[str]) -> list[str]:
    """Units in one spelling where they stand behind a number, a power or "per"."""
    written: list[str] = []
    before = ""
    for token in tokens:
        if token in _UNITS and before and _takes_unit(before):
            token = _UNITS[token]
        elif token in _BELOW and before == "per":
            token = _BELOW[token]
        elif token in _TEMPERATURES and before == "degree":
            token = _TEMPERATURES[token]
        written.append(token)
        before = token
    return written


def _takes_unit(token: str) -> bool:
    return token in ("square", "cubic", "per") or numerals.is_number(token.lstrip(_BOUNDS).rstrip("+"))


def _signed(tokens: Sequence[str]) -> Sequence[str]:
    """ "minus 5" as -5; behind a number it is a subtraction."""
    if _MINUS.isdisjoint(tokens):
        return tokens
    written: list[str] = []
    for position, token in enumerate(tokens):
        negative = (
            bool(written) and written[-1] in _MINUS and token[0].isdigit() and numerals.is_number(token)
        )
        if negative and not (position > 1 and numerals.is_number(written[-2])):
            written[-1] = numerals.canonical(f"-{token}")
        else:
            written.append(token)
    return written


def _number(token: str) -> str:
    """A number in its one spelling, between the signs of a bound ("< 1,000", "18+")."""
    if token.isdecimal() and token[0] != "0":
        return token
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
            scaled = numerals.scaled_by_chinese(written[-1], run) if written else None
            value = numerals.chinese_number(run)
            if scaled is not None:
                written[-1] = scaled
                # 1亿2000万 is one number of two parts.
                if len(written) > 1 and (whole := numerals.joined_groups(written[-2], scaled)) is not None:
                    written[-2:] = [whole]
            else:
                written.append(run if value is None else str(value))
            run = ""
        if token:
            written.append(token)
    return written
