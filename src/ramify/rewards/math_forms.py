r"""The forms of a mathematical answer: a formula, several ordered or unordered ones, a matrix, an equation, or words."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ramify.rewards.math_terms import (
    MINUS_ONE,
    WORDS,
    Call,
    Number,
    Symbol,
    Term,
    UnreadableError,
    exact_value,
    negative,
    read_term,
    symbols_of,
)
from ramify.rewards.math_text import Unit, without_unit
from ramify.rewards.words import in_digits


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula with its unit; a number in base 8 has the unit "base 8"."""

    term: Term
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Words, in lower case and without surrounding brackets."""

    words: str


@dataclass(frozen=True, slots=True)
class Items:
    r"""Several values.

    Attributes:
        brackets: For ordered values: "()", "[)" and so on; "::" for a ratio; "m" for a matrix and for each of its rows.
            For values in any order: "" for a list without brackets; "{}" for a set, a union or the two values of `\pm`.
        is_interval: Whether it was an inequality, so that "()" is an interval rather than a pair.
    """

    brackets: str
    items: "tuple[Form, ...]"
    is_interval: bool = False


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A name and the value that it equals."""

    name: str
    value: "Form"


@dataclass(frozen=True, slots=True)
class Equation:
    """The equation `difference` = 0; `stated` is the value it gives a formula of names, such as 70 in `m + n = 70`."""

    difference: Term
    stated: "Form | None" = None


Form: TypeAlias = Formula | Text | Items | NamedValue | Equation

GROUPED_DIGITS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_WITH_UNIT = re.compile(
    rf'^{GROUPED_DIGITS.pattern}(?=(?: *"[^"]*"| [A-Za-z]{{2,}}[A-Za-z ]*)(?: *\^ *\{{?[23]\}}?)?$)'
)
_BASED = re.compile(r"\(?\s*(\d+)\s*\)?\s*_\s*(?:\{\s*\"?\s*(\w+)\s*\"?\s*\}|(\d+))")
_MATRIX = re.compile(r"\\begin\{([pbB]matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL)
_UNION = re.compile(r"\\(?:big)?cup(?![A-Za-z])")
_BUILDER = re.compile(r"\s*[A-Za-z](?:\s*\\in\s*\{?[A-Za-z]\}?)?\s*[|:]\s*(.+)", re.DOTALL)
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|to)(?![A-Za-z])|[=<>]")
_EQUAL, _ORDER = ("=", "\\approx", "\\equiv"), ("<", "\\le", ">", "\\ge")
_TURNED = {">": "<", "\\ge": "\\le", "<": ">", "\\le": "\\ge"}
_LETTERS = r"\\?[A-Za-z]+(?:_(?:\{[^{}]*\}|\w))?'*"
_NAME = re.compile(
    rf"(?:m?\s*\\angle\s*[A-Z]{{1,3}}|{_LETTERS}(?:\s*:\s*{_LETTERS})?|\"[^\"]*\"|[A-Za-z ]+)"
    r"\s*(?:\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?|[A-Za-z]\(\s*-?\d+\s*\)|\|?[A-Za-z]+\|?"
)
_NAMES = re.compile(
    r"\(\s*\\?[A-Za-z]+(?:\s*,\s*\\?[A-Za-z]+)+\s*\)|\\\{\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\\\}"
)
LABEL = re.compile(r"\(?(?:[A-J][.:)]|[a-j]\))\s+(?=\S)")
"""The label of a choice, as in "B. 5"."""
_REALS = re.compile(r"\\mathbb\s*\{?R\}?(?:\s*(?:\\setminus|\\backslash|-)\s*\\?\{(.+?)\\?\})?")
_UNEQUAL = re.compile(r"\s*[A-Za-z]\s*\\ne(?![A-Za-z])")
_SIZE = re.compile(r"\|\s*[A-Za-z]\s*([+-][^|]*)?\|")
_MIRRORED = str.maketrans("()[]", ")(][")
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])|\b(?:sin|cos|tan)\b")
_DEGREES = re.compile(r'(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|\\[a-z]+)\s*"degree"')
"""Degrees after a number or name inside a formula of angles; after a whole formula they are its unit."""
_QUOTED = re.compile(r'"([^"]*)"')
_WORD = re.compile(r"[A-Za-z]{3,}(?:['-][A-Za-z]{2,})*(?: [A-Za-z'-]+)*|(?:no|No|NO)(?: [A-Za-z'-]+)*")
_ARTICLE = re.compile(r"(?:an?|the) (?!the\b)(?=[A-Za-z]{3})", re.IGNORECASE)
_INFINITY = "\\infty"
_OPENING, _CLOSING = "([{", ")]}"
_MAX_ITEMS = 200


