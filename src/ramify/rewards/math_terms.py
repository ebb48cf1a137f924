r"""Formulas as trees: a reader of the LaTeX (and plain text) that answers are written in.

It reads what it knows and refuses the rest with `UnreadableError`, so that nothing is compared in part.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


class UnreadableError(ValueError):
    """The text is no formula of the kind that is read here."""


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number, as written."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter or a named symbol, with its subscript."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms added up."""

    terms: "tuple[Term, ...]"


@dataclass(frozen=True, slots=True)
class Product:
    """Factors multiplied; a quotient holds a power of -1."""

    factors: "tuple[Term, ...]"


@dataclass(frozen=True, slots=True)
class Power:
    """`base` to the power `exponent`."""

    base: "Term"
    exponent: "Term"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of one or two arguments (`root` and `log` have the degree or base first)."""

    name: str
    arguments: "tuple[Term, ...]"


Term: TypeAlias = Number | Symbol | Sum | Product | Power | Call

MINUS_ONE = Number(Fraction(-1))
FUNCTIONS = (
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "ln",
    "exp",
)
_PLAIN = "|".join((*FUNCTIONS, "sqrt", "log", "pi", "infinity", "infty", "oo"))
_TOKEN = re.compile(
    rf"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(\\[A-Za-z]+|(?:{_PLAIN})(?![A-Za-z]))|([A-Za-z])|(.))", re.DOTALL
)
_FIRST_IDEOGRAPH = "\u2e80"
"""From here on letters are words: the 5th of a month is no product."""
_GREEK = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi varphi
chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar
"""
_GREEK_NAMES = frozenset(_GREEK.split())
_NO_FACTOR = frozenset({"\\pm", "\\mp", "\\bmod"})
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_DIGITS = frozenset("0123456789")
_MAX_DEPTH = 40
_MAX_CHARS = 1000
_MAX_FACTORIALS = 3


def read_term(text: str, plus_minus: int = 1) -> Term:
    r"""Read a formula; `plus_minus` is the sign that `\pm` stands for.

    Raises:
        UnreadableError: It holds something else, is too deep or too long.
    """
    if len(text) > _MAX_CHARS:
        raise UnreadableError("too long")
    reader = _Reader(text, plus_minus)
    term = reader.sum()
    if reader.position != len(reader.tokens):
        raise UnreadableError(f"what is {reader.tokens[reader.position]!r} here")
    return term


