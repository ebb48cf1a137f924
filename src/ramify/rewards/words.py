r"""Normalising answers to words, so that different notations of the same answer become equal.

SQuAD's normalisation (`squad`) deletes all punctuation and every article. Here signs, decimal points and the letter in
"Vitamin A" stay, and differences of notation are removed: accents, initials, units, dates, numbers in words. Each Chinese
character is a word. `docs/scoring.md` lists the notations, each with the number of golds that need it.
"""

import functools
import re
import unicodedata

from ramify.rewards.numerals import CHINESE_NUMERALS, canonical, chinese_number, in_digits

MAX_CHARS = 10_000
"""Most characters that are read of an answer; no real answer in words is longer."""
_NAMES = """
january february march april may june july august september october november december
"""
_MONTHS = _NAMES.split()
_MONTH = "|".join((*_MONTHS, *(month[:3] for month in _MONTHS), "sept"))
_LETTERS = str.maketrans(
    {
        **dict(zip("ðÐøØłŁđĐı", "dDoOlLdDi", strict=True)),
        **{"♯": "#", "æ": "ae", "Æ": "Ae", "œ": "oe", "ß": "ss", "þ": "th"},
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("'`\u00b4\u2018\u2019\u02bb\u02bc\u00ad\u200b", ""),
        **dict.fromkeys(map(chr, range(0x300, 0x370)), ""),
    }
)
"""Letters without a Unicode decomposition, dashes, and characters to remove: apostrophes, accents, zero-width marks."""
_RAISED = re.compile("(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215e])")
"""The position before superscript digits and fractions. They must not join the number before them: 5² is not 52."""
_MACRO = re.compile(r"\\(?:[A-Za-z]+\s*(?=\{)|(?=[ $%&_#]))")
_ARTICLE = re.compile(
    r"^\W*A\s+(?=[^\W\d_]{2})|\bA\s+(?=[A-Z][^\W\d_])|\b(?:[Tt]he|THE|an?|An)\s+(?!(?i:the|an?)\b)(?=\w)"
)
"""An article before another word; but not the letter in "Vitamin A deficiency", nor the name "The The"."""
_INITIALS = re.compile(r"\b([A-Z])(?:\.\s*|\s+)(?=[A-Z](?![^\W_]))")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_DIGIT = re.compile(r"\d")
_WITH_DIGITS = [
    (hint, re.compile(pattern, re.IGNORECASE), replacement)
    for hint, pattern, replacement in (
        (" of ", rf"\b(\d{{1,2}}(?:st|nd|rd|th)?) of (?=(?:{_MONTH})\b)", r"\1 "),
        ("", r"(?<=\d)(?:st|nd|rd|th)\b", ""),
        ("$", r"(?:\bUS)?\$ ?(\d(?:[\d,.]*\d)?(?: (?:thousand|million|billion|trillion)\b)?)", r"\1 dollar"),
        ("-", r"(?:from )?(?<![\w,.])(\d{3,4}) ?- ?(\d{3,4})(?![\w,-])", r"\1-\2"),
        *(
            (word, rf"(?:from )?(?<![\w,.])(\d{{3,4}}){word}(\d{{3,4}})(?![\w,])", r"\1-\2")
            for word in (" to ", " until ", " through ")
        ),
        ("2", r"(?<=[\d ])(km|mi|ft|cm|m)\^?2\b", r"square \1"),
        ("sq", r"\bsq\.? ?(?=(?:km|mi|ft|cm|m|feet|miles)\b)", "square "),
    )
]
"""Days of a month, ordinals, money, periods, areas: (text that must occur, pattern, replacement)."""
_DATE = re.compile(
    r"\b(\d{4})-(\d\d?)-(\d\d?)\b|(?:(?<!\d)(\d{4})\s*年\s*)?(?<!\d)(\d\d?)\s*月\s*(\d\d?)\s*[日号]"
)
_CHINESE_NUMBER = re.compile(f"[{CHINESE_NUMERALS}]+")
_CJK = "\u3007\u3400-\u4dbf\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7af"
_TOKEN = re.compile(
    r"(?:(?<![\w.)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:-[0-9]+)*|(?<![\w.)])\.[0-9]+"
    rf"|[{_CJK}]|[^\W\d_{_CJK}]+|(?<=\w)[+#]+|[%°<>≤≥]|[^\W_{_CJK}]"
)
_SPELLINGS = {
    **dict.fromkeys(("and", "和", "与", "及"), ""),
    **{month[:3]: month for month in _MONTHS if month != "may"},
    **{"sept": "september", "jr": "junior", "sr": "senior", "dr": "doctor", "st": "saint"},
    **{"theatre": "theater", "centre": "center"},
    **{"%": "percent", "°": "degree", "degrees": "degree", "dollars": "dollar"},
    **{
        "km": "kilometer",
        "kilometers": "kilometer",
        "kilometres": "kilometer",
        "m": "meter",
        "metres": "meter",
    },
    **{"meters": "meter", "mi": "mile", "miles": "mile", "ft": "foot", "feet": "foot", "mm": "millimeter"},
    **{"lb": "pound", "lbs": "pound", "pounds": "pound", "hours": "hour", "years": "year", "months": "month"},
    **{"first": "one", "second": "two", "third": "three", "fourth": "four", "fifth": "five", "sixth": "six"},
    **{"seventh": "seven", "eighth": "eight", "ninth": "nine", "tenth": "ten", "eleventh": "eleven"},
    **{"twelfth": "twelve", "nineteenth": "nineteen", "twentieth": "twenty"},
}
"""Words that join the items of a list are dropped, as commas are; abbreviations, units and ordinals get one spelling."""


def joined(text: str) -> str:
    """The text with initials and hyphenated words joined: "U.S." becomes "US", "Spider-Man" becomes "SpiderMan"."""
    return _INITIALS.sub(r"\1", _HYPHEN.sub("", text))


@functools.lru_cache(maxsize=1 << 12)
def words(text: str) -> tuple[str, ...]:
    """The normalised words of an answer; a hyphen between letters separates words."""
    tokens = [_SPELLINGS.get(token, token) for token in _TOKEN.findall(_plain(text).lower())]
    return tuple(in_digits([token if token.isalpha() else canonical(token) for token in tokens if token]))


def _plain(text: str) -> str:
    """The text without differences of notation; case is kept."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", _RAISED.sub(" ", text)).translate(_LETTERS)
        text = _CHINESE_NUMBER.sub(lambda match: str(chinese_number(match.group())), text)
    else:
        text = text.replace("'", "").replace("`", "")
    if "\\" in text:
        text = _MACRO.sub("", text)
    if _DIGIT.search(text):
        if "-" in text or "月" in text:
            text = _DATE.sub(_spelled_date, text)
        for hint, pattern, replacement in _WITH_DIGITS:
            if hint in text:
                text = pattern.sub(replacement, text)
    return _ARTICLE.sub("", text)


def _spelled_date(match: re.Match[str]) -> str:
    year = match[1] or match[4] or ""
    month, day = int(match[2] or match[5]), int(match[3] or match[6])
    return f" {_MONTHS[month - 1]} {day} {year} " if 1 <= month <= 12 else match.group()
