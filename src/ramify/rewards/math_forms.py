r"""What a mathematical answer is: a formula, a list of them, a set, an interval, a matrix, an equation, a word."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ramify.rewards.math_terms import (
    FUNCTIONS,
    MINUS_ONE,
    Number,
    Power,
    Product,
    Sum,
    Symbol,
    Term,
    UnreadableError,
    read_term,
)
from ramify.rewards.math_units import without_unit
from ramify.rewards.math_values import symbols_of
from ramify.rewards.numerals import CHINESE_NUMERAL, chinese_number, fraction_in_words, in_digits


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula with its unit as `math_units` spells it ("" for none; "%" counts as one)."""

    term: Term
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Words, in lower case and without brackets around them."""

    words: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a base."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Many:
    r"""Values in any order: a list without brackets (which may mean a tuple), a set, a union, what `\pm` stands for."""

    items: "tuple[Form, ...]"
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Values in order between brackets; two of them may be an interval, which "x < 3" certainly is."""

    opening: str
    items: "tuple[Form, ...]"
    closing: str
    is_interval: bool = False


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values; `bars` tells a determinant."""

    rows: "tuple[tuple[Form, ...], ...]"
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A name and what it equals."""

    name: str
    value: "Form"


@dataclass(frozen=True, slots=True)
class Equation:
    """`difference` = 0; `stated` is the value that it gives a formula of names, as `m + n = 70` does."""

    difference: Term
    stated: "Form | None" = None


Form: TypeAlias = Formula | Text | Based | Many | Group | Matrix | Named | Equation

GROUPED_DIGITS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_WITH_UNIT = re.compile(rf'^{GROUPED_DIGITS.pattern}(?=(?: *"[^"]*"| [A-Za-z]{{2,}}[A-Za-z ]*)$)')
_BASED = re.compile(r"\(?\s*(\w+)\s*\)?\s*_\s*(?:\{\s*\"?\s*(\w+)\s*\"?\s*\}|(\d+))")
_MATRIX = re.compile(
    r"\\begin\{((?:[pbBvV]|small)?matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL
)
_UNBRACKETED = re.compile(r"\s*\\begin\{(?:array|smallmatrix)\}")
_UNION = re.compile(r"\\(?:big)?cup(?![A-Za-z])")
_BUILDER = re.compile(r"\s*[A-Za-z](?:\s*\\in\s*(?:\{?[A-Za-z]\}?|\\mathbb\{R\}))?\s*[|:]\s*(.+)", re.DOTALL)
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|to)(?![A-Za-z])|[=<>]")
_NAME = re.compile(
    r"(?:m?\s*\\angle\s*[A-Z]{1,3}|\\?[A-Za-z]+(?:_(?:\{[^{}]*\}|\w))?'*|\"[^\"]*\"|[A-Za-z ]+)\s*(?:\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?"
    r"|[fghpFGHP]\(\s*-?\d+\s*\)"
)
_NAMES = re.compile(
    r"\(\s*\\?[A-Za-z]+(?:\s*,\s*\\?[A-Za-z]+)+\s*\)|\\\{\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\\\}"
)
_LABEL = re.compile(r"(?:[A-Z]:\s*|[A-F]\.\s+)(?=\S)")
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])|\b(?:sin|cos|tan)\b")
_DEGREES = re.compile(r'(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|\\[a-z]+)\s*"degree"')
"""Behind a number or name within a formula of angles; behind a whole formula it is a unit."""
_QUOTED = re.compile(r'"([^"]*)"')
_FUNCTION_WORDS = frozenset({"pi", "sqrt", "infty", "infinity", "oo", "log", *FUNCTIONS})
_WORD = re.compile(r"[A-Za-z]{3,}(?:['-][A-Za-z]{2,})*(?: [A-Za-z'-]+)*|(?:no|No|NO)(?: [A-Za-z'-]+)*")
_ARTICLE = re.compile(r"(?:an?|the) (?!the\b)(?=[A-Za-z]{3})", re.IGNORECASE)
_ALL_REALS = frozenset({"all real numbers", "all reals", "the real numbers", "real numbers"})
_INFINITY = Symbol("infty")
_REALS = Group("(", (Formula(Product((MINUS_ONE, _INFINITY))), Formula(_INFINITY)), ")", is_interval=True)
_OPENING, _CLOSING = "([{", ")]}"
_MAX_ITEMS = 200


