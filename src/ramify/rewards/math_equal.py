r"""Equality of mathematical answers.

    1/2 = 0.5 = \frac{50}{100}    \{1,-2\} = -2, 1    (3,4] = 3 < x \le 4    10\% = 10%    52_{8} = 52_8    5 \text{ cm} = 5

Signs, the case of symbols, brackets and the order inside brackets matter. Text rules come first, then values at points
(`math_values`). Only what these cannot read or decide goes to math-verify, in a separate process. Answers that nothing
can read, and comparisons that run out of CPU time, count as unequal; `unread` and `timeout` report them.

That process forks for every comparison, since one may never end, or use up all memory, and none may meet what another left
behind. The limit is on CPU time, so a pair gets the same verdict however busy the machine is.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Literal, TypeGuard

from ramify.rewards.choices import same_choice
from ramify.rewards.math_forms import (
    LABEL,
    Equation,
    Form,
    Formula,
    Items,
    NamedValue,
    Text,
    clean,
    read_form,
)
from ramify.rewards.math_terms import (
    WORDS,
    Call,
    Number,
    Symbol,
    Term,
    negative,
    symbols_of,
)
from ramify.rewards.math_units import without_unit
from ramify.rewards.math_values import exact_value, same_up_to_factor, same_value
from ramify.rewards.words import canonical, same_clock_time
from ramify.runtime.limited_process import Ending, LimitedProcesses, Limits, UnansweredError, serve

_MAX_CHARS, _MAX_DEPTH = 4000, 40
_WORD = re.compile(r"(?<![\\A-Za-z])(?!sin|cos|tan|log|exp|sqrt)[A-Za-z]{3,}")
_DIGIT_GROUPS = re.compile(r"\d+(?:-\d+)+")
_DESIGNATION = re.compile(rf"{_DIGIT_GROUPS.pattern}|[A-Z]+-\d+\w*|[Nn]/[Aa]")
_BOUND = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_RANGE = re.compile(rf"(?:from )?({_BOUND})(?: ?[-\u2010\u2014] ?| to )({_BOUND})", re.IGNORECASE)
_PADDED = re.compile(r"\d{1,2}(?: ?: ?\d\d)*? ?: ?0\d(?: ?: ?\d\d)*")
_FROM_TO = re.compile(r"\d to \d")
_BLANK = re.compile(r" (?!(?<=\d )\d)|(?<=\d) (?=\d{3}(?!\d))")
_OPERATORS = "=^*/<>|+-_"
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\}")
_NO_FORMULA = re.compile(rf"{_WORD.pattern}|\d\s+\d|\.\d+\.|__|'[A-Za-z/]|(?:!\s*){{4}}")
"""What math-verify would read only in part or wrongly: words, adjacent numbers, two decimal points, quotes, factorial bombs."""
_MAX_SYMBOLIC = 2000
_WARM_UP = (
    (r"\frac{x^2-1}{x-1}+\sqrt{8}", r"x+1+2\sqrt{2}"),
    (r"\left\{1,\pi\right\}", r"\left\{\pi,1\right\}"),
    (r"(1, 2] \cup [3, \infty)", r"[3, \infty) \cup (1, 2]"),
    (r"\sin(x) \le 2", r"2 \ge \sin(x)"),
    (r"\sum_{k=1}^{9} k^2", "285"),
    (r"\int_0^1 x dx", "0.5"),
    (r"\lim_{x \to 0} \frac{\sin x}{x}", "1"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \end{pmatrix}"),
)
"""Comparisons that load everything once, so that the forked ones need not."""
_PERCENT, _ZERO, _ONE = Fraction(1, 100), Number(Fraction(0)), Number(Fraction(1))


class Symbolic(StrEnum):
    """The outcome of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNREAD = "unread"
    """One side is not a formula, or is too long."""
    TIMEOUT = "timeout"
    """It ran out of CPU time."""
    KILLED = "killed"
    """It ended for another reason, such as running out of memory."""


