r"""The forms of a mathematical answer: a formula, several ordered or unordered ones, a matrix, an equation, or words.

`clean` removes typesetting: `\left( \dfrac{1}{2} \right)` becomes `(\frac{1}{2})`. The result is a small dialect: commands
with a meaning, `"words"` for text in a formula, plain brackets, a comma for "and" and a semicolon for "or". A sentence that
states the answer is reduced to the answer. `read_form` parses this dialect.
"""

import itertools
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ramify.rewards.math_terms import (
    WORDS,
    Call,
    Number,
    Symbol,
    Term,
    UnreadableError,
    negative,
    read_term,
    symbols_of,
)
from ramify.rewards.math_units import Unit, read_unit, without_unit
from ramify.rewards.math_values import exact_value
from ramify.rewards.words import in_digits

_CHARACTERS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00f7": "/", "\u00b7": "*", "\u22c5": "*", "\u2044": "/",
    "√": "\\sqrt ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "±": "\\pm ",
    "\u222a": "\\cup ", "\u2208": "\\in ", "°": "^\\circ ", "≈": "\\approx ", "。": ".", "\u3001": ",",
    "\u03b1": "\\alpha ", "β": "\\beta ", "θ": "\\theta ", "φ": "\\phi ",
})  # fmt: skip
_ROOT_OF_DIGITS = re.compile(r"√\s*(\d+(?:\.\d+)?)")
_MIXED_SIGN = re.compile("(?<=[0-9])(?=[\u00bc-\u00be\u2150-\u215e])")
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_EMPHASIS = re.compile(r"(?<![\w)}*])\*\*(?=\S)(.+?)(?<=\S)\*\*(?![\w({*])")
_REPEATING = re.compile(r"(?<![\d.])(\d{0,30})\.(\d{0,30})\\overline\s*\{\s*(\d{1,30})\s*\}")
_AMOUNT = r"\s*(\d(?:[\d.,]*\d)?|\.\d+)"
_REPLACED = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"(?<=\d)(?:,\\!\s*|\{\s*,\s*\}|,?\\,)(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\[!,;: ]|\\q?quad(?![A-Za-z])|\\thinspace|~|\\displaystyle", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\[lr]?[vV]ert|\\mid", "|"),
        (r"\\[dtc]frac", r"\\frac"),
        (
            r"\\(?:math(?:rm|bf|it|sf|tt)|boldsymbol|operatorname|underline|therefore|boxed|fbox)(?![A-Za-z])",
            "",
        ),
        # A currency sign before a number at the end of the answer. A "$" elsewhere may only open a formula.
        (rf"\\\${_AMOUNT}(?=[\s.$]*$)|^\s*\${_AMOUNT}(?=[\s.]*$)", r'\1\2 "dollar"'),
        (r"\\[()\[\]]|\\?\$", " "),
        (r"\\leqs?lant|\\leqq?(?![A-Za-z])|<=", r"\\le "),
        (r"\\geqs?lant|\\geqq?(?![A-Za-z])|>=", r"\\ge "),
        (r"\\neq?(?![A-Za-z])|!=", r"\\ne "),
        (r"\\([lg])t(?![A-Za-z])", lambda match: "<" if match[1] == "l" else ">"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\(?:cdot|times|ast)(?![A-Za-z])", "*"),
        (r"\*\s*\*", "^"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\degree(?![A-Za-z])|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", '"degree"'),
        (r"\\%|%", '"%"'),
        (r"(?<=\d)[eE]([+-]?\d+)(?!\w)", r"*10^{\1}"),
        (r"\s+", " "),
    )
]
_ELLIPSES = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\\[lc]?dots[bcimo]?(?![A-Za-z])|\.{3}", r"\\dots "),
        # At the end of a number dots say that it goes on, behind a list that the list does.
        (r"^([^,]*[\w}])\s*\\dots[\s.]*$", r"\1"),
        (r"(?<=[\w}])\s*\\dots(?=\s*(?:,|\\?[})\]]|$))", r", \\dots"),
    )
]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph)\s*\{([^{}]*)\}")
_ROMAN = re.compile(r"\\mathrm\s*\{([^{}\\\"]+)\}|\{\s*\\rm\s([^{}\\\"]+)\}")
_AND, _OR = (
    re.compile(
        rf'\s*,?\s*(?:"\s*,?\s*{word}\s*"|\{{\s*{word}\s*\}}|(?<![A-Za-z]){word}(?![A-Za-z])|{sign})\s*'
    )
    for word, sign in (("and", r"\\land(?![A-Za-z])|(?<!\\)\\&"), ("or", r"\\lor(?![A-Za-z])"))
)
_HUNDRED_AND = re.compile(r"\b(hundred|thousand|million) and (?=[a-z])", re.IGNORECASE)
_MIXED = re.compile(r"(?<![\d.])(\d+) (\d+)/(\d+)(?![\d.])")
DENIED = re.compile(r"\b(?:not|never|no|or|cannot|[a-z]+n't)\b", re.IGNORECASE)
_STATED = re.compile(
    r"[\"A-Za-z][A-Za-z'\", ]*?(?:\b(?:is|are|equals)(?: equal to)?\"?:?|[A-Za-z]{3}:)\s+(?=\S)",
    re.IGNORECASE,
)
"""Words up to a verb or a colon, as in "The value is 5"."""
_IN_PROSE = re.compile(
    r"(?P<lead>[A-Za-z][A-Za-z ,':]*?)\s*(?:\$(?P<a>[^$\n]+)\$|\$\$(?P<b>[^$]+)\$\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>[\s\S]+?)\\\])"
    r"(?:[\s.]*|\s+is (?:the|our|my) [a-z]+[\s.]*)"
)
"""One formula between math delimiters, with words before it."""
_GROUPED = re.compile(
    r'[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?=(?: *"[^"]*"| [A-Za-z]{2,}[A-Za-z ]*)?(?: *\^ *\{?[23]\}?)?$)'
)
"""Digits with commas between thousands, before a unit or nothing."""
_BASED = re.compile(r"\(?\s*(\d+)\s*\)?\s*_\s*(?:\{\s*\"?\s*(\w+)\s*\"?\s*\}|(\d+))")
_MATRIX = re.compile(r"\\begin\{([pbB]matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL)
_UNION = re.compile(r"\\(?:big)?cup(?![A-Za-z])")
_BUILDER = re.compile(r"\s*[A-Za-z](?:\s*\\in\s*\{?[A-Za-z]\}?)?\s*[|:]\s*(.+)", re.DOTALL)
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|to)(?![A-Za-z])|[=<>]")
_COMMA, _COLON = re.compile("[,;]"), re.compile(":")
_EQUAL, _ORDER = ("=", "\\approx", "\\equiv"), ("<", "\\le", ">", "\\ge")
_TURNED = {">": "<", "\\ge": "\\le"}
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
_OWN_NUMBER = re.compile(r"(?<![\^_\d])(?<![\^_]\{)\d")
_REALS = re.compile(r"\\mathbb\s*\{?R\}?(?:\s*(?:\\setminus|\\backslash|-)\s*\\?\{(.+?)\\?\})?")
_UNEQUAL = re.compile(r"\s*[A-Za-z]\s*\\ne(?![A-Za-z])")
_SIZE = re.compile(r"\|\s*[A-Za-z]\s*([+-][^|]*)?\|")
_ANGLE_FUNCTION = re.compile("sin|cos|tan|cot|sec|csc")
_DEGREES = re.compile(r'(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|\\[a-z]+)\s*"degree"')
"""Degrees after a number or name inside a formula of angles; after a whole formula they are its unit."""
_QUOTED = re.compile(r'"([^"]*)"')
_WORD = re.compile(r"[A-Za-z]{3,}(?:['-][A-Za-z]{2,})*(?: [A-Za-z'-]+)*|(?:no|No|NO)(?: [A-Za-z'-]+)*")
_ARTICLE = re.compile(r"(?:an?|the) (?!the\b)(?=[A-Za-z]{3})", re.IGNORECASE)
_INFINITY = "\\infty"
_MAX_ITEMS = 200


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


