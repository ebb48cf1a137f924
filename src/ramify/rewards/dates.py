"""Dates in English, ISO and Chinese spelling, as three tokens: year, month, day."""

import re

from ramify.rewards import numerals

_MONTHS = """
january february march april may june july august september october november december
"""
_BY_NAME = {name: i for i, name in enumerate(_MONTHS.split(), 1)}
_BY_NAME |= {name[:3]: i for name, i in _BY_NAME.items()}
MONTHS = {name: f"month{'abcdefghijkl'[i - 1]}" for name, i in (*_BY_NAME.items(), ("sept", 9))}
"""The token of a month by its name, full or short."""
_NAME = "|".join(sorted((*_BY_NAME, "sept"), key=len, reverse=True))
_DAY = r"(?P<day>[0-3]?[0-9])(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[0-9]{3,4})"
_START = r"(?<![A-Za-z0-9_])"
"""Of a word; Chinese may stand directly before it."""
_WEEKDAY = re.compile(
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+(?:the\s+)?(?=\d* *month[a-l] \d)", re.IGNORECASE
)
_TO_TEN = "一二三四五六七八九十"
_SPELLINGS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_START}{_DAY}\s+(?:of\s+)?(?P<month>{_NAME})\b\.?(?:,?\s+(?:of\s+)?{_YEAR}\b)?",
        rf"{_START}(?P<month>{_NAME})\b\.?\s+{_DAY}\b(?:,?\s+(?:of\s+)?{_YEAR}\b)?",
        rf"(?<![0-9-]){_YEAR}[-/](?P<month>[01]?[0-9])[-/]{_DAY}(?![0-9-])",
        rf"(?<![0-9.-])(?P<year>[0-9]{{4}})\.(?P<month>[01]?[0-9])\.{_DAY}(?![0-9-]|\.[0-9])",
        rf"(?<![0-9])(?:(?P<year>[0-9]{{3,4}}|[\u3007零{_TO_TEN[:-1]}]{{4}})\s*年\s*)?"
        rf"(?P<month>[01]?[0-9]|[{_TO_TEN}]{{1,2}})\s*月\s*(?P<day>[0-3]?[0-9]|[{_TO_TEN}]{{1,3}})\s*[日号號]",
    )
]
_HINT = re.compile(
    rf"{_NAME}|[0-9]{{3,4}}[-/][0-9]|[0-9]{{4}}\.[0-9]{{1,2}}\.[0-9]|[0-9][./][0-9]{{4}}|月", re.IGNORECASE
)
_YEAR_LAST = re.compile(
    r"(?<![0-9./-])(?P<first>[0-3]?[0-9])(?P<mark>[./])(?P<second>[0-3]?[0-9])(?P=mark)(?P<year>[0-9]{4})(?![0-9/-])"
)
_MONTH_OF = re.compile(rf"\b({_NAME})\s+of\s+(?=[0-9]{{4}}\b)", re.IGNORECASE)
_BETWEEN = re.compile(
    r"(?<=month[a-l] [0-9]) +- +(?= *[0-9]* *month)|(?<=month[a-l] [0-9]{2}) +- +(?= *[0-9]* *month)"
)
_SHORT = re.compile(r"\s*([01]?[0-9])[-/]([0-3]?[0-9])\s*")
_MONTH_OF_YEAR = re.compile(r"\s*([0-9]{4})(?:[-/]([01][0-9])|\s*年\s*([01]?[0-9])\s*月)[\s.。]*")


def spelled_alike(text: str) -> str:
    """The text with each date as " YEAR month-M DAY " (no year where there is none)."""
    if _HINT.search(text) is None:
        return text
    for spelling in _SPELLINGS:
        text = spelling.sub(_tokens, text)
    if "/" in text or "." in text:
        text = _YEAR_LAST.sub(_year_last, text)
    text = _WEEKDAY.sub("", _MONTH_OF.sub(r"\1 ", text))
    return _BETWEEN.sub(" to ", text) if " - " in text else text


def month_and_day(text: str) -> str | None:
    """The date of a text that is nothing but "4-14" or "4/14"."""
    match = _SHORT.fullmatch(text)
    return _spelled("", int(match[1]), int(match[2])) if match else None


def month_of_year(text: str) -> str | None:
    """The month of a text that is nothing but "1941-06" or "1941年6月"."""
    match = _MONTH_OF_YEAR.fullmatch(text)
    month = int(match[2] or match[3]) if match else 0
    return f"{match[1]} {MONTHS[_MONTHS.split()[month - 1]]}" if match and 1 <= month <= 12 else None


def _year_last(match: re.Match[str]) -> str:
    """ "20.06.1837" has the day first; "20/06/1837" and "06/20/1837" where only one of the two can be a month."""
    first, second = int(match["first"]), int(match["second"])
    if match["mark"] == "/" and (first > 12) == (second > 12) and first != second:
        return match.group()
    day, month = (second, first) if second > 12 else (first, second)
    return _spelled(match["year"], month, day) or match.group()


def _tokens(match: re.Match[str]) -> str:
    name = match["month"].casefold()
    month = _BY_NAME.get(name[:3]) or _number(name)
    year = str(_number(match["year"])) if match["year"] else ""
    return _spelled(year, month, _number(match["day"])) or match.group()


def _number(digits: str) -> int:
    return int(digits) if digits.isascii() else numerals.chinese_number(digits) or 0


def _spelled(year: str, month: int, day: int) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f" {year} {MONTHS[_MONTHS.split()[month - 1]]} {day} "