def read_form(text: str) -> Form:
    """Parse an answer in the dialect of `math_text`.

    Raises:
        UnreadableError: The text has none of the forms.
    """
    text = text.strip()
    if text.startswith("{") and _encloses(text) and ("," not in text or _is_in_brackets(text[1:-1].strip())):
        return read_form(text[1:-1])
    if GROUPED_DIGITS.fullmatch(text):
        return _formula(text.replace(",", ""))
    text = _GROUPED_WITH_UNIT.sub(lambda match: match.group().replace(",", ""), text)
    parts = _parts(text)
    if _UNEQUAL.match(text) and ";" not in text:
        return _reals_without([_UNEQUAL.sub("", part) for part in parts])
    if len(parts) > 1:
        several = _several(parts, "" if ";" not in text else "{}")
        return several if ";" in text else _intersection(several) or several
    text = LABEL.sub("", parts[0].strip(), count=1) if parts else ""
    if not text:
        raise UnreadableError("nothing")
    sides = _relation_sides(text)
    return _single(text) if len(sides) == 1 else _related(sides)


def _several(parts: list[str], brackets: str) -> Items:
    if len(parts) > _MAX_ITEMS:
        raise UnreadableError("too many values")
    items: list[Form] = []
    for part in parts:
        match read_form(part):
            case NamedValue(name, Items("" | "{}", values)):
                items.extend(NamedValue(name, value) for value in values)
            case Items("{}", values):
                items.extend(values)
            case form:
                items.append(form)
    return Items(brackets if len(items) == len(parts) else "{}", tuple(items))


def _related(sides: list[tuple[str, str]]) -> Form:
    """Parse equations, memberships and inequalities."""
    relations = [relation for _, relation in sides[1:]]
    members = [member.strip() for member, _ in sides]
    if "\\approx" in relations[1:] or (
        relations[0] == "\\approx" and members[0] and not _NAME.fullmatch(members[0])
    ):
        cut = relations.index("\\approx", 1 if _NAME.fullmatch(members[0]) else 0)
        return read_form("=".join(members[: cut + 1]))
    if all(relation in _EQUAL for relation in relations):
        return _equal(members)
    if relations == ["\\in"]:
        return NamedValue(members[0], read_form(members[1]))
    if all(relation in _ORDER for relation in relations):
        return _interval(members, relations)
    raise UnreadableError("a relation of another kind")


def _equal(members: list[str]) -> Form:
    name, value = members[0], members[-1]
    if not name and len(members) == 2:
        return read_form(value)
    if _NAME.fullmatch(name) or _NAMES.fullmatch(name):
        return NamedValue(_QUOTED.sub(r"\1", name).replace(" ", ""), read_form(value))
    if len(members) > 2:
        return read_form(value)
    left, right = read_term(name), read_term(value)
    symbols = symbols_of(left)
    has_value = not symbols_of(right) and (not symbols or _combines_names(left)) and exact_value(right) != 0
    return Equation(Call("+", (left, negative(right))), Formula(right) if has_value else None)


def _combines_names(term: Term, *, alone: bool = True) -> bool:
    """Return True if a term combines two or more symbols by sum, product, ratio or size; `2x` and `-x` are not names of a value."""
    match term:
        case Symbol():
            return not alone
        case Call("+" | "*", parts):
            several = len(symbols_of(term)) > 1
            return several and all(part == MINUS_ONE or _combines_names(part, alone=False) for part in parts)
        case Call("^", (base, _)):
            return _combines_names(base, alone=alone)
        case Call(name, parts):
            return name in ("abs", "sin", "cos", "tan") and all(
                _combines_names(part, alone=False) for part in parts
            )
        case _:
            return False


def _interval(members: list[str], relations: list[str]) -> Form:
    """Return the interval, or the union of intervals, of `a < x <= b`, `b >= x` or `|x - 3| < 2`; a missing bound is infinite."""
    if relations[0] in (">", "\\ge"):
        members, relations = members[::-1], [_TURNED[relation] for relation in relations[::-1]]
    if any(relation in (">", "\\ge") for relation in relations):
        raise UnreadableError("an inequality that turns")
    if len(members) == 2:
        if _is_unknown(members[0]):
            members, relations = [f"-{_INFINITY}", *members], ["<", *relations]
        elif _is_unknown(members[1]):
            members, relations = [*members, _INFINITY], [*relations, "<"]
    if len(members) != 3 or not _is_unknown(members[1]):
        raise UnreadableError("an inequality of formulas")
    brackets = ("(" if relations[0] == "<" else "[") + (")" if relations[1] == "<" else "]")
    if "|" not in members[1]:
        return Items(brackets, (read_form(members[0]), read_form(members[2])), is_interval=True)
    center, (low, high) = _center(members[1]), (members[0], members[2])
    if low == f"-{_INFINITY}":
        bracket = brackets[1]
        return _around(center, f"-({high})", high, ("[" if bracket == "]" else "(") + bracket)
    right = _around(center, low, high, brackets)
    mirrored = brackets[::-1].translate(_MIRRORED)
    return Items("{}", (_around(center, f"-({high})", f"-({low})", mirrored), right))


def _is_unknown(text: str) -> bool:
    return _SIZE.fullmatch(text) is not None or ("|" not in text and _NAME.fullmatch(text) is not None)


