r"""Formulas as trees: a parser for the LaTeX (and plain text) in which answers are written, and equality by values at fixed points.

The parser refuses whatever it does not know with `UnreadableError`, so that no formula is compared only in part.

Two formulas that agree at several unrelated points count as equal (the test of Schwartz and Zippel for polynomials).
Rational values are exact, all others have 150 digits. If terms cancel and leave almost nothing, the difference of equal
formulas shrinks with more digits, and that of unequal ones does not. Numbers of 10^50 and more need more digits than 150.
All numbers are kept small, so no formula takes long; those with numbers too large to compute are equal only if they are the
same formula.
"""

import functools
import math
import operator
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias


class UnreadableError(ValueError):
    """The text is not a formula that this parser reads."""


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter or a named symbol, with its subscript."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of terms, "+", "*" and "^" too; for `root` and `log` the degree or base comes first.

    A divisor is a factor with the power -1.
    """

    name: str
    arguments: "tuple[Term, ...]"


Term: TypeAlias = Number | Symbol | Call

MINUS_ONE = Number(Fraction(-1))
_NAMES = "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln exp"
FUNCTIONS = frozenset(_NAMES.split())
WORDS = FUNCTIONS | {"sqrt", "log", "pi", "infinity", "infty", "oo"}
"""Names that plain letters may spell."""
_TOKEN = re.compile(
    r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    rf"|(\\[A-Za-z]+|(?:{'|'.join(sorted(WORDS, key=len, reverse=True))})(?![A-Za-z]))|([A-Za-z])|(.))",
    re.DOTALL,
)
_FACTOR = re.compile(r"[^\W_]|[({\[\\.]")
_FIRST_IDEOGRAPH = "\u2e80"
"""From this character on letters are words, not symbols: a date with ideographs is not a product."""
_GREEK = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi varphi
chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar pi
"""
_GREEK_NAMES = frozenset(_GREEK.split())
_SIGNS = ("+", "-", "\\pm", "\\mp")
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|"}
_DIGITS = frozenset("0123456789")
_TEN, _TWO = Number(Fraction(10)), Number(Fraction(2))
_MAX_DEPTH = 40
_MAX_CHARS = 1000

Value: TypeAlias = Any
"""A `Fraction`, or a real or complex number of mpmath, which has no types."""
Assignment: TypeAlias = Mapping[str, Fraction]
_CONSTANTS = frozenset({"pi", "e", "i"})
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


def read_term(text: str, plus_minus: int = 1) -> Term:
    r"""Parse a formula; `plus_minus` is the sign that `\pm` stands for.

    Raises:
        UnreadableError: The text is not a formula, or is too deep or too long.
    """
    if len(text) > _MAX_CHARS:
        raise UnreadableError("too long")
    reader = _Reader(text, plus_minus)
    term = reader.sum()
    if reader.position != len(reader.tokens):
        raise UnreadableError(f"unexpected {reader.tokens[reader.position]!r}")
    return term


