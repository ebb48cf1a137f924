"""Wrong answers that look right, made from golds: a sign, a digit, a bracket, a word. None where nothing can be done."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from benchmarks.evaluation.notations import Kind, fraction, items

Spoil: TypeAlias = Callable[[random.Random, str], str | None]

_WHOLE = re.compile(r"-?\d+")
_INNER_SIGN = re.compile(r"(?<=[\w})])( ?)([+-])( ?)(?=[\w\\(])")
_LEADING = re.compile(r"-?(?:[\d.]+|\\d?frac\{\d+\}\{\d+\}|\d*\\sqrt\{\d+\}|\d*\\pi)")
_MONTHS = ("January", "March", "April", "July", "October", "December")
_LITTLE = frozenset({"a", "an", "and", "the"})
"""Without them it is the same answer."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A way to spoil golds of a kind."""

    name: str
    kind: Kind
    spoil: Spoil


def _replaced(pattern: str, text: str | Callable[[re.Match[str]], str]) -> Spoil:
    compiled = re.compile(pattern)

    def spoil(_draw: random.Random, gold: str) -> str | None:
        written = compiled.sub(text, gold, count=1)
        return None if written == gold else written

    return spoil


def _leading_sign(_draw: random.Random, gold: str) -> str | None:
    if not _LEADING.fullmatch(gold.strip()) or not re.search("[1-9]", gold):
        return None
    return gold.strip()[1:] if gold.strip().startswith("-") else f"-{gold.strip()}"


def _inner_sign(draw: random.Random, gold: str) -> str | None:
    """Another sign between two terms, and not in the middle of a chain, whose last member counts."""
    signs = [] if "," in gold or gold.count("=") > 1 or "\\pm" in gold else list(_INNER_SIGN.finditer(gold))
    if not signs:
        return None
    sign = draw.choice(signs)
    return gold[: sign.start(2)] + ("-" if sign[2] == "+" else "+") + gold[sign.end(2) :]


def _next(draw: random.Random, gold: str) -> str | None:
    return str(int(gold) + draw.choice((-1, 1))) if _WHOLE.fullmatch(gold) else None


def _digit(draw: random.Random, gold: str) -> str | None:
    positions = [i for i, letter in enumerate(gold) if letter.isdecimal()]
    if not positions or not re.fullmatch(r"[-\d.,/]+|-?\\frac\{\d+\}\{\d+\}|\d*\\sqrt\{\d+\}", gold):
        return None
    position = draw.choice(positions)
    other = draw.choice([digit for digit in "123456789" if digit != gold[position]])
    return gold[:position] + other + gold[position + 1 :]


def _turned_fraction(_draw: random.Random, gold: str) -> str | None:
    value = fraction(gold)
    if value is None or abs(value) in (0, 1):
        return None
    return rf"{'-' if value < 0 else ''}\frac{{{value.denominator}}}{{{abs(value.numerator)}}}"


def _rounded(_draw: random.Random, gold: str) -> str | None:
    value = fraction(gold)
    return None if value is None or Fraction(f"{float(value):.2f}") == value else f"{float(value):.2f}"


def _without_an_item(draw: random.Random, gold: str) -> str | None:
    parts = items(gold)
    if not parts or len(set(parts)) < len(parts):
        return None
    parts.pop(draw.randrange(len(parts)))
    return ", ".join(parts)


def _turned_pair(_draw: random.Random, gold: str) -> str | None:
    match = re.fullmatch(r"\((-?\d+), ?(-?\d+)\)", gold.strip())
    return f"({match[2]}, {match[1]})" if match and match[1] != match[2] else None


def _bracket(_draw: random.Random, gold: str) -> str | None:
    """The other kind of closing bracket of an interval."""
    if "\\infty" not in gold and not re.search(r"\[[^()\[\]]*\)|\([^()\[\]]*\]", gold):
        return None
    match = re.search(r"(?<=\d)(\\right)?([)\]])(?=\s|$)", gold)
    if match is None or re.search(r"\([^,()]*\)$", gold[: match.end()]):
        return None
    return gold[: match.start(2)] + ("]" if match[2] == ")" else ")") + gold[match.end(2) :]


def _without_a_word(draw: random.Random, gold: str) -> str | None:
    words = gold.split()
    places = [i for i, word in enumerate(words) if word.isalnum() and word.lower() not in _LITTLE]
    if len(words) < 2 or not places:
        return None
    words.pop(draw.choice(places))
    return " ".join(words)


def _other_word(draw: random.Random, gold: str) -> str | None:
    words = gold.split()
    places = [i for i, word in enumerate(words) if word.isalpha() and word.lower() not in _LITTLE]
    if not places:
        return None
    words[draw.choice(places)] = draw.choice(("Lisbon", "Morgan", "Winter", "Eastern"))
    return " ".join(words)


def _hedged(draw: random.Random, gold: str) -> str:
    other = draw.choice(("Lisbon", "Anna Morgan", "the Winter Games"))
    return draw.choice(
        (f"{other} or {gold}", f"not {gold}", f"{gold} and {other}", f"{other}, or maybe {gold}")
    )


def _other_verdict(_draw: random.Random, gold: str) -> str | None:
    return {"yes": "no", "no": "yes"}.get(gold.strip(" .").lower())


def _other_month(draw: random.Random, gold: str) -> str | None:
    match = re.search("|".join(_MONTHS), gold)
    return match and gold.replace(match[0], draw.choice([month for month in _MONTHS if month != match[0]]))


def _number_in_words(draw: random.Random, gold: str) -> str | None:
    match = re.search(r"(?<![\d.,])\d{1,4}(?![\d.,])", gold)
    return match and gold[: match.start()] + str(int(match[0]) + draw.randint(1, 9)) + gold[match.end() :]


MISTAKES: tuple[Mistake, ...] = (
    *(
        Mistake(name, "mathematics", spoil)
        for name, spoil in (
            ("sign", _leading_sign),
            ("inner sign", _inner_sign),
            ("next number", _next),
            ("digit", _digit),
            ("turned fraction", _turned_fraction),
            ("rounded", _rounded),
            ("exponent", _replaced(r"\^(\d)(?!\d)", lambda match: f"^{int(match[1]) + 1}")),
            ("root left out", _replaced(r"\\sqrt\{(\d*[2356789])\}", r"\1")),
            ("pi left out", _replaced(r"(?<=\d)\s*\\pi(?![A-Za-z])", "")),
            ("item left out", _without_an_item),
            ("turned pair", _turned_pair),
            ("bracket", _bracket),
            ("other base", _replaced(r"(?<=\d)_\{?([3-9])\}?$", lambda match: f"_{int(match[1]) - 1}")),
            ("other unit", _replaced(r"^(\d+)\^\{?\\circ\}?$", r"\1 \\text{ cm}")),
            ("thousand times", _replaced(r"^([1-9]\d?)$", r"\1,000")),
        )
    ),
    *(
        Mistake(name, "words", spoil)
        for name, spoil in (
            ("word left out", _without_a_word),
            ("other word", _other_word),
            ("hedged", _hedged),
            ("other verdict", _other_verdict),
            ("other month", _other_month),
            ("other number", _number_in_words),
        )
    ),
)