def read_form(text: str) -> Form:
    """Read an answer in the dialect of `math_markup`.

    Raises:
        UnreadableError: It is none of the forms.
    """
    text = text.strip()
    if text.startswith("{") and _encloses(text) and ("," not in text or _is_in_brackets(text[1:-1].strip())):
        return read_form(text[1:-1])
    if GROUPED_DIGITS.fullmatch(text):
        return _formula(text.replace(",", ""))
    text = _GROUPED_WITH_UNIT.sub(lambda match: match.group().replace(",", ""), text)
    parts = [part for part in _split(text, ",;") if part.strip()]
    if len(parts) > 1:
        return _many(parts, is_list=len(parts) == sum(1 for part in _split(text, ",") if part.strip()))
    text = _LABEL.sub("", parts[0].strip(), count=1) if parts else ""
    if not text:
        raise UnreadableError("nothing")
    return _related(text) if _RELATION.search(text) else _unrelated(text)


def _many(parts: list[str], *, is_list: bool) -> Form:
    if len(parts) > _MAX_ITEMS:
        raise UnreadableError("too many values")
    items: list[Form] = []
    for part in parts:
        form = read_form(part)
        if isinstance(form, Named) and isinstance(form.value, Many):
            items.extend(Named(form.name, value) for value in form.value.items)
        else:
            items.extend(form.items if isinstance(form, Many) else [form])
    return Many(tuple(items), is_list=is_list and len(items) == len(parts))


def _related(text: str) -> Form:
    """Equations, memberships and inequalities; a relation inside brackets is none."""
    sides = _relation_sides(text)
    if len(sides) == 1:
        return _unrelated(text)
    relations = [relation for _, relation in sides[1:]]
    members = [member.strip() for member, _ in sides]
    if not members[0] and relations in (["="], ["\\approx"]):
        return read_form(members[1])
    if all(relation in ("=", "\\approx", "\\equiv") for relation in relations):
        return _equal(members)
    if relations == ["\\in"]:
        return Named(members[0], _REALS if members[1] == "R" else read_form(members[1]))
    if all(relation in ("<", ">", "\\le", "\\ge") for relation in relations):
        return _interval(members, relations)
    raise UnreadableError("a relation of another kind")


def _equal(members: list[str]) -> Form:
    name, value = members[0], members[-1]
    if _NAME.fullmatch(name) or _NAMES.fullmatch(name):
        return Named(_QUOTED.sub(r"\1", name).replace(" ", ""), read_form(value))
    if len(members) > 2:
        return read_form(value)
    left = read_term(name)
    stated = read_form(value) if _is_of_names(left) and len(symbols_of(left)) > 1 else None
    return Equation(Sum((left, Product((MINUS_ONE, read_term(value))))), stated)


def _is_of_names(term: Term) -> bool:
    """Sums, products and powers of symbols alone; `2x = 10` and `-x = 5` do not say what is 10 or 5."""
    match term:
        case Symbol():
            return True
        case Sum(parts):
            return all(map(_is_of_names, parts))
        case Product(parts):
            return all(part == MINUS_ONE or _is_of_names(part) for part in parts)
        case Power(base, _):
            return _is_of_names(base)
        case _:
            return False


def _interval(members: list[str], relations: list[str]) -> Form:
    """`a < x <= b`, and with one end `x <= b` or `b >= x`; the ends without bound are infinite."""
    if relations[0] in (">", "\\ge"):
        members, relations = members[::-1], [_turned(relation) for relation in relations[::-1]]
    if any(relation in (">", "\\ge") for relation in relations):
        raise UnreadableError("an inequality that turns")
    if len(members) == 2:
        if _NAME.fullmatch(members[0]):
            members, relations = ["-\\infty", *members], ["<", *relations]
        elif _NAME.fullmatch(members[1]):
            members, relations = [*members, "\\infty"], [*relations, "<"]
    if len(members) != 3 or not _NAME.fullmatch(members[1]):
        raise UnreadableError("an inequality of formulas")
    opening, closing = "(" if relations[0] == "<" else "[", ")" if relations[1] == "<" else "]"
    return Group(opening, (read_form(members[0]), read_form(members[2])), closing, is_interval=True)


def _turned(relation: str) -> str:
    return {">": "<", "\\ge": "\\le", "<": ">", "\\le": "\\ge"}[relation]