def _center(size: str) -> str:
    match = _SIZE.fullmatch(size)
    return "0" if match is None or not match[1] else f"-({match[1]})"


def _around(center: str, low: str, high: str, brackets: str) -> Items:
    """Return the interval between two bounds moved by `center`."""
    bounds = (bound if "infty" in bound else f"{center}+({bound})" for bound in (low, high))
    low, high = ("-\\infty" if "infty" in bound and "-" in bound else bound for bound in bounds)
    return Items(brackets, (_formula(low), _formula(high)), is_interval=True)


def _reals_without(points: list[str]) -> Items:
    """Return the real numbers but for some points, as a union of intervals."""
    values = [(exact_value(read_term(point)), point) for point in points]
    if any(value is None for value, _ in values) or len(values) > _MAX_ITEMS:
        raise UnreadableError("points that are no rational numbers")
    bounds = [f"-{_INFINITY}", *(point for _, point in sorted(set(values))), _INFINITY]
    parts = [
        Items("()", (_formula(low), _formula(high)), is_interval=True)
        for low, high in itertools.pairwise(bounds)
    ]
    return parts[0] if len(parts) == 1 else Items("{}", tuple(parts))


def _intersection(several: Items) -> Items | None:
    """Return the interval of a lower and an upper bound, as in "x > 1 and x < 3"; None if it is another list."""
    match several.items:
        case (Items(a, (low, Formula(Symbol("infty"))), True), Items(b, (bottom, high), True)) | (
            Items(b, (bottom, high), True),
            Items(a, (low, Formula(Symbol("infty"))), True),
        ) if bottom == _formula(f"-{_INFINITY}") and _is_below(low, high):
            return Items(a[0] + b[1], (low, high), is_interval=True)
    return None


def _is_below(low: Form, high: Form) -> bool:
    bounds = [exact_value(form.term) for form in (low, high) if isinstance(form, Formula)]
    return len(bounds) == 2 and None not in bounds and bounds[0] < bounds[1]  # type: ignore[operator]


def _single(text: str) -> Form:
    """Parse an answer without relations, and without commas outside brackets."""
    if reals := _REALS.fullmatch(text):
        return _reals_without(_parts(reals[1] or ""))
    unions = _UNION.split(text)
    if len(unions) > 1:
        return Items("{}", tuple(map(read_form, unions)))
    if _is_in_brackets(text) and text[1:-1].strip().startswith("\\begin"):
        text = text[1:-1].strip()
    if matrix := _MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", matrix[2]) if row.strip()]
        return Items("m", tuple(Items("m", tuple(map(read_form, row.split("&")))) for row in rows))
    if text.startswith("\\{") and text.endswith("\\}"):
        condition = _BUILDER.fullmatch(text[2:-2])
        return read_form(condition[1]) if condition else _several(_parts(text[2:-2]), "{}")
    if _is_in_brackets(text) and len(parts := _parts(text[1:-1])) > 1:
        return Items(text[0] + text[-1], tuple(map(read_form, parts)))
    ratio = [part.strip() for part in _split(text, ":")]
    return Items("::", tuple(map(_formula, ratio))) if len(ratio) > 1 else _words_or_formula(text)


def _words_or_formula(text: str) -> Form:
    if text == "\\dots":
        return Text("...")
    quoted = _QUOTED.fullmatch(text)
    words = _ARTICLE.sub("", quoted[1] if quoted else text.strip("()") if len(text) > 3 else text)
    if quoted or (_WORD.fullmatch(words) and words.split()[0] not in WORDS):
        return _text(words)
    based = _BASED.fullmatch(text)
    if based and (base := in_digits([(based[2] or based[3]).lower()])[0]).isdecimal():
        return Formula(Number(Fraction(based[1])), Unit(f"base {base}"))
    return _formula(text)


def _text(words: str) -> Form:
    number = in_digits(words.lower().replace("-", " ").split())
    if len(number) == 1 and number[0][0].isdecimal():
        return Formula(read_term(number[0]))
    return Text(" ".join(words.lower().strip("() .").split()))


def _formula(text: str) -> Form:
    if '"degree"' in text and _ANGLE_FUNCTION.search(text):
        text = _DEGREES.sub(r"{(\1*\\pi/180)}", text)
    text, scale, unit = without_unit(text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    signs = (1, -1) if "\\pm" in text or "\\mp" in text else (1,)
    terms = [read_term(text, sign) for sign in signs]
    scaled = [term if scale == 1 else Call("*", (term, Number(scale))) for term in terms]
    values = tuple(Formula(term, unit) for term in scaled)
    return values[0] if len(values) == 1 else Items("{}", values)


def _split(text: str, separators: str) -> Iterator[str]:
    """Yield the parts between separators that are outside all brackets."""
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


def _parts(text: str) -> list[str]:
    return [part for part in _split(text, ",;") if part.strip()]


def _relation_sides(text: str) -> list[tuple[str, str]]:
    """Return the sides of a chain of relations outside brackets, each with the relation before it."""
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
    """Return True if the last bracket closes the first one."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and position < len(text) - 1:
            return False
    return depth == 0
