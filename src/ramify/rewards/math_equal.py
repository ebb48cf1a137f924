r"""Equality of mathematical answers.

    1/2 = 0.5 = \frac{50}{100}    \{1,-2\} = -2, 1    (3,4] = 3 < x \le 4    10\% = 10%    52_{8} = 52_8    5 \text{ cm} = 5

Signs, symbols' case, brackets and the order inside brackets matter. Text rules come first, then values at points
(`math_values`), and only what those cannot read or decide goes to math-verify in its own process.
"""

import functools
import re
from collections.abc import Sequence
from fractions import Fraction

from ramify.rewards.math_forms import (
    GROUPED_DIGITS,
    Based,
    Equation,
    Form,
    Formula,
    Group,
    Many,
    Matrix,
    Named,
    Text,
    read_form,
)
from ramify.rewards.math_markup import clean
from ramify.rewards.math_terms import MINUS_ONE, Number, Power, Product, Sum, Symbol, Term
from ramify.rewards.math_units import is_letter, is_measure
from ramify.rewards.math_values import exact_value, same_up_to_factor, same_value, symbols_of
from ramify.rewards.math_workers import MathWorkers, Symbolic, shared_workers

_MAX_CHARS, _MAX_DEPTH = 4000, 40
_WORD = re.compile(r"(?<![\\A-Za-z])(?!sin|cos|tan|log|exp|sqrt)[A-Za-z]{3,}")
_RANGE = re.compile(r"\d+(?:-\d+)+")
_FROM_TO = re.compile(r"\d to \d")
_DESIGNATION = re.compile(rf"{_RANGE.pattern}|[A-Z]+-\d+\w*")
_BLANK = re.compile(r" (?!(?<=\d )\d)|(?<=\d) (?=\d{3}(?!\d))")
_OPERATORS = "=^*/<>|+-_"
_NO_FORMULA = re.compile(rf"{_WORD.pattern}|\d\s+\d|\.\d+\.|__|'[A-Za-z/]|(?:!\s*){{4}}")
"""What math-verify would read in part, or as something else: words, numbers side by side, two points, quotes, bombs."""
_CURRENCIES = frozenset({"dollar", "euro", "sterling"})
_NOT_READ = (ArithmeticError, ValueError, RecursionError)
"""What a formula may break, `UnreadableError` and `UndecidedError` among it: one answer must not end an evaluation."""


def math_equal(prediction: str, golds: Sequence[str], workers: MathWorkers | None = None) -> float:
    """1.0 when the prediction equals one of `golds`, else 0.0. A comparison that takes too long is unequal."""
    return float(any(_equal(prediction, gold, workers) for gold in golds))


def math_equal_quickly(prediction: str, golds: Sequence[str]) -> float:
    """As `math_equal`, without math-verify: what only that could decide is unequal."""
    return float(any(decide(prediction, gold) is True for gold in golds))


@functools.lru_cache(maxsize=1 << 12)
def is_mathematical(gold: str) -> bool:
    """Whether a gold is compared as mathematics: LaTeX, a number with or without a known unit, a formula with operators.

    Dates, ranges ("1999-2004"), names ("A41") and anything else with words in it are not.
    """
    if len(gold) > _MAX_CHARS:
        return False
    form, text = _form(gold), clean(gold)
    if form is None or isinstance(form, Text) or _DESIGNATION.fullmatch(text) or _FROM_TO.search(text):
        return form is None and "\\" in gold
    letters = re.findall("[A-Za-z]+", text)
    if "\\" in gold or not letters:
        return _has_digit_or_command(gold)
    if isinstance(form, Formula) and form.unit:
        return is_measure(form.unit)
    longest = max(map(len, letters))
    return any(c in _OPERATORS for c in text) and longest <= (2 if _has_digit_or_command(gold) else 1)


def same_text(prediction: str, gold: str) -> bool:
    """Whether two answers are the same but for typesetting, thousands separators among it."""
    if max(len(prediction), len(gold)) > _MAX_CHARS:
        return prediction.strip() == gold.strip() != ""
    return _untypeset(prediction) == _untypeset(gold) != ""


@functools.lru_cache(maxsize=1 << 12)
def decide(prediction: str, gold: str) -> bool | None:
    """Compare by text and by values; None when they do not tell."""
    if max(len(prediction), len(gold)) > _MAX_CHARS:
        return prediction.strip() == gold.strip()
    left, right = clean(prediction), clean(gold)
    if not left or not right:
        return False
    if _unspaced(left) == _unspaced(right):
        return True
    if _RANGE.fullmatch(left) and _RANGE.fullmatch(right):
        return False
    written, wanted = _form(prediction), _form(gold)
    if any(
        isinstance(form, Based) and text.lower() == form.digits.lower()
        for form, text in ((written, right), (wanted, left))
    ):
        return True
    if written is None or wanted is None:
        same_words = left.replace('"', "").lower() == right.replace('"', "").lower()
        return True if same_words and isinstance(written or wanted, Text) else None
    try:
        return same_form(written, wanted)
    except _NOT_READ:
        return None


