r"""Equality of formulas by their values at fixed points.

Two formulas that agree at several unrelated points count as equal (the test of Schwartz and Zippel for polynomials).
Rational values are exact. Other values differ if they are far apart both in floats and in 50 digits; all others are
compared in 150 digits. If terms cancel and leave almost nothing, the difference of equal formulas shrinks with more
digits, and that of unequal ones does not. Numbers of 10^50 and more need more digits than 150. All numbers are kept small,
so no formula takes long; those with numbers too large to compute are equal only if they are the same formula.
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
_Pair: TypeAlias = tuple[Value | None, Value | None]
"""Values of two formulas; None if one is too large."""

CONSTANTS = frozenset({"pi", "e", "i"})
_MAX_BITS = 1 << 16
_MAX_FACTORIAL = 5000
_POSITIVE_POINTS, _POINTS = 2, 5
_FAR, _SMALL = 1e-4, 1e-3
"""Values are far apart if they differ by `_FAR` relative to the larger one, and the larger one is above `_SMALL`."""
_COARSE = 50
_DIGITS = (150, 1000, 8000)
_SPARE = 100
"""Numbers have at most so many digits fewer than the arithmetic before the point."""
_LOSS = 10**30
"""Values are equal if they differ by at most so many times the rounding error."""
_SAME, _FALLEN = 1e-110, 1e-90


class UndecidedError(ArithmeticError):
    """A value is undefined at the points."""


class _TooLargeError(UndecidedError):
    """A value is too large to compute; the other one may not be."""


@dataclass(frozen=True, eq=False, slots=True)
class Arithmetic:
    """Complex numbers of one precision.

    Attributes:
        fits: Tells if a value is small enough for the precision.
        noise: A safe upper bound of the relative rounding error.
    """

    number: Callable[[Any], complex]
    functions: Mapping[str, Callable[[complex], complex]]
    constants: Mapping[str, complex]
    fits: Callable[[complex], bool]
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
        elif not self.fits(value):
            raise _TooLargeError("too large")
        return value

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if exponent.denominator == 1 and bits * abs(exponent) <= _MAX_BITS:
                return base**exponent.numerator
        if base == 0 and exponent.real <= 0:
            raise UndecidedError("division by zero")
        # The inverse of a small power is computed, since e^{-1000} must be too large where e^{1000} is, and not 0.
        if base != 0 and (abs(self.number(base)) < 1) is not (exponent.real < 0):
            return 1 / self._bounded(self.number(base) ** self.number(-exponent))
        return self._bounded(self.number(base) ** self.number(exponent))

    def _call(self, name: str, arguments: list[Value]) -> Value:
        if name == "root":
            return self._root(*arguments)
        if name == "log":
            below, above = (self._applied("ln", argument) for argument in arguments)
            return self._bounded(above / below)
        if name == "exp":
            return self._power(self.constants["e"], arguments[0])
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
    **{name: name for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
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
def precise(digits: int, whole_digits: int) -> Arithmetic:
    """Return arithmetic with `digits` decimal digits, for numbers of at most `whole_digits` before the point."""
    from mpmath.ctx_mp import MPContext  # imported here, since few comparisons need it

    # A context of our own, whose precision never changes, so threads can share it.
    mp: Any = MPContext()
    mp.dps = digits
    constants = {"pi": mp.mpc(mp.pi), "e": mp.mpc(mp.e), "i": mp.mpc(0, 1)}
    number = lambda value: mp.mpc(mp.convert(value))  # noqa: E731
    most_bits = math.log2(10) * whole_digits
    return Arithmetic(
        number,
        _functions(mp),
        constants,
        lambda value: mp.mag(value) < most_bits,
        mp.mpf(10) ** (10 - digits),
    )


def same_value(left: Term, right: Term) -> bool:
    """Return True if both formulas have the same value wherever both are real; of too large ones, if they are the same formula.

    Raises:
        UndecidedError: A value is undefined.
    """
    return all(
        _agree(left, right, point, at_reals=number >= _POSITIVE_POINTS)
        for number, point in enumerate(_points(left, right))
    )


def same_up_to_factor(left: Term, right: Term) -> bool:
    """Return True if `left` is a nonzero constant times `right`, so that both "= 0" are the same equation.

    Raises:
        UndecidedError: A value is undefined.
    """
    for point in _points(left, right):
        values = FLOATS.value(left, point), FLOATS.value(right, point)
        if values != (0, 0):
            crosswise = Product((left, _at(right, point))), Product((right, _at(left, point)))
            return bool(point) and 0 not in values and same_value(*crosswise)
    return False


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


def _at(term: Term, point: Assignment) -> Term:
    """Return the term with numbers in place of its symbols."""
    match term:
        case Symbol(name):
            return Number(point[name]) if name in point else term
        case Sum(parts) | Product(parts):
            return type(term)(tuple(_at(part, point) for part in parts))
        case Power(base, exponent):
            return Power(_at(base, point), _at(exponent, point))
        case Call(name, parts):
            return Call(name, tuple(_at(part, point) for part in parts))
        case _:
            return term


def _points(left: Term, right: Term) -> Iterator[Assignment]:
    """Yield the points at which formulas are compared: some positive ones, and others with negative numbers."""
    names = sorted(symbols_of(left) | symbols_of(right))
    for point in range(_POINTS if names else 1):
        yield {name: _coordinate(name, point) for name in names}


def _coordinate(name: str, point: int) -> Fraction:
    digest = zlib.crc32(f"{name} {point}".encode("utf-8", "surrogatepass"))
    size = Fraction(digest % 1009 + 400, 499) * max(1, point - _POINTS + 2)
    return -size if point >= _POSITIVE_POINTS and digest & 4096 else size


def _agree(left: Term, right: Term, point: Assignment, *, at_reals: bool) -> bool:
    """Return True if two formulas are equal at a point or, with `at_reals`, not both real.

    If they are too large for every precision, they must be the same: rounded, 2^{-20000} and 2^{-20001} are both 0.
    """

    def values(arithmetic: Arithmetic) -> _Pair:
        return arithmetic.value(left, point), arithmetic.value(right, point)

    pair = a, b = values(FLOATS)
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    if at_reals and not (_is_real(a) and _is_real(b)):
        return True
    # Floats alone prove nothing: there (10^16 + sqrt 2) - 10^16 is 2.
    if _are_far_apart(pair) and _are_far_apart(values(precise(_COARSE, _COARSE))):
        return False
    for digits in _DIGITS:
        coarse, fine = (precise(each, digits - _SPARE) for each in (digits - _SPARE, digits))
        difference = _difference_and_size(values(fine), fine)
        if difference is None:
            continue
        if difference[0] <= fine.noise * _LOSS * difference[1]:
            return True
        before = _difference_and_size(values(coarse), coarse)
        return before is not None and bool(difference[0] <= (_FALLEN * before[0] if before[0] else _SAME))
    return left == right


def _is_real(value: Value | None) -> bool:
    return value is not None and FLOATS.is_real(value)


def _are_far_apart(pair: _Pair) -> bool:
    try:
        a, b = (complex(value) for value in pair if value is not None)
    except (OverflowError, ValueError):  # ValueError: one is None
        return False
    size = max(abs(a), abs(b))
    return size > _SMALL and abs(a - b) > _FAR * size


def _difference_and_size(pair: _Pair, arithmetic: Arithmetic) -> tuple[Any, Any] | None:
    """Return the difference of two values and the larger of them; None if one is too large."""
    if pair[0] is None or pair[1] is None:
        return None
    a, b = map(arithmetic.number, pair)
    return abs(a - b), max(abs(a), abs(b))


def _integer_function(name: str, arguments: Sequence[Value]) -> Value:
    whole = [a.numerator for a in arguments if isinstance(a, Fraction) and a.denominator == 1]
    if len(whole) != len(arguments) or (name != "mod" and min(whole) < 0):
        raise UndecidedError("no whole number")
    if name == "mod":
        return Fraction(whole[0] % whole[1])
    if max(whole) > _MAX_FACTORIAL:
        raise _TooLargeError("too large")
    return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(*whole))
