r"""Normalising answers to words, so that different notations of the same answer become equal.

SQuAD's normalisation (`answer_scores`) deletes all punctuation and every article. Here signs, decimal points and the letter
in "Vitamin A" stay, and differences of notation are removed: accents, initials, units, dates, numbers in words ("one hundred
and five", "4.4 million", Chinese numbers below 1,000). Each Chinese character is a word. `docs/scoring.md` lists the
notations, each with the number of golds that need it.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

_UNITS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: i for i, word in enumerate(_UNITS.split())} | {
    word: 10 * i for i, word in enumerate(_TENS.split(), start=2)
}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
NUMBER_WORDS = _SMALL.keys() | SCALES.keys()
_GROUPED = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_CHINESE_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_CHINESE_SCALES = {"十": 10, "百": 100}
CHINESE_NUMERALS = "".join((*_CHINESE_DIGITS, *_CHINESE_SCALES))
MAX_CHARS = 10_000
"""Most characters that are read of an answer; no real answer in words is longer."""
_NAMES = """
january february march april may june july august september october november december
"""
MONTHS = _NAMES.split()
_MONTH = "|".join((*MONTHS, *(month[:3] for month in MONTHS), "sept"))
_CLOCK = re.compile(
    r"(?:at )?(\d{1,2})(?:([:.])(\d\d))?(?::(\d\d))? ?(?:([ap])\.? ?m\.?|(o'?clock))?\.?"
    r"|(?:at )?(?:12(?::00)? )?(noon|midnight)\.?"
)
_CLOCK_HINT = re.compile(r"\d *(?::|\\[!:]|o'?clock|\\text|[ap]\.? ?m\b)|noon|midnight", re.IGNORECASE)
_MAX_CLOCK = 60
_IN_CLOCK = re.compile(r"\\(?:text|mbox|mathrm)\b\s*|\\[!,;: ]|[${}\"~]")
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
_NOT_APPLICABLE = re.compile(r"\bn/a\b", re.IGNORECASE)
_INITIALS = re.compile(r"\b([A-Z])(?:\.\s*|\s+)(?=[A-Z](?![^\W_]))")
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_DIGIT = re.compile(r"\d")
_WITH_DIGITS = [
    (hint, re.compile(pattern, re.IGNORECASE), replacement)
    for hint, pattern, replacement in (
        (" of ", rf"\b(\d{{1,2}}(?:st|nd|rd|th)?) of (?=(?:{_MONTH})\b)", r"\1 "),
        ("", r"(?<=\d)(?:st|nd|rd|th)\b", ""),
        ("$", r"(?:\bUS)?\$ ?(\d(?:[\d,.]*\d)?(?: (?:thousand|million|billion|trillion)\b)?)", r"\1 dollar"),
        ("-", r"(?:from )?(?<![\w,.-])(\d{1,4}) ?- ?(\d{1,4})(?![\w-]|,\d)", r"\1-\2"),
        *(
            (word, rf"(?:from )?(?<![\w,.-])(\d{{1,4}}){word}(\d{{1,4}})(?!\w|,\d)", r"\1-\2")
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
_ORDINALS = {
    **{"first": "one", "second": "two", "third": "three", "fourth": "four", "fifth": "five", "sixth": "six"},
    **{"seventh": "seven", "eighth": "eight", "ninth": "nine", "tenth": "ten", "eleventh": "eleven"},
    **{"twelfth": "twelve", "nineteenth": "nineteen", "twentieth": "twenty"},
}
_ORDINAL = re.compile(rf"\b(?:{'|'.join(_ORDINALS)}|\d+(?:st|nd|rd|th))\b", re.IGNORECASE)
_SPELLINGS = {
    **dict.fromkeys(("and", "和", "与", "及"), ""),
    **{month[:3]: month for month in MONTHS if month != "may"},
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
    **_ORDINALS,
}
"""Words that join the items of a list are dropped, as commas are; abbreviations, units and ordinals get one spelling."""


def canonical(digits: str) -> str:
    """Return a number in digits without thousands separators, padding zeros or "-0"; anything else unchanged."""
    if digits.isdecimal() and digits[0] != "0":
        return digits
    if _GROUPED.fullmatch(digits):
        digits = digits.replace(",", "")
    elif not _NUMBER.fullmatch(digits):
        return digits
    sign, digits = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
    whole, _, part = digits.partition(".")
    value = f"{whole.lstrip('0') or '0'}.{part.rstrip('0')}".rstrip(".")
    return value if value == "0" else sign + value


def in_digits(tokens: Sequence[str]) -> list[str]:
    """Replace each run of number words by one number; scale words multiply the number before them."""
    if NUMBER_WORDS.isdisjoint(tokens):
        return list(tokens)
    written: list[str] = []
    position = 0
    while position < len(tokens):
        end, value = _run(tokens, position)
        written.append(tokens[position] if end == position else canonical(format(value, "f")))
        position = max(end, position + 1)
    return written


def chinese_number(numerals: str) -> int:
    """Return the value of a run of Chinese numerals, either with place words ("三十二") or digit by digit ("二零二零")."""
    if not any(c in _CHINESE_SCALES for c in numerals):
        return int("".join(str(_CHINESE_DIGITS[c]) for c in numerals[:30]))
    total = digit = 0
    for c in numerals:
        if c in _CHINESE_SCALES:
            total, digit = total + (digit or 1) * _CHINESE_SCALES[c], 0
        else:
            digit = _CHINESE_DIGITS[c]
    return total + digit


def same_clock_time(written: str, wanted: str) -> bool | None:
    """Compare times of day: 3:30 pm = 15:30; None unless both are such times and one of them says "am", "pm" or "o'clock".

    "am" or "pm" may be left out: 3:30 = 3:30 pm.
    """
    if len(wanted) > _MAX_CLOCK or not _CLOCK_HINT.search(wanted):
        return None
    left, right = _clock(written), _clock(wanted)
    if left is None or right is None or not (left[2] or right[2]):
        return None
    if (left[1] and right[1]) or not (0 < left[0][0] <= 12 and 0 < right[0][0] <= 12):
        return _in_24_hours(*left[:2]) == _in_24_hours(*right[:2])
    return left[0] == right[0]


def is_clock_time(text: str) -> bool:
    """Return True if a text can only be a time of day: "10:30 AM", "noon"."""
    time = _clock(text)
    return time is not None and time[2]


def _clock(text: str) -> tuple[tuple[int, ...], str, bool] | None:
    """Return hour, minute and second as written, "a", "p" or "", and whether the text can only be a time of day."""
    if len(text) > _MAX_CLOCK:
        return None
    match = _CLOCK.fullmatch(re.sub(" ?: ?", ":", " ".join(_IN_CLOCK.sub(" ", text.lower()).split())))
    if match is None:
        return None
    hour, sign, minute, second, half, oclock, named = match.groups()
    if named:
        return (12, 0, 0), "p" if named == "noon" else "a", True
    if not (half or oclock or sign == ":"):
        return None
    return (int(hour), int(minute or 0), int(second or 0)), half or "", bool(half or oclock)


def _in_24_hours(time: tuple[int, ...], half: str) -> tuple[int, ...]:
    return (time[0] % 12 + 12 * (half == "p"), *time[1:]) if half else time


def is_number(text: str) -> bool:
    """Return True if a text in words is one number, and not an ordinal: "5 million", "twenty-one"."""
    tokens = words(text)
    return len(tokens) == 1 and tokens[0].lstrip("-")[:1].isdecimal() and not _ORDINAL.search(text)


def _run(tokens: Sequence[str], start: int) -> tuple[int, Decimal]:
    """Return the end and the value of the number that begins at `start`; the end is `start` if no number word follows."""
    total, group, end = Decimal(0), Decimal(0), start
    if _NUMBER.fullmatch(tokens[start]):
        if start + 1 == len(tokens) or tokens[start + 1] not in SCALES:
            return start, total
        group, end = Decimal(tokens[start]), start + 1
    while end < len(tokens):
        token = tokens[end]
        if token in _SMALL and _fits(group, _SMALL[token]):
            group += _SMALL[token]
        elif token == "hundred" and 0 < group < 100:
            group *= 100
        elif token in SCALES and token != "hundred" and group:
            total, group = total + group * SCALES[token], Decimal(0)
        else:
            break
        end += 1
    return end, total + group


def _fits(group: Decimal, small: int) -> bool:
    """Return True if a small number continues a group: "twenty" + "two" and "hundred" + "five" do, "nineteen" + "ten" do not."""
    below = group % 100
    return group < 10_000 and (below == 0 or (below >= 20 and below % 10 == 0 and 0 < small < 10))


def joined(text: str) -> str:
    """Return the text with initials and hyphenated words joined: "U.S." becomes "US", "Spider-Man" becomes "SpiderMan"."""
    return _INITIALS.sub(r"\1", _HYPHEN.sub("", text))


@functools.lru_cache(maxsize=1 << 12)
def words(text: str) -> tuple[str, ...]:
    """Return the normalised words of an answer; a hyphen between letters separates words."""
    tokens = [_SPELLINGS.get(token, token) for token in _TOKEN.findall(_plain(text).lower())]
    return tuple(in_digits([token if token.isalpha() else canonical(token) for token in tokens if token]))


def _plain(text: str) -> str:
    """Return the text without differences of notation; its case stays."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", _RAISED.sub(" ", text)).translate(_LETTERS)
        text = _CHINESE_NUMBER.sub(lambda match: str(chinese_number(match.group())), text)
    else:
        text = text.replace("'", "").replace("`", "")
    if "\\" in text:
        text = _MACRO.sub("", text)
    if "/" in text:
        text = _NOT_APPLICABLE.sub("NA", text)
    if _DIGIT.search(text):
        if "-" in text or "月" in text:
            text = _DATE.sub(_spelled_date, text)
        lowered = text.lower()
        for hint, pattern, replacement in _WITH_DIGITS:
            if hint in lowered:
                text = pattern.sub(replacement, text)
    return _ARTICLE.sub("", text)


def _spelled_date(match: re.Match[str]) -> str:
    year = match[1] or match[4] or ""
    month, day = int(match[2] or match[5]), int(match[3] or match[6])
    return f" {MONTHS[month - 1]} {day} {year} " if 1 <= month <= 12 else match.group()
