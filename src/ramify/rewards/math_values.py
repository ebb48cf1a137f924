"""Values of formulas, and equality by values at fixed points.

Two formulas that agree at several unrelated points count as equal (the test of Schwartz and Zippel for polynomials).
Rational values are exact, all others have 150 digits. If terms cancel and leave almost nothing, the difference of equal
formulas shrinks with more digits, and that of unequal ones does not. Numbers of 10^50 and more need more digits than 150.
All numbers are kept small, so no formula takes long; those with numbers too large to compute are equal only if they are the
same formula.
"""

import functools
import math
import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from ramify.rewards.math_terms import Call, Number, Symbol, Term, symbols_of

Value: TypeAlias = Any
"""A `Fraction`, or a real or complex number of mpmath, which has no types."""
Assignment: TypeAlias = Mapping[str, Fraction]
_MAX_BITS = 1 << 16
_MAX_FACTORIAL = 5000
_POSITIVE_POINTS, _POINTS = 2, 5
_PRECISIONS = (150, 1000, 8000)
_SPARE = 100
"""Numbers have at most so many digits fewer than the arithmetic before the point."""
_LOSS = 10**30
"""Values are equal if they differ by at most so many times the rounding error."""
_FALLEN = 1e-90
"""So much smaller a difference of equal values must be with `_SPARE` digits more."""


class UndecidedError(ArithmeticError):
    """A value is undefined at the points."""


