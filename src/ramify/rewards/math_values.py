r"""Equality of formulas by their values at fixed points.

Two formulas that agree at several unrelated points are taken for equal (the test of Schwartz and Zippel for
polynomials). Rational values are compared exactly. Others that are far apart, in floats and in 50 digits, differ; the
rest is compared in 150 digits. Where terms cancel and leave next to nothing, the difference of equal formulas falls with
the precision and that of others does not.
"""

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ramify.rewards.math_arithmetic import (
    CONSTANTS,
    FLOATS,
    Arithmetic,
    Place,
    UndecidedError,
    Value,
    precise,
)
from ramify.rewards.math_terms import Call, Power, Product, Sum, Symbol, Term

_Pair: TypeAlias = tuple[Value, Value]

_POSITIVE_POINTS, _POINTS = 2, 5
_POINTS_OF_STEPS = 25
"""Where a formula has whole parts, which are the same over a stretch."""
_FAR, _SMALL = 1e-4, 1e-3
"""Far apart are values that differ by that part of the larger one, which is itself not as small as this."""
_COARSE, _FINE = 50, 150
_SAME, _FALLEN = 1e-110, 1e-90


def same_value(left: Term, right: Term) -> bool:
    """Whether both formulas have the same value wherever both are real.

    Raises:
        UndecidedError: The points do not tell.
    """
    points = list(_points(left, right))
    if not points:
        raise UndecidedError("no value at any point")
    return all(_agree(point.pair, point.values) for point in points)


def same_up_to_factor(left: Term, right: Term) -> bool:
    """Whether `left` is a constant other than 0 times `right`: the same equation "= 0".

    Raises:
        UndecidedError: The points do not tell.
    """
    points = [point for point in _points(left, right) if point.pair != (0, 0)]
    if not points or any(0 in point.pair for point in points):
        return False
    first, *others = points
    return len(others) > 0 and all(
        _agree(_crosswise(point.pair, first.pair), functools.partial(_crossed, point, first))
        for point in others
    )


def exact_value(term: Term) -> Fraction | None:
    """The value of a formula without symbols where it is rational; None otherwise."""
    try:
        value = FLOATS.value(term, {})
    except (UndecidedError, KeyError):
        return None
    return value if isinstance(value, Fraction) else None


def symbols_of(term: Term) -> frozenset[str]:
    """Names of the symbols, constants left out."""
    if isinstance(term, Symbol):
        return frozenset() if term.name in CONSTANTS else frozenset({term.name})
    return frozenset().union(*map(symbols_of, _parts(term)))


def _has_steps(term: Term) -> bool:
    return (isinstance(term, Call) and term.name in ("floor", "ceil")) or any(map(_has_steps, _parts(term)))


def _parts(term: Term) -> tuple[Term, ...]:
    match term:
        case Sum(parts) | Product(parts) | Call(_, parts):
            return parts
        case Power(base, exponent):
            return base, exponent
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class _Point:
    """Both formulas at one point, and their values in floats."""

    left: Term
    right: Term
    place: Place
    pair: _Pair

    def values(self, arithmetic: Arithmetic) -> _Pair:
        left, right = (arithmetic.value(term, self.place) for term in (self.left, self.right))
        if left is None or right is None:
            raise UndecidedError("too large")
        return left, right


def _points(left: Term, right: Term) -> Iterator[_Point]:
    names = sorted(symbols_of(left) | symbols_of(right))
    count = _POINTS_OF_STEPS if _has_steps(left) or _has_steps(right) else _POINTS
    for point in range(count if names else 1):
        place = {name: _coordinate(name, point) for name in names}
        a, b = FLOATS.value(left, place), FLOATS.value(right, place)
        if a is None and b is None:
            raise UndecidedError("both too large")
        if a is None or b is None:
            yield _Point(left, right, place, (Fraction(0), Fraction(1)))
            return
        if point < _POSITIVE_POINTS or (FLOATS.is_real(a) and FLOATS.is_real(b)):
            yield _Point(left, right, place, (a, b))


def _coordinate(name: str, point: int) -> Fraction:
    drawn = zlib.crc32(f"{name} {point}".encode())
    size = Fraction(drawn % 1009 + 400, 499) * max(1, point - _POINTS + 2)
    return -size if point >= _POSITIVE_POINTS and drawn & 4096 else size


def _crosswise(pair: _Pair, first: _Pair) -> _Pair:
    return pair[0] * first[1], pair[1] * first[0]


def _crossed(point: _Point, first: _Point, arithmetic: Arithmetic) -> _Pair:
    return _crosswise(point.values(arithmetic), first.values(arithmetic))


def _agree(pair: _Pair, values: Callable[[Arithmetic], _Pair]) -> bool:
    """Whether two values are equal; `values` gives them in a precision that is asked for."""
    if isinstance(pair[0], Fraction) and isinstance(pair[1], Fraction):
        return pair[0] == pair[1]
    # Floats are no proof: (10^16 + sqrt 2) - 10^16 is 2 there.
    if _are_far_apart(pair) and _are_far_apart(values(precise(_COARSE))):
        return False
    size, difference = _compared(values(precise(_FINE)), _FINE)
    if difference <= _SAME * size:
        return True
    _, before = _compared(values(precise(_COARSE)), _COARSE)
    return bool(difference <= (_FALLEN * before if before else _SAME))


def _are_far_apart(pair: _Pair) -> bool:
    try:
        a, b = map(complex, pair)
    except OverflowError:
        return False
    size = max(abs(a), abs(b))
    return size > _SMALL and abs(a - b) > _FAR * size


def _compared(pair: _Pair, digits: int) -> tuple[float, float]:
    """The larger of two values and their difference."""
    a, b = map(precise(digits).number, pair)
    return max(abs(a), abs(b)), abs(a - b)