def same_form(written: Form, wanted: Form) -> bool:
    """Whether two answers that were read are equal.

    Raises:
        UndecidedError: Values at points do not tell.
    """
    if isinstance(written, Named) or isinstance(wanted, Named):
        return _same_named(written, wanted)
    if isinstance(written, Equation) and isinstance(wanted, Equation):
        return same_up_to_factor(written.difference, wanted.difference)
    if isinstance(written, Equation) and written.stated and not _has_symbols(wanted):
        return same_form(written.stated, wanted)
    if isinstance(written, Text) or isinstance(wanted, Text):
        return _as_text(written) == _as_text(wanted) != ""
    if isinstance(written, Based) or isinstance(wanted, Based):
        return _same_based(written, wanted)
    if isinstance(written, Matrix) or isinstance(wanted, Matrix):
        return _same_matrix(written, wanted)
    if isinstance(written, Formula) and isinstance(wanted, Formula):
        return _same_formula(written, wanted)
    return _same_collection(written, wanted)


def _equal(prediction: str, gold: str, workers: MathWorkers | None) -> bool:
    decided = decide(prediction, gold)
    if decided is not None or not (_has_digit_or_command(prediction) and _has_digit_or_command(gold)):
        return decided is True
    left, right = (clean(text).replace('"', "").replace(";", ",") for text in (prediction, gold))
    if not all(_is_nested_soundly(text) and _NO_FORMULA.search(text) is None for text in (left, right)):
        return False
    return (workers or shared_workers()).compare(left, right) is Symbolic.EQUAL


def _unspaced(text: str) -> str:
    """Without blanks; one between two numbers stays, unless it separates thousands."""
    return _BLANK.sub("", text) if " " in text else text


def _untypeset(text: str) -> str:
    cleaned = _unspaced(clean(text)).replace('"', "").replace(";", ",")
    return cleaned.replace(",", "") if GROUPED_DIGITS.fullmatch(cleaned) else cleaned


