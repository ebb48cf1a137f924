"""Numbers in digits and in English words ("one hundred and five", "4.4 million"), and Chinese numbers below 1,000."""

import re
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
_WORDS = _SMALL.keys() | SCALES.keys()
_GROUPED = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_CHINESE_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_CHINESE_SCALES = {"十": 10, "百": 100}
CHINESE_NUMERALS = "".join((*_CHINESE_DIGITS, *_CHINESE_SCALES))


def canonical(digits: str) -> str:
    """A number in digits without thousands separators, padding zeros or "-0"; anything else unchanged."""
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
    if _WORDS.isdisjoint(tokens):
        return list(tokens)
    written: list[str] = []
    position = 0
    while position < len(tokens):
        end, value = _run(tokens, position)
        written.append(tokens[position] if end == position else canonical(format(value, "f")))
        position = max(end, position + 1)
    return written


def chinese_number(numerals: str) -> int:
    """The value of a run of Chinese numerals, either with place words ("三十二") or digit by digit ("二零二零")."""
    if not any(c in _CHINESE_SCALES for c in numerals):
        return int("".join(str(_CHINESE_DIGITS[c]) for c in numerals[:30]))
    total = digit = 0
    for c in numerals:
        if c in _CHINESE_SCALES:
            total, digit = total + (digit or 1) * _CHINESE_SCALES[c], 0
        else:
            digit = _CHINESE_DIGITS[c]
    return total + digit


def _run(tokens: Sequence[str], start: int) -> tuple[int, Decimal]:
    """End and value of the number that begins at `start`; the end is `start` if no number word follows."""
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
    """Whether a small number continues a group: "twenty" + "two" and "hundred" + "five" do, "nineteen" + "ten" do not."""
    below = group % 100
    return group < 10_000 and (below == 0 or (below >= 20 and below % 10 == 0 and 0 < small < 10))
