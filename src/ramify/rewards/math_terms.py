r"""Formulas as trees: a parser for the LaTeX (and plain text) in which answers are written.

The parser refuses whatever it does not know with `UnreadableError`, so that no formula is compared only in part.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


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

_CONSTANTS = frozenset({"pi", "e", "i"})


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


def symbols_of(term: Term) -> frozenset[str]:
    """Return the names of the symbols, without constants."""
    if isinstance(term, Call):
        return frozenset().union(*map(symbols_of, term.arguments))
    return frozenset({term.name}) - _CONSTANTS if isinstance(term, Symbol) else frozenset()