def clean(text: str) -> str:
    """Translate an answer into the dialect."""
    prose = _IN_PROSE.fullmatch(text.strip())
    if prose and not DENIED.search(prose["lead"]):
        text = next(filter(None, prose.group("a", "b", "c", "d")))
    if not text.isascii():
        text = _MIXED_SIGN.sub(" ", _ROOT_OF_DIGITS.sub(r"\\sqrt{\1}", text))
        text = unicodedata.normalize("NFKC", _SUPERSCRIPT.sub(r"^{\g<0>}", text)).translate(_CHARACTERS)
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = _EMPHASIS.sub(r"\1", text.replace('"', "").replace("`", ""))
    if "\\" in text:
        text = _REPEATING.sub(_repeated, _ROMAN.sub(_unit, _TEXT.sub(_words, text)))
    for pattern, replacement in (*_ELLIPSES, *_REPLACED) if "dots" in text or ".." in text else _REPLACED:
        text = pattern.sub(replacement, text)
    if " and " in text:
        text = _HUNDRED_AND.sub(r"\1 ", text)
    text = text.strip().rstrip(".?").strip()
    if (lead := _STATED.match(text)) and not DENIED.search(lead.group()):
        text = text[lead.end() :]
    return _MIXED.sub(r"(\1+\2/\3)", _OR.sub(";", _AND.sub(",", text))).strip()


def _repeated(match: re.Match[str]) -> str:
    r"""Write `0.1\overline{6}` as (16 - 1) / 90."""
    whole, once, again = match.groups()
    return f"(({whole}{once}{again}-0{whole}{once})/{'9' * len(again)}{'0' * len(once)})"


def _words(match: re.Match[str]) -> str:
    inside = match.group(1).strip()
    is_formula = any(c.isdecimal() or c in "\\^_$" for c in inside)
    return f" {inside} " if is_formula or not inside else f' "{inside}" '