def _is_nested_soundly(text: str) -> bool:
    """Whether the braces balance and are not too deep: anything else is no formula and only costs time."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        if not 0 <= depth <= _MAX_DEPTH:
            return False
    return depth == 0


def _has_digit_or_command(text: str) -> bool:
    return any(c.isdecimal() or c == "\\" for c in text)


@functools.lru_cache(maxsize=1 << 12)
def _form(text: str) -> Form | None:
    if len(text) > _MAX_CHARS:
        return None
    try:
        return read_form(clean(text))
    except _NOT_READ:
        return None


def _same_named(written: Form, wanted: Form) -> bool:
    """A name may be left out; two different letters are two equations."""
    if isinstance(written, Named) and isinstance(wanted, Named):
        if written.name == wanted.name or (
            (_is_word(written.name) or _is_word(wanted.name)) and not _are_numbered(written.name, wanted.name)
        ):
            return same_form(written.value, wanted.value)
    elif not isinstance(written, Equation) and not isinstance(wanted, Equation):
        return same_form(_value_of(written), _value_of(wanted))
    left, right = _difference(written), _difference(wanted)
    return left is not None and right is not None and same_up_to_factor(left, right)


def _is_word(name: str) -> bool:
    """A name that says what is meant ("total", "f(x)"), not one letter of several."""
    return len(name) > 2 and not name.startswith(("(", "\\"))


def _are_numbered(*names: str) -> bool:
    """Whether each names one of several ("f(2)", "S_5")."""
    return all(any(c.isdecimal() for c in name) for name in names)


def _value_of(form: Form) -> Form:
    return form.value if isinstance(form, Named) else form


def _difference(form: Form) -> Term | None:
    if isinstance(form, Equation):
        return form.difference
    if isinstance(form, Named) and isinstance(form.value, Formula) and len(form.name) == 1:
        return Sum((Symbol(form.name), Product((MINUS_ONE, form.value.term))))
    return None


def _has_symbols(form: Form) -> bool:
    return not isinstance(form, Formula) or bool(symbols_of(form.term))


def _as_text(form: Form) -> str:
    if isinstance(form, Text):
        return form.words
    return form.term.name.lower() if isinstance(form, Formula) and isinstance(form.term, Symbol) else ""


def _same_based(written: Form, wanted: Form) -> bool:
    """Digits in a base, which the answer may leave out."""
    if isinstance(written, Based) and isinstance(wanted, Based):
        return (written.digits.lower(), written.base) == (wanted.digits.lower(), wanted.base)
    based, other = (written, wanted) if isinstance(written, Based) else (wanted, written)
    if not (isinstance(based, Based) and isinstance(other, Formula) and based.digits.isdecimal()):
        return False
    return exact_value(other.term) == Fraction(based.digits)


def _same_matrix(written: Form, wanted: Form) -> bool:
    if isinstance(written, Matrix) and isinstance(wanted, Matrix):
        shapes = [[len(row) for row in matrix.rows] for matrix in (written, wanted)]
        if shapes[0] != shapes[1] or written.bars != wanted.bars:
            return False
        return _same_in_order(sum(written.rows, ()), sum(wanted.rows, ()))
    matrix, other = (written, wanted) if isinstance(written, Matrix) else (wanted, written)
    if not isinstance(matrix, Matrix) or matrix.bars or not isinstance(other, Group):
        return False
    brackets = {(group.opening, group.closing) for group in (other, *other.items) if isinstance(group, Group)}
    rows = [item.items for item in other.items if isinstance(item, Group)]
    if len(rows) == len(other.items) and brackets in ({("(", ")")}, {("[", "]")}):
        return _same_matrix(Matrix(tuple(rows)), Matrix(matrix.rows))
    if not _is_tuple(other):
        return False
    is_vector = len(matrix.rows) == 1 or all(len(row) == 1 for row in matrix.rows)
    return is_vector and _same_in_order(sum(matrix.rows, ()), other.items)


def _same_formula(written: Formula, wanted: Formula) -> bool:
    left, right = written.unit, wanted.unit
    if _is_factored(wanted.term) and isinstance(written.term, Sum):
        return False
    if left == "%" != right:
        return right == "" and _same_percentage(written.term, wanted.term)
    if right == "%" != left:
        same = same_value(written.term, wanted.term) or same_value(written.term, _hundredth(wanted.term))
        return left == "" and same
    if left and right and not _is_price(left, right):
        return _is_same_unit(left, right) and same_value(written.term, wanted.term)
    return same_value(_with_letter(written, wanted), _with_letter(wanted, written))


def _is_same_unit(left: str, right: str) -> bool:
    """Plain pounds may be of money too."""
    return left == right or {left, right} == {"lb", "sterling"}


def _is_price(left: str, right: str) -> bool:
    """Whether a currency stands against what is no measure ("$5", "5 in all"), or against a price for something."""
    return any(
        money in _CURRENCIES and (not is_measure(other) or other.startswith(f"{money}/"))
        for money, other in ((left, right), (right, left))
    )


def _with_letter(form: Formula, other: Formula) -> Term:
    """A letter behind a number is a variable where the other side has variables: "3 m" and `m + 2m`."""
    if is_letter(form.unit) and symbols_of(other.term):
        return Product((form.term, Symbol(form.unit)))
    return form.term


def _same_percentage(written: Term, wanted: Term) -> bool:
    """ "10%" for 0.1; for 10 too, since no answer of 1 or more is likely to mean a hundredth of it."""
    value = exact_value(wanted)
    bare = value is not None and abs(value) >= 1 and same_value(written, wanted)
    return bare or same_value(_hundredth(written), wanted)


def _hundredth(term: Term) -> Term:
    return Product((term, Number(Fraction(1, 100))))


def _is_factored(term: Term) -> bool:
    """A product of at least two sums, or a power of one: who gives that as a gold asks for factors."""
    factors = term.factors if isinstance(term, Product) else (term,)
    sums = 0
    for factor in factors:
        power = 1
        if isinstance(factor, Power):
            exponent = exact_value(factor.exponent)
            power = int(exponent) if exponent is not None and exponent.denominator == 1 else 0
            factor = factor.base
        if isinstance(factor, Sum) and symbols_of(factor):
            if power < 1:
                return False
            sums += power
    return sums > 1


def _same_collection(written: Form, wanted: Form) -> bool:
    if not (isinstance(written, Many | Group) or isinstance(wanted, Many | Group)):
        return False
    left, right = _items(written), _items(wanted)
    if len(left) != len(right):
        return False
    if isinstance(written, Group) and isinstance(wanted, Group):
        same_brackets = (written.opening, written.closing) == (wanted.opening, wanted.closing)
        return same_brackets and _same_in_order(left, right)
    if isinstance(written, Group) or isinstance(wanted, Group):
        return _is_tuple(written) and _is_tuple(wanted) and _same_in_order(left, right)
    names = {item.name for item in right if isinstance(item, Named)}
    if len(names) == len(right) > 1 and not any(isinstance(item, Named) for item in left):
        return _same_in_order(left, right)
    return _same_in_any_order(left, right)


def _is_tuple(form: Form) -> bool:
    """Whether it is one, or a list that may stand for one; sets and intervals are none."""
    if isinstance(form, Group):
        return (form.opening, form.closing, form.is_interval) == ("(", ")", False)
    return isinstance(form, Many) and form.is_list


def _items(form: Form) -> tuple[Form, ...]:
    return form.items if isinstance(form, Many | Group) else (form,)


def _same_in_order(left: Sequence[Form], right: Sequence[Form]) -> bool:
    return len(left) == len(right) and all(same_form(a, b) for a, b in zip(left, right, strict=True))


def _same_in_any_order(left: Sequence[Form], right: Sequence[Form]) -> bool:
    """Each is matched with one of the other side; equality is transitive, so the first match will do."""
    unmatched = list(right)
    for item in left:
        position = next((i for i, other in enumerate(unmatched) if same_form(item, other)), None)
        if position is None:
            return False
        del unmatched[position]
    return not unmatched