class Arithmetic:
    """Exact rational numbers, and numbers of `digits` decimal digits, fewer of them before the point.

    Attributes:
        noise: A safe upper bound of the relative rounding error.
    """

    def __init__(self, digits: int) -> None:
        """Load mpmath only when a value is not rational."""
        self._digits = digits
        self._most_bits = math.log2(10) * (digits - _SPARE)
        self.noise = Fraction(1, 10 ** (digits - 10))

    def value(self, term: Term, assignment: Assignment) -> Value:
        """Return the value of a term under an assignment of its symbols; None if it is too large.

        Raises:
            UndecidedError: The value is undefined.
        """
        try:
            return self._value(term, assignment)
        except OverflowError:
            return None
        except (ZeroDivisionError, ValueError) as error:
            raise UndecidedError("not defined") from error

    def is_real(self, value: Value) -> bool:
        """Return True if a value has no imaginary part, apart from rounding."""
        return bool(value.imag == 0 or abs(value.imag) <= self.noise * max(self.number(1), abs(value)))

    def number(self, value: Value) -> Value:
        """Return a value as mpmath's number."""
        return self._mp.convert(value)

    @functools.cached_property
    def _mp(self) -> Any:  # noqa: ANN401 - mpmath has no types
        from mpmath.ctx_mp import MPContext

        # A context of our own, whose precision never changes, so threads can share it.
        mp = MPContext()
        mp.dps = self._digits
        return mp

    def _value(self, term: Term, assignment: Assignment) -> Value:
        match term:
            case Number(value):
                return value
            case Symbol(name):
                return assignment[name] if name in assignment else self._constant(name)
            case Call(name, arguments):
                return self._bounded(self._call(name, [self._value(each, assignment) for each in arguments]))

    def _constant(self, name: str) -> Value:
        return self._mp.mpc(0, 1) if name == "i" else +{"pi": self._mp.pi, "e": self._mp.e}[name]

    def _bounded(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            fits = max(value.numerator.bit_length(), value.denominator.bit_length()) <= _MAX_BITS
        else:
            fits = self._mp.mag(value) < self._most_bits
        if not fits:
            raise OverflowError("too large")
        return value

    def _call(self, name: str, arguments: list[Value]) -> Value:
        match name, arguments:
            case (("+" | "*"), _):
                operation = operator.add if name == "+" else operator.mul
                return functools.reduce(lambda a, b: self._bounded(operation(a, b)), arguments)
            case "^", [base, exponent]:
                return self._power(base, exponent)
            case "root", [degree, value]:
                is_odd = isinstance(degree, Fraction) and degree % 2 == 1
                if is_odd and value.real < 0 and self.is_real(value):
                    return -self._power(-value, 1 / degree)
                return self._power(value, 1 / degree)
            case "exp", [exponent]:
                return self._power(self._constant("e"), exponent)
            case "log", [base, value]:
                return self._call("ln", [value]) / self._call("ln", [base])
            case "abs", [value]:
                return abs(value)
            case (("factorial" | "binom"), _):
                return _integer_function(name, arguments)
            case "ln", [value] if value == 0:
                raise UndecidedError("not defined")
        return getattr(self._mp, name.replace("arc", "a"))(*arguments)

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if exponent.denominator == 1 and bits * abs(exponent) <= _MAX_BITS:
                return base**exponent.numerator
        if base == 0 and exponent.real <= 0:
            raise UndecidedError("division by zero")
        number = self.number(base)
        # The inverse of a small power is computed, since e^{-1000} must be too large where e^{1000} is, and not 0.
        if base != 0 and (abs(number) < 1) is not (exponent.real < 0):
            return 1 / self._bounded(number ** self.number(-exponent))
        return number ** self.number(exponent)


arithmetic = functools.cache(Arithmetic)
"""Comparisons share the arithmetic of each precision."""


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
        values = [arithmetic(_PRECISIONS[0]).value(term, point) for term in (left, right)]
        if values != [0, 0]:
            crosswise = Call("*", (left, _at(right, point))), Call("*", (right, _at(left, point)))
            return bool(point) and 0 not in values and same_value(*crosswise)
    return False


def exact_value(term: Term) -> Fraction | None:
    """Return the value of a formula without symbols if it is rational; None otherwise."""
    try:
        value = arithmetic(_PRECISIONS[0]).value(term, {})
    except (UndecidedError, KeyError):
        return None
    return value if isinstance(value, Fraction) else None


def _at(term: Term, point: Assignment) -> Term:
    """Return the term with numbers in place of its symbols."""
    if isinstance(term, Call):
        return Call(term.name, tuple(_at(part, point) for part in term.arguments))
    return Number(point[term.name]) if isinstance(term, Symbol) and term.name in point else term


def _points(left: Term, right: Term) -> Iterator[Assignment]:
    """Yield the points at which formulas are compared: some positive ones, and others with negative numbers."""
    names = sorted(symbols_of(left) | symbols_of(right))
    for point in range(_POINTS if names else 1):
        yield {name: _coordinate(name, point) for name in names}


def _coordinate(name: str, point: int) -> Fraction:
    digest = zlib.crc32(f"{name} {point}".encode("utf-8", "surrogatepass"))
    size = Fraction(digest % 1009 + 400, 499)
    return -size if point >= _POSITIVE_POINTS and digest & 4096 else size


def _agree(left: Term, right: Term, point: Assignment, *, at_reals: bool) -> bool:
    """Return True if two formulas are equal at a point or, with `at_reals`, not both real.

    If they are too large for every precision, they must be the same: rounded, 2^{-20000} and 2^{-20001} are both 0.
    """
    for digits in _PRECISIONS:
        coarse, fine = arithmetic(digits), arithmetic(digits + _SPARE)
        a, b = (coarse.value(term, point) for term in (left, right))
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a == b
        if None in (a, b):
            continue
        if at_reals and not (coarse.is_real(a) and coarse.is_real(b)):
            return True
        a, b = map(coarse.number, (a, b))
        difference = abs(a - b)
        if difference <= coarse.noise * _LOSS * max(abs(a), abs(b)):
            return True
        a, b = (fine.value(term, point) for term in (left, right))
        return None not in (a, b) and bool(abs(fine.number(a) - fine.number(b)) <= _FALLEN * difference)
    return at_reals or left == right


def _integer_function(name: str, arguments: Sequence[Value]) -> Value:
    whole = [a.numerator for a in arguments if isinstance(a, Fraction) and a.denominator == 1]
    if len(whole) != len(arguments) or min(whole) < 0:
        raise UndecidedError("no whole number")
    if max(whole) > _MAX_FACTORIAL:
        raise OverflowError("too large")
    return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(*whole))