def _unit(match: re.Match[str]) -> str:
    r"""Turn a unit in upright letters (`\mathrm{cm}`, `{\rm cm}`) into text; anything else stays."""
    inside = (match[1] or match[2]).strip()
    return f' "{inside}" ' if read_unit(inside) else match.group()


def read_form(text: str) -> Form:
    """Parse an answer in the dialect of `clean`.

    Raises:
        UnreadableError: The text has none of the forms.
    """
    text = text.strip()
    if text.startswith("{") and _encloses(text) and ("," not in text or _is_in_brackets(text[1:-1].strip())):
        return read_form(text[1:-1])
    if grouped := _GROUPED.match(text):
        text = grouped.group().replace(",", "") + text[grouped.end() :]
    parts = _parts(text)
    if _UNEQUAL.match(text) and ";" not in text:
        return _reals_without([_UNEQUAL.sub("", part) for part in parts])
    if len(parts) > 1:
        several = _several(parts, "" if ";" not in text else "{}")
        return several if ";" in text else _intersection(several) or several
    text = LABEL.sub("", parts[0].strip(), count=1) if parts else ""
    if not text:
        raise UnreadableError("nothing")
    members, relations = _split(text, _RELATION)
    return _related([member.strip() for member in members], relations) if relations else _single(text)


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


def _related(members: list[str], relations: list[str]) -> Form:
    """Parse equations, memberships and inequalities."""
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
    # Two names or more, as in "m + n = 70", have a value; in "2x = 10" the value of x is not stated.
    is_named = not symbols_of(left) or (len(symbols_of(left)) > 1 and not _OWN_NUMBER.search(name))
    has_value = not symbols_of(right) and is_named and exact_value(right) != 0
    return Equation(Call("+", (left, negative(right))), Formula(right) if has_value else None)


def _interval(members: list[str], relations: list[str]) -> Form:
    """Return the interval, or the union of intervals, of `a < x <= b`, `b >= x` or `|x - 3| < 2`; a missing bound is infinite."""
    if relations[0] in _TURNED:
        members, relations = members[::-1], [_TURNED.get(relation, ">") for relation in relations[::-1]]
    if not _TURNED.keys().isdisjoint(relations):
        raise UnreadableError("an inequality that turns")
    if size := next(filter(None, map(_SIZE.fullmatch, members)), None):
        return read_form(_without_size(members, relations, size))
    if len(members) == 2 and _NAME.fullmatch(members[0]):
        members, relations = [f"-{_INFINITY}", *members], ["<", *relations]
    elif len(members) == 2:
        members, relations = [*members, _INFINITY], [*relations, "<"]
    if len(members) != 3 or not _NAME.fullmatch(members[1]):
        raise UnreadableError("an inequality of formulas")
    brackets = ("(" if relations[0] == "<" else "[") + (")" if relations[1] == "<" else "]")
    return Items(brackets, (read_form(members[0]), read_form(members[2])), is_interval=True)


def _without_size(members: list[str], relations: list[str], size: re.Match[str]) -> str:
    """Write `|x - 3| < 2` as `3 - 2 < x < 3 + 2`, and lower bounds of the size as two inequalities."""
    center, low, high = f"-({size[1] or 0})", members[0], members[-1]
    above, below = relations[0], relations[-1]
    if low == size.string:
        return f"{center}-({high}) {below} x {below} {center}+({high})"
    if high == size.string:
        return f"x {above} {center}-({low}); {center}+({low}) {above} x"
    return f"{center}-({high}) {below} x {above} {center}-({low}); {center}+({low}) {above} x {below} {center}+({high})"


def _reals_without(points: list[str]) -> Form:
    """Return the real numbers but for some points, as a union of intervals."""
    values = [(exact_value(read_term(point)), point) for point in points]
    if any(value is None for value, _ in values) or len(values) > _MAX_ITEMS:
        raise UnreadableError("points that are no rational numbers")
    bounds = [f"-{_INFINITY}", *(point for _, point in sorted(set(values))), _INFINITY]
    return read_form("\\cup".join(f"({low},{high})" for low, high in itertools.pairwise(bounds)))


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
    ratio = [part.strip() for part in _split(text, _COLON)[0]]
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


def _split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Return the parts between separators that are outside all brackets, and these separators."""
    depths, start = _depths(text), 0
    parts: list[str] = []
    separators: list[str] = []
    for match in separator.finditer(text):
        if depths[match.start()] == 0:
            parts.append(text[start : match.start()])
            separators.append(match.group())
            start = match.end()
    return [*parts, text[start:]], separators


def _depths(text: str) -> list[int]:
    """Return the number of brackets that are open after each character."""
    return [*itertools.accumulate((c in "([{") - (c in ")]}") for c in text)]


def _parts(text: str) -> list[str]:
    return [part for part in _split(text, _COMMA)[0] if part.strip()]


def _is_in_brackets(text: str) -> bool:
    return text[:1] in ("(", "[") and text[-1] in ")]" and _encloses(text)


def _encloses(text: str) -> bool:
    """Return True if the last bracket closes the first one."""
    *inside, end = _depths(text)
    return end == 0 and 0 not in inside