def _unrelated(text: str) -> Form:
    if text == "\\mathbb{R}":
        return _REALS
    unions = _UNION.split(text)
    if len(unions) > 1:
        return Many(tuple(read_form(part) for part in unions))
    if text[0] in "([" and text[-1] in ")]" and _UNBRACKETED.match(text, 1):
        text = text[1:-1].strip()
    matrix = _MATRIX.search(text)
    if matrix and matrix.end() == len(text):
        rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", matrix[2]) if row.strip()]
        cells = tuple(tuple(read_form(cell) for cell in row.split("&")) for row in rows)
        form = Matrix(cells, bars=matrix[1] in ("vmatrix", "Vmatrix"))
        return _times(text[: matrix.start()].strip(), form) if matrix.start() else form
    if _is_in_brackets(text):
        items = [part for part in _split(text[1:-1], ",;") if part.strip()]
        if len(items) > 1:
            return Group(text[0], tuple(read_form(item) for item in items), text[-1])
    if text.startswith("\\{") and text.endswith("\\}"):
        inside = text[2:-2]
        condition = _BUILDER.fullmatch(inside)
        if condition:
            return read_form(condition[1])
        return _many([part for part in _split(inside, ",;") if part.strip()], is_list=False)
    ratio = [part.strip() for part in _split(text, ":")]
    if len(ratio) > 1:
        return Group(":", tuple(_formula(part) for part in ratio), ":")
    return _single(text)


def _times(scalar: str, matrix: Matrix) -> Form:
    """A matrix behind a factor."""
    factor = read_term(f"{scalar}1" if scalar in ("-", "+") else scalar.removesuffix("*"))
    cells = [cell for row in matrix.rows for cell in row]
    if matrix.bars or not all(isinstance(cell, Formula) and not cell.unit for cell in cells):
        raise UnreadableError("a factor of something else")
    return Matrix(
        tuple(
            tuple(Formula(Product((factor, cell.term))) for cell in row if isinstance(cell, Formula))
            for row in matrix.rows
        )
    )


def _single(text: str) -> Form:
    quoted = _QUOTED.fullmatch(text)
    words = quoted[1] if quoted else text.strip("()") if len(text) > 3 else text
    words = _ARTICLE.sub("", words)
    if quoted or (_WORD.fullmatch(words) and words.split()[0] not in _FUNCTION_WORDS):
        return _text(words)
    if text[0] in CHINESE_NUMERAL and all(c in CHINESE_NUMERAL for c in text):
        value = chinese_number(text)
        return _formula(text if value is None else str(value))
    based = _BASED.fullmatch(text)
    if based and based[1][0].isdecimal():
        base = in_digits([(based[2] or based[3]).lower()])[0]
        if base.isdecimal():
            return Based(based[1], base)
    return _formula(text)


def _text(words: str) -> Form:
    tokens = words.lower().replace("-", " ").split()
    if fraction := fraction_in_words(tokens):
        return Formula(Number(fraction))
    number = in_digits(tokens)
    if len(number) == 1 and number[0][0].isdecimal():
        return Formula(read_term(number[0]))
    said = " ".join(words.lower().strip("() .").split())
    return _REALS if said in _ALL_REALS else Text(said)


def _formula(text: str) -> Form:
    if '"degree"' in text and _ANGLE_FUNCTION.search(text):
        text = _DEGREES.sub(r"{(\1*\\pi/180)}", text)
    text, scale, unit = without_unit(text)
    text = _without_group_commas(text)
    signs = (1, -1) if "\\pm" in text or "\\mp" in text else (1,)
    terms = [read_term(text, sign) for sign in signs]
    scaled = [term if scale == 1 else Product((term, Number(scale))) for term in terms]
    values = tuple(Formula(term, unit) for term in scaled)
    return values[0] if len(values) == 1 else Many(values)


def _without_group_commas(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def _split(text: str, separators: str) -> Iterator[str]:
    """Parts between separators outside all brackets."""
    depth = start = 0
    for position, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character in separators and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _relation_sides(text: str) -> list[tuple[str, str]]:
    """The members of a chain of relations outside brackets, each with the relation before it."""
    sides: list[tuple[str, str]] = []
    start, before = 0, ""
    for match in _RELATION.finditer(text):
        inside = text[: match.start()]
        if sum(map(inside.count, _OPENING)) == sum(map(inside.count, _CLOSING)):
            sides.append((text[start : match.start()], before))
            start, before = match.end(), match.group()
    return [*sides, (text[start:], before)]


def _is_in_brackets(text: str) -> bool:
    return text[:1] in ("(", "[") and text[-1] in ")]" and _encloses(text)


def _encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last one and not before."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and position < len(text) - 1:
            return False
    return depth == 0