class _Reader:
    """Recursive descent over the tokens; one look ahead."""

    def __init__(self, text: str, plus_minus: int) -> None:
        matches = list(_TOKEN.finditer(text.strip()))
        self.tokens = [next(filter(None, match.groups())) for match in matches]
        self.position = 0
        self._plus_minus = plus_minus
        self._depth = 0
        self._inside_bars = 0

    @property
    def ahead(self) -> str:
        """The next token; "" at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def sum(self) -> Term:
        """Terms with signs between them."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadableError("too deep")
        terms = [self._signed()]
        while self.ahead in ("+", "-", "\\pm", "\\mp"):
            terms.append(self._signed())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def _signed(self) -> Term:
        sign = 1
        while self.ahead in ("+", "-", "\\pm", "\\mp"):
            sign *= {"+": 1, "-": -1, "\\pm": self._plus_minus, "\\mp": -self._plus_minus}[self._take()]
        product = self._product()
        if sign > 0:
            return product
        return Number(-product.value) if isinstance(product, Number) else Product((MINUS_ONE, product))

    def _product(self) -> Term:
        factors = [self._power()]
        while True:
            if self.ahead == "*":
                self._take()
                factors.append(self._factor())
            elif self.ahead == "/":
                self._take()
                factors.append(inverse(self._factor()))
            elif self.ahead == "\\bmod":
                self._take()
                factors = [
                    Call(
                        "mod", (factors[0] if len(factors) == 1 else Product(tuple(factors)), self._factor())
                    )
                ]
            elif self._starts_factor():
                self._refuse_adjacent_numbers()
                factors.append(self._power())
            else:
                return factors[0] if len(factors) == 1 else Product(tuple(factors))

    def _factor(self) -> Term:
        if self.ahead == "-":
            self._take()
            return Product((MINUS_ONE, self._power()))
        return self._power()

    def _refuse_adjacent_numbers(self) -> None:
        if self.ahead[-1] in _DIGITS and self.tokens[self.position - 1][-1] in _DIGITS:
            raise UnreadableError("two numbers side by side")

    def _starts_factor(self) -> bool:
        token = self.ahead
        if token == "|":
            return not self._inside_bars
        if token in _NO_FACTOR:
            return False
        return bool(token) and (token[0].isalnum() or token in "({[" or token[0] == "\\" or len(token) > 1)

    def _power(self) -> Term:
        base = self._atom()
        for _ in range(_MAX_FACTORIALS):
            if self.ahead != "!":
                break
            self._take()
            base = Call("factorial", (base,))
        if self.ahead == "^":
            self._take()
            base = Power(base, self._exponent())
        return base

    def _exponent(self) -> Term:
        if self.ahead in ("-", "+"):
            sign = self._take()
            exponent = self._exponent()
            return Product((MINUS_ONE, exponent)) if sign == "-" else exponent
        return self._group("{") if self.ahead == "{" else self._power()

    def _atom(self) -> Term:
        token = self.ahead
        if not token:
            raise UnreadableError("ends too soon")
        if token in _CLOSING:
            return self._group(token)
        if token == "|":
            return self._bars()
        self._take()
        if token[-1] in _DIGITS:
            return self._number(token)
        if token[0] == "\\" or len(token) > 1:
            return self._command(token.removeprefix("\\"))
        if token.isalpha() and token < _FIRST_IDEOGRAPH:
            return self._symbol(token)
        raise UnreadableError(f"what is {token!r} here")

    def _number(self, digits: str) -> Term:
        number = Number(Fraction(digits))
        if self.ahead != "\\frac" or number.value.denominator != 1:
            return number
        mark = self.position
        fraction = self._atom()
        below_one = isinstance(fraction, Product) and _is_proper(fraction)
        if below_one:
            return Sum((number, fraction))
        self.position = mark
        return number

    def _command(self, name: str) -> Term:
        if name == "frac":
            above, below = self._argument(), self._argument()
            return Product((above, inverse(below)))
        if name == "sqrt":
            degree = self._group("[") if self.ahead == "[" else Number(Fraction(2))
            return Call("root", (degree, self._argument()))
        if name == "binom":
            return Call("binom", (self._argument(), self._argument()))
        if name == "log":
            base: Term = Number(Fraction(10))
            if self.ahead == "_":
                self._take()
                base = self._argument()
            return self._applied("log", (base,))
        if name in FUNCTIONS:
            return self._applied(name, ())
        if name in ("infty", "infinity", "oo"):
            return Symbol("infty")
        if name == "pi" or name in _GREEK_NAMES:
            return self._symbol(name)
        raise UnreadableError(f"what is \\{name}")

    def _applied(self, name: str, first: tuple[Term, ...]) -> Term:
        exponent: Term | None = None
        if self.ahead == "^":
            self._take()
            exponent = self._exponent()
        if self.ahead in ("(", "{", "["):
            argument = self._power()
        else:
            factors = [self._power()]
            while self._starts_factor() and (self.ahead.isalnum() or self.ahead in ("\\pi", "\\frac")):
                if self.ahead in _PLAIN.split("|"):
                    break
                factors.append(self._power())
            argument = factors[0] if len(factors) == 1 else Product(tuple(factors))
        applied = Call(name, (*first, argument))
        if exponent is None:
            return applied
        if name in ("sin", "cos", "tan") and exponent == MINUS_ONE:
            return Call(f"arc{name}", (argument,))
        return Power(applied, exponent)

    def _symbol(self, name: str) -> Term:
        if self.ahead == "_":
            self._take()
            subscript = self._raw_group() if self.ahead == "{" else self._take()
            name = f"{name}_{subscript}"
        while self.ahead == "'":
            name += self._take()
        return Symbol(name)

    def _argument(self) -> Term:
        """What TeX takes as an argument: a group, a command, or one single digit or letter."""
        token = self.ahead
        if token == "{":
            return self._group("{")
        if token == "(":
            return self._group("(")
        if token[:1] in _DIGITS:
            self.tokens[self.position : self.position + 1] = list(token)
            return Number(Fraction(self._take()))
        return self._atom()

    def _group(self, opening: str) -> Term:
        self._take()
        inside_bars, self._inside_bars = self._inside_bars, 0
        term = self.sum()
        self._inside_bars = inside_bars
        if self._take() != _CLOSING[opening]:
            raise UnreadableError("a bracket is not closed")
        return term

    def _bars(self) -> Term:
        self._take()
        self._inside_bars += 1
        term = self.sum()
        self._inside_bars -= 1
        if self._take() != "|":
            raise UnreadableError("a bar is not closed")
        return Call("abs", (term,))

    def _raw_group(self) -> str:
        self._take()
        taken = []
        while self.ahead and self.ahead != "}":
            taken.append(self._take())
        self._take()
        return "".join(taken)

    def _take(self) -> str:
        token = self.ahead
        if not token:
            raise UnreadableError("ends too soon")
        self.position += 1
        return token


def inverse(term: Term) -> Term:
    """One over `term`."""
    return Power(term, MINUS_ONE)


def _is_proper(fraction: Product) -> bool:
    above, below = fraction.factors
    if not (isinstance(above, Number) and isinstance(below, Power) and isinstance(below.base, Number)):
        return False
    return below.base.value.denominator == 1 == above.value.denominator and 0 < above.value < below.base.value
