r"""Equality of formulas by their values at fixed points.

Two formulas that agree at several unrelated points count as equal (the test of Schwartz and Zippel for polynomials).
Rational values are exact. Other values differ if they are far apart both in floats and in 50 digits; all others are
compared in 150 digits. If terms cancel and leave almost nothing, the difference of equal formulas shrinks with more
digits, and that of unequal ones does not. All numbers are kept small, so no formula takes long.
"""

import cmath
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from ramify.rewards.math_terms import Call, Number, Power, Product, Sum, Symbol, Term

Value: TypeAlias = Fraction | complex
"""`complex` also stands for mpmath's complex numbers, which have the same operations."""
Assignment: TypeAlias = Mapping[str, Fraction]
_Pair: TypeAlias = tuple[Value, Value]

CONSTANTS = frozenset({"pi", "e", "i"})
_MAX_BITS = 1 << 14
_MAX_FACTORIAL = 400
_POSITIVE_POINTS, _POINTS = 2, 5
_FAR, _SMALL = 1e-4, 1e-3
"""Values are far apart if they differ by `_FAR` relative to the larger one, and the larger one is above `_SMALL`."""
_COARSE, _FINE = 50, 150
_SAME, _FALLEN = 1e-110, 1e-90


class UndecidedError(ArithmeticError):
    """A value is undefined at the points, or both values are too large to compare."""


class _TooLargeError(UndecidedError):
    """A value is too large to compute; the other one may not be."""