class _Reader:
    """A recursive descent parser with one token of lookahead."""

    def __init__(self, text: str, plus_minus: int) -> None:
        self.tokens = [match.group().strip() for match in _TOKEN.finditer(text.strip())]
        self.position = 0
        self._signs = dict(zip(_SIGNS, (1, -1, plus_minus, -plus_minus), strict=True))
        self._depth = 0
        self._in_bars = False

    @property
    def ahead(self) -> str:
        """The next token; "" at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def sum(self) -> Term:
        """Parse terms with signs between them."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadableError("too deep")
        terms: list[Term] = []
        while not terms or self.ahead in _SIGNS:
            sign = 1
            while self.ahead in _SIGNS:
                sign *= self._signs[self._take()]
            terms.append(self._product() if sign > 0 else negative(self._product()))
        self._depth -= 1
        return _combined("+", terms)

    def _product(self) -> Term:
        factors = [self._power()]
        while True:
            if self._took("*"):
                factors.append(self._factor())
            elif self._took("/"):
                factors.append(_inverse(self._factor()))
            elif self._starts_factor():
                if self.ahead[-1] in _DIGITS and self.tokens[self.position - 1][-1] in _DIGITS:
                    raise UnreadableError("two numbers side by side")
                factors.append(self._power())
            else:
                return _combined("*", factors)

    def _factor(self) -> Term:
        return negative(self._power()) if self._took("-") else self._power()

    def _starts_factor(self) -> bool:
        if self.ahead == "|":
            return not self._in_bars
        return self.ahead not in _SIGNS and _FACTOR.match(self.ahead) is not None

    def _power(self) -> Term:
        base = self._atom()
        while self._took("!"):
            base = Call("factorial", (base,))
        return Call("^", (base, self._exponent())) if self._took("^") else base

    def _exponent(self) -> Term:
        if self._took("-"):
            return negative(self._exponent())
        self._took("+")
        return self._enclosed() if self.ahead == "{" else self._power()

    def _atom(self) -> Term:
        token = self.ahead
        if token in _CLOSING:
            return self._enclosed()
        self._take()
        if token[-1] in _DIGITS:
            return self._number(token)
        if token[0] == "\\" or len(token) > 1:
            return self._command(token.removeprefix("\\"))
        if token.isalpha() and token < _FIRST_IDEOGRAPH:
            return self._symbol(token)
        raise UnreadableError(f"unexpected {token!r}")

    def _number(self, digits: str) -> Term:
        """Parse a number; with a proper fraction after it, a mixed number."""
        number, mark = Number(Fraction(digits)), self.position
        if self.ahead == "\\frac" and number.value.denominator == 1:
            match self._atom():
                case Call("*", (Number(above), Call("^", (Number(below), _)))) as part if (
                    0 < above < below and above.denominator == 1 == below.denominator
                ):
                    return Call("+", (number, part))
            self.position = mark
        return number

    def _command(self, name: str) -> Term:
        if name == "frac":
            return Call("*", (self._argument(), _inverse(self._argument())))
        if name == "sqrt":
            degree = self._enclosed() if self.ahead == "[" else _TWO
            return Call("root", (degree, self._argument()))
        if name == "binom":
            return Call("binom", (self._argument(), self._argument()))
        if name == "log":
            return self._applied("log", (self._argument() if self._took("_") else _TEN,))
        if name in FUNCTIONS:
            return self._applied(name, ())
        if name in ("infty", "infinity", "oo"):
            return Symbol("infty")
        if name in _GREEK_NAMES:
            return self._symbol(name)
        raise UnreadableError(f"unknown command \\{name}")

    def _applied(self, name: str, first: tuple[Term, ...]) -> Term:
        exponent = self._exponent() if self._took("^") else None
        is_bracketed = self.ahead in ("(", "{", "[")
        factors = [self._power()]
        while not is_bracketed and self._starts_factor() and self.ahead not in WORDS:
            if not (self.ahead.isalnum() or self.ahead == "\\frac" or self.ahead[1:] in _GREEK_NAMES):
                break
            factors.append(self._power())
        applied = Call(name, (*first, _combined("*", factors)))
        if exponent is None:
            return applied
        if name in ("sin", "cos", "tan") and exponent == MINUS_ONE:
            return Call(f"arc{name}", (_combined("*", factors),))
        return Call("^", (applied, exponent))

    def _symbol(self, name: str) -> Term:
        if self._took("_"):
            braced = self._took("{")
            name += f"_{self._take()}"
            while braced and not self._took("}"):
                name += self._take()
        while self._took("'"):
            name += "'"
        return Symbol(name)

    def _argument(self) -> Term:
        """Parse an argument by TeX's rules: a group, a command, or a single digit or letter."""
        if self.ahead in ("{", "("):
            return self._enclosed()
        if self.ahead[:1] in _DIGITS:
            self.tokens[self.position : self.position + 1] = list(self.ahead)
            return Number(Fraction(self._take()))
        return self._atom()

    def _enclosed(self) -> Term:
        opening = self._take()
        outside, self._in_bars = self._in_bars, opening == "|"
        term = self.sum()
        self._in_bars = outside
        if self._take() != _CLOSING[opening]:
            raise UnreadableError("a bracket is not closed")
        return Call("abs", (term,)) if opening == "|" else term

    def _took(self, token: str) -> bool:
        """Take the next token if it is this one; return True if it was."""
        is_next = self.ahead == token
        self.position += is_next
        return is_next

    def _take(self) -> str:
        token = self.ahead
        if not token:
            raise UnreadableError("ends too soon")
        self.position += 1
        return token


def negative(term: Term) -> Term:
    """Return -`term`."""
    return Number(-term.value) if isinstance(term, Number) else Call("*", (MINUS_ONE, term))


def _inverse(term: Term) -> Term:
    return Call("^", (term, MINUS_ONE))


def _combined(name: str, parts: Sequence[Term]) -> Term:
    return parts[0] if len(parts) == 1 else Call(name, tuple(parts))


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


def symbols_of(term: Term) -> frozenset[str]:
    """Return the names of the symbols, without constants."""
    if isinstance(term, Call):
        return frozenset().union(*map(symbols_of, term.arguments))
    return frozenset({term.name}) - _CONSTANTS if isinstance(term, Symbol) else frozenset()


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
