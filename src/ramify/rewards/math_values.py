r"""Equality of formulas by their values at fixed points: exact where numbers are rational, to 1e-9 elsewhere.

Two formulas that agree at several unrelated points are taken for equal (the test of Schwartz and Zippel for
polynomials). Every number stays small, so no formula can take long: what would grow is `UndecidedError`.
"""

import cmath
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TypeAlias

from ramify.rewards.math_terms import Call, Number, Power, Product, Sum, Symbol, Term

Value: TypeAlias = Fraction | complex

_POSITIVE_POINTS, _POINTS = 2, 5
_MAX_BITS = 4096
_MAX_FACTORIAL = 400
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_FUNCTIONS: Mapping[str, Callable[[complex], complex]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh,
    "tanh": cmath.tanh, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan, "ln": cmath.log,
    "exp": cmath.exp,
    "cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x),
}  # fmt: skip
_CONSTANTS: Mapping[str, Value] = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


class UndecidedError(ArithmeticError):
    """A value is not defined at the points, or both are too large to compare."""


class _TooLargeError(UndecidedError):
    """A value is larger than any that is written out; the other one may not be."""


def same_value(left: Term, right: Term) -> bool:
    """Whether both formulas have the same value wherever both are real.

    Raises:
        UndecidedError: The points do not tell.
    """
    pairs = list(_values(left, right))
    if not pairs:
        raise UndecidedError("no value at any point")
    return all(_close(a, b) for a, b in pairs)


def same_up_to_factor(left: Term, right: Term) -> bool:
    """Whether `left` is a constant other than 0 times `right`: the same equation "= 0".

    Raises:
        UndecidedError: The points do not tell.
    """
    pairs = [(a, b) for a, b in _values(left, right) if a != 0 or b != 0]
    if not pairs or any(a == 0 or b == 0 for a, b in pairs):
        return False
    first, second = pairs[0]
    return len(pairs) > 1 and all(_close(a * second, b * first) for a, b in pairs)


def exact_value(term: Term) -> Fraction | None:
    """The value of a formula without symbols where it is rational; None otherwise."""
    try:
        value = _size_limited(term, {})
    except (UndecidedError, KeyError):
        return None
    return value if isinstance(value, Fraction) else None


def symbols_of(term: Term) -> frozenset[str]:
    """Names of the symbols, constants left out."""
    if isinstance(term, Symbol):
        return frozenset() if term.name in _CONSTANTS else frozenset({term.name})
    if isinstance(term, Number):
        return frozenset()
    parts = (
        term.terms
        if isinstance(term, Sum)
        else term.factors
        if isinstance(term, Product)
        else (term.base, term.exponent)
        if isinstance(term, Power)
        else term.arguments
    )
    return frozenset().union(*map(symbols_of, parts))


def _values(left: Term, right: Term) -> Iterator[tuple[Value, Value]]:
    names = sorted(symbols_of(left) | symbols_of(right))
    for point in range(_POINTS if names else 1):
        place = {name: _coordinate(name, point) for name in names}
        a, b = _size_limited(left, place), _size_limited(right, place)
        if a is None and b is None:
            raise UndecidedError("both too large")
        if a is None or b is None:
            yield Fraction(0), Fraction(1)
            return
        if point < _POSITIVE_POINTS or (_is_real(a) and _is_real(b)):
            yield a, b


def _size_limited(term: Term, place: Mapping[str, Fraction]) -> Value | None:
    """The value; None when it is too large."""
    try:
        return _value(term, place)
    except (_TooLargeError, OverflowError):
        return None
    except ZeroDivisionError as error:
        raise UndecidedError("division by zero") from error


def _coordinate(name: str, point: int) -> Fraction:
    drawn = zlib.crc32(f"{name} {point}".encode())
    size = Fraction(drawn % 1009 + 400, 499)
    return -size if point >= _POSITIVE_POINTS and drawn & 4096 else size


def _value(term: Term, place: Mapping[str, Fraction]) -> Value:
    match term:
        case Number(value):
            return value
        case Symbol(name):
            return place[name] if name in place else _CONSTANTS[name]
        case Sum(terms):
            return _bounded(sum((_value(each, place) for each in terms), Fraction(0)))
        case Product(factors):
            product: Value = Fraction(1)
            for factor in factors:
                product = _bounded(product * _value(factor, place))
            return product
        case Power(base, exponent):
            return _power(_value(base, place), _value(exponent, place))
        case Call(name, arguments):
            return _call(name, [_value(each, place) for each in arguments])


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            raise _TooLargeError("too large")
        return value
    if not cmath.isfinite(value):
        raise _TooLargeError("not finite")
    return value


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if bits * abs(exponent) > _MAX_BITS:
                raise _TooLargeError("too large")
            return base**exponent.numerator
        if base >= 0 and (root := _exact_root(base, exponent.denominator)) is not None:
            return _power(root, Fraction(exponent.numerator))
    return _bounded(complex(base) ** complex(exponent))


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


def _call(name: str, arguments: list[Value]) -> Value:
    if name == "root":
        return _root(*arguments)
    if name == "log":
        base, value = map(complex, arguments)
        if base == 0 or value == 0:
            raise UndecidedError("not defined")
        return _bounded(cmath.log(value) / cmath.log(base))
    if name in ("factorial", "binom"):
        return _count(name, arguments)
    if name in ("floor", "ceil"):
        real = arguments[0] if isinstance(arguments[0], Fraction) else _real(arguments[0])
        return Fraction(math.floor(real) if name == "floor" else math.ceil(real))
    if name == "abs":
        return abs(arguments[0]) if isinstance(arguments[0], Fraction) else complex(abs(arguments[0]))
    try:
        return _bounded(_FUNCTIONS[name](complex(arguments[0])))
    except ValueError as error:
        raise UndecidedError("not defined") from error


def _root(degree: Value, value: Value) -> Value:
    odd = isinstance(degree, Fraction) and degree.denominator == 1 and degree.numerator % 2 == 1
    if odd and _is_real(value) and _real(value) < 0:
        return -_power(-value, 1 / degree)
    return _power(value, 1 / degree)


def _count(name: str, arguments: list[Value]) -> Value:
    whole = [a.numerator for a in arguments if isinstance(a, Fraction) and a.denominator == 1]
    if len(whole) != len(arguments) or min(whole) < 0:
        raise UndecidedError("no whole number")
    if max(whole) > _MAX_FACTORIAL:
        raise _TooLargeError("too large")
    return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(*whole))


def _is_real(value: Value) -> bool:
    return isinstance(value, Fraction) or abs(value.imag) <= _ABSOLUTE


def _real(value: Value) -> float:
    if isinstance(value, Fraction):
        return float(value)
    if not _is_real(value):
        raise UndecidedError("not real")
    return value.real


def _close(left: Value, right: Value) -> bool:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    a, b = complex(left), complex(right)
    return abs(a - b) <= max(_ABSOLUTE, _RELATIVE * max(abs(a), abs(b)))
