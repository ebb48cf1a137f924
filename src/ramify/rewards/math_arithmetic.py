r"""Values of formulas at a point: exact where they are rational, else in the precision that an `Arithmetic` has.

Every number stays small, so no formula can take long: what would grow is `UndecidedError`.
"""

import cmath
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from ramify.rewards.math_terms import Call, Number, Power, Product, Sum, Symbol, Term

Value: TypeAlias = Fraction | complex
"""`complex` stands for mpmath's complex numbers too, which have the same operations."""
Place: TypeAlias = Mapping[str, Fraction]

CONSTANTS = frozenset({"pi", "e", "i"})
_MAX_BITS = 4096
_MAX_FACTORIAL = 400
_MAX_WHOLE = 1 << 40
"""Beyond it a floor that was rounded from floats may be another whole number."""


class UndecidedError(ArithmeticError):
    """A value is not defined at the points, or both are too large to compare."""


class _TooLargeError(UndecidedError):
    """A value is larger than any that is written out; the other one may not be."""


@dataclass(frozen=True, eq=False, slots=True)
class Arithmetic:
    """Complex numbers of one precision; `noise` is the rounding error, relative to 1, that is surely not exceeded."""

    number: Callable[[Any], complex]
    functions: Mapping[str, Callable[[complex], complex]]
    constants: Mapping[str, complex]
    is_finite: Callable[[complex], bool]
    floor: Callable[[Any], Any]
    noise: float

    def value(self, term: Term, place: Place) -> Value | None:
        """The value where the symbols have the values of `place`; None when it is too large.

        Raises:
            UndecidedError: It is not defined.
        """
        try:
            return self._value(term, place)
        except (_TooLargeError, OverflowError):
            return None
        except (ZeroDivisionError, ValueError) as error:
            raise UndecidedError("not defined") from error

    def is_real(self, value: Value) -> bool:
        """Whether it has no imaginary part but for rounding."""
        return isinstance(value, Fraction) or abs(value.imag) <= self.noise * max(1, abs(value))

    def _value(self, term: Term, place: Place) -> Value:
        match term:
            case Number(value):
                return value
            case Symbol(name):
                return place[name] if name in place else self.constants[name]
            case Sum(terms):
                return self._bounded(sum((self._value(each, place) for each in terms), Fraction(0)))
            case Product(factors):
                product: Value = Fraction(1)
                for factor in factors:
                    product = self._bounded(product * self._value(factor, place))
                return product
            case Power(base, exponent):
                return self._power(self._value(base, place), self._value(exponent, place))
            case Call(name, arguments):
                return self._call(name, [self._value(each, place) for each in arguments])

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
        if name in ("factorial", "binom"):
            return _count(name, arguments)
        if name in ("floor", "ceil"):
            return self._floor(arguments[0]) if name == "floor" else -self._floor(-arguments[0])
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

    def _floor(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return Fraction(math.floor(value))
        if not self.is_real(value):
            raise UndecidedError("not real")
        # What is whole but for rounding must not fall to the number below.
        whole = self.floor(value.real + self.noise)
        return Fraction(int(whole)) if abs(whole) < _MAX_WHOLE else self.number(whole)


FLOATS = Arithmetic(
    complex,
    {
        "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh,
        "tanh": cmath.tanh, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan, "ln": cmath.log,
        "exp": cmath.exp,
        "cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x),
    },
    {"pi": complex(math.pi), "e": complex(math.e), "i": 1j},
    cmath.isfinite,
    math.floor,
    1e-12,
)  # fmt: skip


@functools.cache
def precise(digits: int) -> Arithmetic:
    """Numbers of so many decimal digits."""
    from mpmath.ctx_mp import MPContext  # here, since few comparisons need it

    # A context of our own: its precision is never changed, so threads can share it.
    mp: Any = MPContext()
    mp.dps = digits
    return Arithmetic(
        lambda x: mp.mpc(mp.convert(x)),
        {
            "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
            "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "ln": mp.ln, "exp": mp.exp,
            "cot": lambda x: 1 / mp.tan(x), "sec": lambda x: 1 / mp.cos(x), "csc": lambda x: 1 / mp.sin(x),
        },
        {"pi": mp.mpc(mp.pi), "e": mp.mpc(mp.e), "i": mp.mpc(0, 1)},
        mp.isfinite,
        mp.floor,
        10.0 ** (10 - digits),
    )  # fmt: skip


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


def _count(name: str, arguments: Sequence[Value]) -> Value:
    whole = [a.numerator for a in arguments if isinstance(a, Fraction) and a.denominator == 1]
    if len(whole) != len(arguments) or min(whole) < 0:
        raise UndecidedError("no whole number")
    if max(whole) > _MAX_FACTORIAL:
        raise _TooLargeError("too large")
    return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(*whole))
