"""Numbers in digits and in words, English ("one hundred and twenty", "4.4 million") and Chinese."""

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

_UNITS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: 10 * i for i, word in enumerate(_TENS.split())} | {
    word: i for i, word in enumerate(_UNITS.split())
}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = "half third fourth fifth sixth seventh eighth ninth tenth"
_PARTS = {word: i for i, word in enumerate(_ORDINALS.split(), start=2)} | {"halve": 2, "quarter": 4}
_CHINESE_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2, "兩": 2}
_CHINESE_SCALES = {"十": 10, "百": 100, "千": 1000}
_CHINESE_GROUPS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
CHINESE_NUMERAL = "".join((*_CHINESE_DIGITS, *_CHINESE_SCALES, *_CHINESE_GROUPS))
_MAX_CHINESE = 30
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_NUMBER = re.compile(rf"-?(?:{_GROUPED.pattern}|[0-9]+)(?:\.[0-9]+)?")
_MOST_HUNDREDS = 100
"""Of hundreds: "ninety-nine hundred" is a number, "one hundred hundred" is two."""


def canonical(digits: str) -> str:
    """One spelling of a number in digits: no separators, no padding with zeros, "-0" is "0"."""
    sign = "-" if digits.startswith("-") else ""
    whole, _, part = digits.lstrip("+-").partition(".")
    whole = (whole.replace(",", "") if _GROUPED.fullmatch(whole) else whole).lstrip("0") or "0"
    part = part.rstrip("0")
    value = f"{whole}.{part}" if part else whole
    return value if value == "0" else sign + value


def is_number(token: str) -> bool:
    """Whether the token is a number in ASCII digits; commas may only separate thousands."""
    return _NUMBER.fullmatch(token) is not None


def in_digits(tokens: Sequence[str]) -> list[str]:
    """Runs of number words as one canonical number each, and scale words multiplied into the number before them."""
    if not any(token in _SMALL or token in SCALES for token in tokens):
        return list(tokens)
    written: list[str] = []
    position = 0
    while position < len(tokens):
        end, value = _run(tokens, position)
        if end > position:
            written.append(canonical(format(value, "f")))
            position = end
        else:
            written.append(tokens[position])
            position += 1
    return written


def fraction_in_words(tokens: Sequence[str]) -> Fraction | None:
    """ "one half", "two thirds", "three quarters"; None for anything else."""
    if len(tokens) != 2 or tokens[0] not in _SMALL:
        return None
    above, below = _SMALL[tokens[0]], _PARTS.get(tokens[1].removesuffix("s"))
    return None if below is None or above == 0 else Fraction(above, below)


def chinese_number(text: str) -> int | None:
    """The value of a run of Chinese numerals, by places or digit by digit; None when it is none."""
    if len(text) > _MAX_CHINESE:
        return None
    if not any(c in _CHINESE_SCALES or c in _CHINESE_GROUPS for c in text):
        return int("".join(str(_CHINESE_DIGITS[c]) for c in text))
    total = section = digit = 0
    for c in text:
        if c in _CHINESE_DIGITS:
            digit = _CHINESE_DIGITS[c]
        elif c in _CHINESE_SCALES:
            section += (digit or 1) * _CHINESE_SCALES[c]
            digit = 0
        else:
            if section + digit + total == 0:
                return None
            total = (total + section + digit) * _CHINESE_GROUPS[c]
            section = digit = 0
    return total + section + digit


def scaled_by_chinese(number: str, scales: str) -> str | None:
    """A number in digits times the scales behind it (10万, 1.2亿); None where they are no scales."""
    if not is_number(number) or any(c not in _CHINESE_SCALES and c not in _CHINESE_GROUPS for c in scales):
        return None
    value = Decimal(number.replace(",", ""))
    for c in scales:
        value *= _CHINESE_SCALES.get(c) or _CHINESE_GROUPS[c]
    return canonical(format(value, "f"))


def joined_groups(above: str, below: str) -> str | None:
    """The sum of a number of hundred millions and one below that (1亿, 2000万); None for others."""
    if not (above.isdecimal() and below.isdecimal()):
        return None
    high, low = int(above), int(below)
    return str(high + low) if high % 10**8 == 0 and 10**4 <= low < 10**8 and high > 0 else None


def _run(tokens: Sequence[str], start: int) -> tuple[int, Decimal]:
    """End and value of the number that begins at `start`; the end is `start` when none does."""
    total, group, position, words = Decimal(0), Decimal(0), start, False
    if is_number(tokens[start]):
        group, position = Decimal(tokens[start].replace(",", "")), start + 1
        if position == len(tokens) or tokens[position] not in SCALES:
            return start, total
    while position < len(tokens):
        token = tokens[position]
        if token in _SMALL and _fits(group, _SMALL[token]):
            group, words = group + _SMALL[token], True
        elif token in SCALES and (words or group):
            if token == "hundred":
                if group >= _MOST_HUNDREDS:
                    break
                group *= 100
            else:
                total, group = total + group * SCALES[token], Decimal(0)
        elif not (token == "and" and words and _goes_on(tokens, position + 1, group, total)):
            break
        position += 1
    return position, total + group


def _fits(group: Decimal, small: int) -> bool:
    """Whether "twenty" + "two" and "hundred" + "five" make one number, which "nineteen" + "ten" do not."""
    if group >= _MOST_HUNDREDS * 100:
        return False
    below_hundred = group % 100
    return below_hundred == 0 or (below_hundred >= 20 and below_hundred % 10 == 0 and 0 < small < 10)


def _goes_on(tokens: Sequence[str], position: int, group: Decimal, total: Decimal) -> bool:
    scaled = group >= 100 or (total > 0 and group == 0)
    return scaled and position < len(tokens) and tokens[position] in _SMALL