def math_equal(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals one of `golds`, else 0.0."""
    return float(any(compare(prediction, gold) is Symbolic.EQUAL for gold in golds))


def math_equal_quickly(prediction: str, golds: Sequence[str]) -> float:
    """Score as `math_equal` without math-verify: pairs that only math-verify could decide are unequal."""
    return float(any(decide(prediction, gold) is True for gold in golds))


def unread(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the prediction, or each mathematical gold, could not be read as mathematics, else 0.0."""
    return _ended_in(Symbolic.UNREAD, prediction, golds)


def timeout(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if a comparison ran out of CPU time or memory, and no other one found the prediction equal; else 0.0."""
    return max(_ended_in(outcome, prediction, golds) for outcome in (Symbolic.TIMEOUT, Symbolic.KILLED))


@functools.lru_cache(maxsize=1 << 12)
def is_mathematical(gold: str) -> bool:
    """Return True if a gold is compared as mathematics.

    Mathematics is LaTeX, a number with or without a known unit, a formula with operators, or the letter of a choice.
    Dates, ranges ("1999-2004"), names ("A41") and anything else with words in it are not.
    """
    if len(gold) > _MAX_CHARS:
        return False
    form, text = _form(gold), LABEL.sub("", clean(gold))
    if form is None or isinstance(form, Text) or _DESIGNATION.fullmatch(text) or _FROM_TO.search(text):
        return form is None and "\\" in gold
    letters = [name for name in re.findall("[A-Za-z]+", text) if name not in WORDS]
    if isinstance(form, Formula) and isinstance(form.term, Symbol):
        return True
    if "\\" in gold or not letters:
        # "√" and "½" are a command and a fraction by now; "①③" is a list of choices.
        return _has_digit_or_command(gold) or not {"\\", "/"}.isdisjoint(text)
    if isinstance(form, Formula) and form.unit:
        return form.unit.is_measure
    longest = max(map(len, letters))
    return any(c in _OPERATORS for c in text) and longest <= (2 if _has_digit_or_command(gold) else 1)


def decide(prediction: str, gold: str) -> bool | None:
    """Compare by text and by values; None if that does not decide. Texts over 4000 characters must be identical."""
    if max(len(prediction), len(gold)) > _MAX_CHARS:
        return prediction.strip() == gold.strip()
    return _decide(prediction, gold)


def compare(prediction: str, gold: str) -> Symbolic:
    """Compare two answers; the same pair always gets the same outcome."""
    decided = decide(prediction, gold)
    if decided is not None:
        return Symbolic.EQUAL if decided else Symbolic.DIFFERENT
    if not (_has_digit_or_command(prediction) and _has_digit_or_command(gold)):
        return Symbolic.UNREAD
    left, right = (clean(text).replace('"', "").replace(";", ",") for text in (prediction, gold))
    if not all(
        _has_balanced_braces(text) and _NO_FORMULA.search(_ENVIRONMENT.sub("", text)) is None
        for text in (left, right)
    ):
        return Symbolic.UNREAD
    return shared_worker().compare(left, right)


@functools.lru_cache(maxsize=1 << 12)
def _decide(prediction: str, gold: str) -> bool | None:
    if prediction.strip() == gold.strip():
        return bool(gold.strip())
    if (is_chosen := same_choice(prediction, gold)) is not None:
        return is_chosen
    try:
        left, right = clean(prediction), clean(gold)
        if not left or not right:
            return False
        # A blank between two numbers stays unless it separates thousands.
        if _BLANK.sub("", left) == _BLANK.sub("", right):
            return True
        times = _same_time(prediction, gold) if ":" in left + right else None
        if (is_same := _same_range(left, right) if times is None else times) is not None:
            return is_same
        written, wanted = _form(prediction), _form(gold)
        if written is None or wanted is None:
            same_words = left.replace('"', "").lower() == right.replace('"', "").lower()
            return True if same_words and isinstance(written or wanted, Text) else None
        return same_form(written, wanted)
    # The answer is untrusted text: no error that it causes here may end an evaluation.
    except Exception:  # noqa: BLE001
        return None


def _same_time(prediction: str, gold: str) -> bool | None:
    """Compare times of day; None for ratios. "2:05" is a time and no ratio of 2 to 5."""
    if (same_time := same_clock_time(prediction, gold)) is not None:
        return same_time
    is_padded, is_gold_padded = (_PADDED.fullmatch(clean(text)) is not None for text in (prediction, gold))
    return None if is_padded is is_gold_padded else False


def _same_range(written: str, wanted: str) -> bool | None:
    """Compare ranges and scores ("5-7", "5 to 7"); None if the gold is neither, nor a code of digits ("800-555-1234")."""
    (text, _, unit), (gold, _, gold_unit) = without_unit(written), without_unit(wanted)
    bounds, gold_bounds = _RANGE.fullmatch(text), _RANGE.fullmatch(gold)
    if gold_bounds is None:
        return False if _DIGIT_GROUPS.fullmatch(wanted) else None
    same_unit = unit == gold_unit or not (unit and gold_unit)
    return (
        bounds is not None
        and same_unit
        and [*map(canonical, bounds.groups())] == [*map(canonical, gold_bounds.groups())]
    )


def same_form(written: Form, wanted: Form) -> bool:
    """Return True if two parsed answers are equal.

    Raises:
        UndecidedError: Values at points do not decide.
    """
    if isinstance(written, NamedValue | Equation) or isinstance(wanted, NamedValue | Equation):
        return _same_related(written, wanted)
    if isinstance(written, Text) or isinstance(wanted, Text):
        return _as_text(written) == _as_text(wanted) != ""
    if isinstance(written, Formula) and isinstance(wanted, Formula):
        nothing = _is_nothing_of(written.term) or _is_nothing_of(wanted.term)
        return written == wanted if nothing else _same_formula(written, wanted)
    return _same_items(written, wanted)


def _ended_in(outcome: Symbolic, prediction: str, golds: Sequence[str]) -> float:
    outcomes = [compare(prediction, gold) for gold in golds if is_mathematical(gold)]
    return float(outcome in outcomes and Symbolic.EQUAL not in outcomes)


def _has_balanced_braces(text: str) -> bool:
    """Return True if the braces balance and are not too deep; other texts are no formulas and would only cost time."""
    braces = re.findall(r"(?<!\\)[{}]", text)
    depths = [0, *itertools.accumulate(1 if brace == "{" else -1 for brace in braces)]
    return depths[-1] == 0 == min(depths) and max(depths) <= _MAX_DEPTH


def _has_digit_or_command(text: str) -> bool:
    return any(c.isdecimal() or c == "\\" for c in text)


@functools.lru_cache(maxsize=1 << 12)
def _form(text: str) -> Form | None:
    try:
        return read_form(clean(text))
    except Exception:  # noqa: BLE001 - as above
        return None


def _same_related(*forms: Form) -> bool:
    """Compare answers with names or equations. A name may be left out; different letters make different equations."""
    if not any(isinstance(form, Equation) for form in forms):
        names = [form.name for form in forms if isinstance(form, NamedValue)]
        # A word ("total", "f(x)") describes the value, a letter is one among several, as are "f(2)" and "S_5".
        says_more = any(len(name) > 2 and not name.startswith(("(", "\\")) for name in names)
        are_numbered = all(any(c.isdecimal() for c in name) for name in names)
        if len({*names}) < 2 or (says_more and not are_numbered):
            return same_form(*(form.value if isinstance(form, NamedValue) else form for form in forms))
    left, right = map(_difference, forms)
    if left is not None and right is not None:
        return same_up_to_factor(left, right)
    equation, other = forms if isinstance(forms[0], Equation) else forms[::-1]
    if not isinstance(equation, Equation) or equation.stated is None or isinstance(other, Equation):
        return False
    return same_form(equation.stated, other)


def _difference(form: Form) -> Term | None:
    if isinstance(form, Equation):
        return form.difference
    if isinstance(form, NamedValue) and isinstance(form.value, Formula) and len(form.name) == 1:
        return Call("+", (Symbol(form.name), negative(form.value.term)))
    return None


def _as_text(form: Form) -> str:
    if isinstance(form, Text):
        return form.words
    return form.term.name.lower() if isinstance(form, Formula) and isinstance(form.term, Symbol) else ""


def _same_formula(written: Formula, wanted: Formula) -> bool:
    left, right = written.unit, wanted.unit
    if _is_factored(wanted.term) and _is(written.term, "+"):
        return False
    if left and right:
        return left.of == right.of and same_value(
            _times(written.term, left.factor), _times(wanted.term, right.factor)
        )
    is_same = same_value(written.term, wanted.term)
    if left and left.of == "%":
        # "10%" equals 0.1. It also equals 10, since a gold of 1 or more hardly ever means a hundredth of itself.
        is_large = abs(exact_value(wanted.term) or _ZERO.value) >= 1
        return (is_same and is_large) or same_value(_times(written.term, _PERCENT), wanted.term)
    if right and right.of == "%":
        return is_same or same_value(written.term, _times(wanted.term, _PERCENT))
    return is_same


def _times(term: Term, factor: Fraction) -> Term:
    return term if factor == 1 else Call("*", (term, Number(factor)))


def _is_nothing_of(term: Term) -> bool:
    """Return True for letters times a plain 0: "Boeing 0" is not 0."""
    return _is(term, "*") and _ZERO in term.arguments and bool(symbols_of(term))


def _is(term: Term, name: str) -> TypeGuard[Call]:
    return isinstance(term, Call) and term.name == name


def _is_factored(term: Term) -> bool:
    """Return True if a term is a product of at least two sums, or a power of one: such a gold asks for the factored form."""
    sums = Fraction(0)
    for factor in term.arguments if _is(term, "*") else (term,):
        base, exponent = factor.arguments if _is(factor, "^") else (factor, _ONE)
        if _is(base, "+") and symbols_of(base):
            power = exact_value(exponent)
            if power is None or power < 1 or power.denominator > 1:
                return False
            sums += power
    return sums > 1


def _same_items(*forms: Form) -> bool:
    written, wanted = (form if isinstance(form, Items) else Items("{}", (form,)) for form in forms)
    if "m" in (written.brackets, wanted.brackets):
        return _same_matrix(written, wanted)
    left, right = written.items, wanted.items
    if written.brackets in ("", "{}") and wanted.brackets in ("", "{}"):
        names = {item.name for item in right if isinstance(item, NamedValue)}
        if len(names) == len(right) > 1 and not any(isinstance(item, NamedValue) for item in left):
            return _same_in_order(left, right)
        return _same_in_any_order(left, right)
    if written.brackets == wanted.brackets:
        return _same_in_order(left, right)
    return _is_tuple(written) and _is_tuple(wanted) and _same_in_order(left, right)


def _is_tuple(items: Items) -> bool:
    """Return True for a tuple and for a list that may stand for one, but not for a set or an interval."""
    return items.brackets == "" or (items.brackets == "()" and not items.is_interval)


def _same_matrix(written: Items, wanted: Items) -> bool:
    """Compare row by row. A vector may also be a tuple, and rows may have other brackets."""
    if written.brackets != "m":
        return _same_matrix(wanted, written)
    rows = [row.items for row in written.items if isinstance(row, Items)]
    others = [row.items for row in wanted.items if isinstance(row, Items)]
    if len(others) == len(wanted.items):
        same_shape = [*map(len, rows)] == [*map(len, others)]
        return same_shape and all(map(_same_in_order, rows, others))
    is_vector = len(rows) == 1 or all(len(row) == 1 for row in rows)
    return is_vector and _is_tuple(wanted) and _same_in_order(sum(rows, ()), wanted.items)


def _same_in_order(left: Sequence[Form], right: Sequence[Form]) -> bool:
    return len(left) == len(right) and all(map(same_form, left, right))


def _same_in_any_order(left: Sequence[Form], right: Sequence[Form]) -> bool:
    """Match each item with one of the other side; the first match will do, since equality is transitive."""
    unmatched = list(right)
    for item in left:
        position = next((i for i, other in enumerate(unmatched) if same_form(item, other)), None)
        if position is None:
            return False
        del unmatched[position]
    return not unmatched


class MathWorker:
    """Compares formulas one at a time; threads wait for each other. The process starts with the first comparison.

    Args:
        cpu_seconds: CPU time of one comparison.
        memory_bytes: Address space of one comparison.
    """

    def __init__(self, *, cpu_seconds: float = 4.0, memory_bytes: int = 1 << 30) -> None:
        """Start no process yet."""
        limits = Limits(cpu_seconds=cpu_seconds, memory_bytes=memory_bytes, answer_bytes=100)
        self._process = LimitedProcesses("ramify.rewards.math_equal", limits)
        self._cached = functools.lru_cache(maxsize=1 << 12)(self.ask)

    def compare(self, prediction: str, gold: str, how: Literal["latex", "bare"] = "latex") -> Symbolic:
        """Compare two formulas: "latex" without delimiters, or "bare" text in which math-verify looks for mathematics."""
        if max(len(prediction), len(gold)) > _MAX_SYMBOLIC:
            return Symbolic.UNREAD
        return self._cached(prediction, gold, how)

    def ask(self, prediction: str, gold: str, how: Literal["latex", "bare"] = "latex") -> Symbolic:
        """Compare without the cache."""
        try:
            return Symbolic(self._process.ask([prediction, gold, how]))
        except UnansweredError as error:
            return Symbolic.TIMEOUT if error.ending is Ending.CPU_TIME else Symbolic.KILLED

    def close(self) -> None:
        """End the process and its current comparison. It also ends when this process ends."""
        self._process.close()


@functools.cache
def shared_worker() -> MathWorker:
    """Return the worker that all scores of this program share."""
    return MathWorker()


def _verdict(prediction: str, gold: str, how: str) -> Symbolic:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # By default math-verify also looks for plain numbers if it cannot read the formula.
    kinds = [LatexExtractionConfig()] if how == "latex" else [LatexExtractionConfig(), ExprExtractionConfig()]
    if how == "latex":
        prediction, gold = f"${prediction}$", f"${gold}$"
    try:
        # No time limits of math-verify: they need signals and count wall time.
        left, right = (parse(text, kinds, parsing_timeout=None) for text in (prediction, gold))
        if not left or not right:
            return Symbolic.UNREAD
        # math-verify expects the gold first. Tool-Star, whose code "bare" reproduces, passes the prediction first.
        first, second = (left, right) if how == "bare" else (right, left)
        return Symbolic.EQUAL if verify(first, second, timeout_seconds=None) else Symbolic.DIFFERENT
    except MemoryError:  # says nothing about the formula
        raise
    except Exception:  # noqa: BLE001 - a formula that breaks the libraries is not equal
        return Symbolic.UNREAD


def _warm_up() -> None:
    for pair in _WARM_UP:
        _verdict(*pair, "latex")


if __name__ == "__main__":
    serve(lambda request, _: _verdict(*request), forks=True, warm_up=_warm_up)