@dataclass(frozen=True, eq=False, slots=True)
class Arithmetic:
    """Complex numbers of one precision; `noise` is a safe upper bound of the relative rounding error."""

    number: Callable[[Any], complex]
    functions: Mapping[str, Callable[[complex], complex]]
    constants: Mapping[str, complex]
    is_finite: Callable[[complex], bool]
    noise: float

    def value(self, term: Term, assignment: Assignment) -> Value | None:
        """Return the value of a term under an assignment of its symbols; None if it is too large.

        Raises:
            UndecidedError: The value is undefined.
        """
        try:
            return self._value(term, assignment)
        except (_TooLargeError, OverflowError):
            return None
        except (ZeroDivisionError, ValueError) as error:
            raise UndecidedError("not defined") from error

    def is_real(self, value: Value) -> bool:
        """Return True if a value has no imaginary part, apart from rounding."""
        return isinstance(value, Fraction) or abs(value.imag) <= self.noise * max(1, abs(value))

    def _value(self, term: Term, assignment: Assignment) -> Value:
        match term:
            case Number(value):
                return value
            case Symbol(name):
                return assignment[name] if name in assignment else self.constants[name]
            case Sum(terms):
                return self._bounded(sum((self._value(each, assignment) for each in terms), Fraction(0)))
            case Product(factors):
                product: Value = Fraction(1)
                for factor in factors:
                    product = self._bounded(product * self._value(factor, assignment))
                return product
            case Power(base, exponent):
                return self._power(self._value(base, assignment), self._value(exponent, assignment))
            case Call(name, arguments):
                return self._call(name, [self._value(each, assignment) for each in arguments])

    def _bounded(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
                raise _TooLargeError("too large")
        elif not self.is_finite(value):
            raise _TooLargeError("not finite")
        return value

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            if exponent.denominator == 1:
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if bits * abs(exponent) > _MAX_BITS:
                    raise _TooLargeError("too large")
                return base**exponent.numerator
            if base >= 0 and (root := _exact_root(base, exponent.denominator)) is not None:
                return self._power(root, Fraction(exponent.numerator))
        if base == 0 and exponent.real <= 0:
            raise UndecidedError("division by zero")
        return self._bounded(self.number(base) ** self.number(exponent))

    def _call(self, name: str, arguments: list[Value]) -> Value:
        if name == "root":
            return self._root(*arguments)
        if name == "log":
            below, above = (self._applied("ln", argument) for argument in arguments)
            return self._bounded(above / below)
        if name in ("factorial", "binom", "mod"):
            return _integer_function(name, arguments)
        if name == "abs":
            size = abs(arguments[0])
            return size if isinstance(size, Fraction) else self.number(size)
        return self._bounded(self._applied(name, arguments[0]))

    def _applied(self, name: str, argument: Value) -> complex:
        number = self.number(argument)
        if name == "ln" and number == 0:
            raise UndecidedError("not defined")
        return self.functions[name](number)

    def _root(self, degree: Value, value: Value) -> Value:
        odd = isinstance(degree, Fraction) and degree.denominator == 1 and degree.numerator % 2 == 1
        if odd and self.is_real(value) and value.real < 0:
            return -self._power(-value, 1 / degree)
        return self._power(value, 1 / degree)


_LIBRARY_NAMES = {
    **{name: name for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log"},
}


def _functions(library: Any) -> dict[str, Callable[[complex], complex]]:  # noqa: ANN401 - a module, or a context of mpmath
    reciprocals = {"cot": library.tan, "sec": library.cos, "csc": library.sin}
    return {
        **{name: getattr(library, theirs) for name, theirs in _LIBRARY_NAMES.items()},
        **{name: lambda x, function=function: 1 / function(x) for name, function in reciprocals.items()},
    }


FLOATS = Arithmetic(
    complex,
    _functions(cmath),
    {"pi": complex(math.pi), "e": complex(math.e), "i": 1j},
    cmath.isfinite,
    1e-12,
)


@functools.cache
def precise(digits: int) -> Arithmetic:
    """Return arithmetic with `digits` decimal digits."""
    from mpmath.ctx_mp import MPContext  # imported here, since few comparisons need it

    # A context of our own, whose precision never changes, so threads can share it.
    mp: Any = MPContext()
    mp.dps = digits
    constants = {"pi": mp.mpc(mp.pi), "e": mp.mpc(mp.e), "i": mp.mpc(0, 1)}
    number = lambda value: mp.mpc(mp.convert(value))  # noqa: E731
    return Arithmetic(number, _functions(mp), constants, mp.isfinite, 10.0 ** (10 - digits))


def same_value(left: Term, right: Term) -> bool:
    """Return True if both formulas have the same value wherever both are real.

    Raises:
        UndecidedError: The points do not decide.
    """
    points = list(_points(left, right))
    if not points:
        raise UndecidedError("no value at any point")
    return all(_agree(point.pair, point.values) for point in points)


def same_up_to_factor(left: Term, right: Term) -> bool:
    """Return True if `left` is a nonzero constant times `right`, so that both "= 0" are the same equation.

    Raises:
        UndecidedError: The points do not decide.
    """
    points = [point for point in _points(left, right) if point.pair != (0, 0)]
    if not points or any(0 in point.pair for point in points):
        return False
    first, *others = points

    def crosswise(pair: _Pair, start: _Pair) -> _Pair:
        return pair[0] * start[1], pair[1] * start[0]

    def precise_pair(point: _Point, arithmetic: Arithmetic) -> _Pair:
        return crosswise(point.values(arithmetic), first.values(arithmetic))

    return len(others) > 0 and all(
        _agree(crosswise(point.pair, first.pair), functools.partial(precise_pair, point)) for point in others
    )


def exact_value(term: Term) -> Fraction | None:
    """Return the value of a formula without symbols if it is rational; None otherwise."""
    try:
        value = FLOATS.value(term, {})
    except (UndecidedError, KeyError):
        return None
    return value if isinstance(value, Fraction) else None


def symbols_of(term: Term) -> frozenset[str]:
    """Return the names of the symbols, without constants."""
    match term:
        case Symbol(name):
            return frozenset({name}) - CONSTANTS
        case Sum(parts) | Product(parts) | Call(_, parts):
            return frozenset().union(*map(symbols_of, parts))
        case Power(base, exponent):
            return symbols_of(base) | symbols_of(exponent)
        case _:
            return frozenset()


@dataclass(frozen=True, slots=True)
class _Point:
    """Both formulas at one point, and their values in floats."""

    left: Term
    right: Term
    assignment: Assignment
    pair: _Pair

    def values(self, arithmetic: Arithmetic) -> _Pair:
        left, right = (arithmetic.value(term, self.assignment) for term in (self.left, self.right))
        if left is None or right is None:
            raise UndecidedError("too large")
        return left, right


def _points(left: Term, right: Term) -> Iterator[_Point]:
    names = sorted(symbols_of(left) | symbols_of(right))
    for point in range(_POINTS if names else 1):
        assignment = {name: _coordinate(name, point) for name in names}
        a, b = FLOATS.value(left, assignment), FLOATS.value(right, assignment)
        if a is None and b is None:
            raise UndecidedError("both too large")
        if a is None or b is None:
            yield _Point(left, right, assignment, (Fraction(0), Fraction(1)))
            return
        if point < _POSITIVE_POINTS or (FLOATS.is_real(a) and FLOATS.is_real(b)):
            yield _Point(left, right, assignment, (a, b))


def _coordinate(name: str, point: int) -> Fraction:
    digest = zlib.crc32(f"{name} {point}".encode("utf-8", "surrogatepass"))
    size = Fraction(digest % 1009 + 400, 499) * max(1, point - _POINTS + 2)
    return -size if point >= _POSITIVE_POINTS and digest & 4096 else size


def _agree(pair: _Pair, values: Callable[[Arithmetic], _Pair]) -> bool:
    """Return True if two values are equal; `values` recomputes them in a given precision."""
    if isinstance(pair[0], Fraction) and isinstance(pair[1], Fraction):
        return pair[0] == pair[1]
    # Floats alone prove nothing: there (10^16 + sqrt 2) - 10^16 is 2.
    if _are_far_apart(pair) and _are_far_apart(values(precise(_COARSE))):
        return False
    size, difference = _size_and_difference(values(precise(_FINE)), _FINE)
    if difference <= _SAME * size:
        return True
    _, before = _size_and_difference(values(precise(_COARSE)), _COARSE)
    return bool(difference <= (_FALLEN * before if before else _SAME))


def _are_far_apart(pair: _Pair) -> bool:
    try:
        a, b = map(complex, pair)
    except OverflowError:
        return False
    size = max(abs(a), abs(b))
    return size > _SMALL and abs(a - b) > _FAR * size


def _size_and_difference(pair: _Pair, digits: int) -> tuple[float, float]:
    """Return the larger of two values and their difference."""
    a, b = map(precise(digits).number, pair)
    return max(abs(a), abs(b)), abs(a - b)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    if degree > _MAX_BITS:
        return None
    above, below = (_integer_root(number, degree) for number in (value.numerator, value.denominator))
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(number: int, degree: int) -> int | None:
    if degree == 2:
        near = math.isqrt(number)
    elif number.bit_length() < 900:
        near = round(number ** (1 / degree))
    else:
        return None
    return near if near**degree == number else None


def _integer_function(name: str, arguments: Sequence[Value]) -> Value:
    whole = [a.numerator for a in arguments if isinstance(a, Fraction) and a.denominator == 1]
    if len(whole) != len(arguments) or (name != "mod" and min(whole) < 0):
        raise UndecidedError("no whole number")
    if name == "mod":
        return Fraction(whole[0] % whole[1])
    if max(whole) > _MAX_FACTORIAL:
        raise _TooLargeError("too large")
    return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(*whole))
