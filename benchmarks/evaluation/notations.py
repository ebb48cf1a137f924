r"""The notations that the scores read: each writes a gold anew, the same answer in other signs.

A notation serves the golds that it can write; `docs/scoring.md` has the table with their numbers, which
`python -m benchmarks.evaluation --rows 12.notations` prints. A function gives None where it has nothing to do.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

Write: TypeAlias = Callable[[str], str | None]
Kind: TypeAlias = Literal["mathematics", "words"]

_NUMBER = r"-?\d+(?:\.\d+)?"
_FRACTION = re.compile(r"(-?)\\[dt]?frac\s*\{(\d+)\}\s*\{([1-9]\d*)\}")
_TERM = r"(?:\d|\.\d|\\sqrt\{\d+\}|\\pi|[a-z](?:\^\d)?)"
_SUM = re.compile(rf"({_TERM}+) ?([+-]) ?({_TERM}+)")
_INTERVAL = re.compile(r"([(\[])(-?[\d.]+), ?(-?[\d.]+)([)\]])")
_WHOLE = re.compile(r"-?\d+")
_NAMES = """
January February March April May June July August September October November December
"""
_MONTHS = _NAMES.split()
_DATE = re.compile(r"([A-Z][a-z]+) (\d{1,2}), (\d{4})|(\d{1,2}) ([A-Z][a-z]+) (\d{4})")
_DIGITS = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "twelve": "12",
}
_ORDINALS = {
    "3rd": "third",
    "4th": "fourth",
    "5th": "fifth",
    "6th": "sixth",
    "7th": "seventh",
    "12th": "twelfth",
}
_UNITS = {"km": "kilometers", "mi": "miles", "ft": "feet", "m": "metres"}


@dataclass(frozen=True, slots=True)
class Notation:
    """A way to write golds of a kind; with `lenient` only the lenient score takes the result for the gold."""

    name: str
    kind: Kind
    write: Write
    lenient: bool = False


def replaced(pattern: str, text: str | Callable[[re.Match[str]], str]) -> Write:
    """The gold with every match replaced."""
    compiled = re.compile(pattern)

    def write(gold: str) -> str | None:
        written = compiled.sub(text, gold)
        return None if written == gold else written

    return write


def wrapped(before: str, after: str, pattern: str) -> Write:
    """The gold, where the pattern is all of it, between two texts."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda gold: f"{before}{gold}{after}" if compiled.fullmatch(gold) else None


def items(gold: str) -> list[str] | None:
    """The items of a list of formulas without brackets around it."""
    if re.search("=|text|math", gold) or re.fullmatch(r"[^,]*\d,(?:\\!\s*)?\d{3}\b.*", gold):
        return None
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(gold):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter == ",":
            parts.append(gold[start:position])
            start = position + 1
    parts.append(gold[start:])
    are_formulas = all(re.fullmatch(r"\s*[-(\\\d][-\d./,\\{}a-z\s()]*", part) for part in parts)
    return [part.strip() for part in parts] if len(parts) > 1 and are_formulas else None


def fraction(gold: str) -> Fraction | None:
    r"""The value of a gold that is one `\frac` of whole numbers."""
    match = _FRACTION.fullmatch(gold.strip())
    return Fraction(int(match[1] + match[2]), int(match[3])) if match else None


def _slash(gold: str) -> str | None:
    match = _FRACTION.fullmatch(gold.strip())
    return f"{match[1]}{match[2]}/{match[3]}" if match else None


def _decimal(gold: str) -> str | None:
    value = fraction(gold)
    is_short = value is not None and value.denominator > 1 and 10**9 % value.denominator == 0
    return str(float(value)) if value is not None and is_short else None


def _not_reduced(gold: str) -> str | None:
    value = fraction(gold)
    if value is None:
        return None
    return rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator) * 3}}}{{{value.denominator * 3}}}"


def _thousands(separator: str) -> Write:
    def write(gold: str) -> str | None:
        is_large = _WHOLE.fullmatch(gold) and abs(int(gold)) >= 1000
        return f"{int(gold):,}".replace(",", separator) if is_large else None

    return write


def _turned_list(gold: str) -> str | None:
    parts = items(gold)
    return ", ".join(reversed(parts)) if parts else None


def _as_set(gold: str) -> str | None:
    return rf"\{{{gold}\}}" if items(gold) and not gold.lstrip().startswith("(") else None


def _turned_sum(gold: str) -> str | None:
    match = _SUM.fullmatch(gold.strip())
    return f"{'-' if match[2] == '-' else ''}{match[3]} + {match[1]}" if match else None


def _inequality(gold: str) -> str | None:
    match = _INTERVAL.fullmatch(gold.strip())
    if match is None or match[1] + match[4] in ("()", "[]"):
        return None
    below, above = ("<" if bracket in "()" else r"\le" for bracket in match.group(1, 4))
    return f"{match[2]} {below} x {above} {match[3]}"


def _date(spell: Callable[[str, str, str], str]) -> Write:
    def write(gold: str) -> str | None:
        match = _DATE.fullmatch(gold.strip().rstrip("."))
        if match is None:
            return None
        month, day, year = match.group(1, 2, 3) if match[1] else match.group(5, 4, 6)
        written = spell(month, day, year) if month in _MONTHS else gold
        return None if written == gold else written

    return write


def _without_accents(gold: str) -> str | None:
    letters = unicodedata.normalize("NFKD", gold)
    written = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return written if written.isascii() and not gold.isascii() else None


def _by_table(pattern: str, table: dict[str, str]) -> Write:
    names = "|".join(sorted(table, key=len, reverse=True))
    return replaced(pattern.replace("TABLE", f"({names})"), lambda match: table[match[1]])


_OF_FORMULAS: tuple[tuple[str, Write], ...] = (
    (r"\dfrac", replaced(r"\\frac", r"\\dfrac")),
    ("a/b", _slash),
    ("decimal", _decimal),
    ("not reduced", _not_reduced),
    ("x = value", wrapped("x = ", "", rf"{_NUMBER}|-?\\frac\{{\d+\}}\{{\d+\}}|\d*\\sqrt\{{\d+\}}")),
    ("without the name", replaced(r"^\s*[a-z]\s*=\s*(?=[-\d\\.{} ^/+]+$)", "")),
    ("$..$", wrapped("$", "$", r"[^$]+")),
    (r"\(..\)", wrapped(r"\(", r"\)", r"[^$()]+")),
    ("full stop", wrapped("", ".", r".*[\d}]")),
    (r"\left( \right)", replaced(r"^\(([^()]*)\)$", r"\\left(\1\\right)")),
    ("blanks", replaced(r"(?<=[\w})])([-+=])(?=[\w\\(])", r" \1 ")),
    (r"\,", replaced(r"(?<=\d)(?=\\(?:sqrt|pi))", r"\\,")),
    (r"\cdot", replaced(r"(?<=\d)(?=\\(?:sqrt|pi))", r" \\cdot ")),
    (r"\sqrt n", replaced(r"\\sqrt\{(\d)\}", r"\\sqrt \1")),
    ("sqrt(n)", replaced(r"^(\d*)\\sqrt\{(\d+)\}$", r"\1sqrt(\2)")),
    ("the sign of pi", replaced(r"\\pi(?![A-Za-z])", "\u03c0")),
    ("1,000", _thousands(",")),
    ("1{,}000", _thousands("{,}")),
    (r"1\,000", _thousands(r"\,")),
    ("5.0", wrapped("", ".0", r"-?\d+")),
    ("05", wrapped("0", "", r"\d\d")),
    (r"5 \text{ units}", wrapped("", r" \text{ units}", r"-?\d+")),
    ("5 people", wrapped("", " people", r"\d{1,4}")),
    (r"\text{..}", wrapped(r"\text{", "}", r"[A-Za-z]+")),
    ("10 percent", replaced(r"(?<=\d)\\%$", " percent")),
    ("10%", replaced(r"\\%", "%")),
    ("10 for 10%", replaced(r"^(\d+(?:\.\d+)?)\\%$", r"\1")),
    ("90 degrees", replaced(r"\^\{?\\circ\}?$", " degrees")),
    ("90 for 90 degrees", replaced(r"^(\d+(?:\.\d+)?)\^\{?\\circ\}?$", r"\1")),
    ("5 dollars", replaced(r"^\\\$([\d.,]+)$", r"\1 dollars")),
    ("$5", replaced(r"^\\\$([\d.,]+)$", r"$\1")),
    ("5 for $5", replaced(r"^\\\$([\d.,]+)$", r"\1")),
    ("list in another order", _turned_list),
    (r"\{..\} for a list", _as_set),
    (r"1 \text{ and } 2", replaced(r"^(-?\d+), ?(-?\d+)$", r"\1 \\text{ and } \2")),
    ("sum in another order", _turned_sum),
    ("inequality for an interval", _inequality),
    (r"+\infty", replaced(r", ?\\infty", r", +\\infty")),
    (r"\leqslant", replaced(r"\\leq?(?![A-Za-z])", r"\\leqslant ")),
    ("x^{2}", replaced(r"\^(\d)(?!\d)", r"^{\1}")),
    ("bmatrix", replaced("pmatrix", "bmatrix")),
    ("52_{8}", replaced(r"^(\d+)_(\d+)$", r"\1_{\2}")),
    ("52 for 52_8", replaced(r"^(\d+)_\{?\d+\}?$", r"\1")),
    ("without the letter of a choice", replaced(r"^[A-F][.:]\s+(?=[-\d\\(])", "")),
)
_OF_WORDS: tuple[tuple[str, Write], ...] = (
    ("lower case", lambda gold: gold.lower() if gold.lower() != gold else None),
    (
        "capitals",
        lambda gold: gold.upper() if gold.isascii() and "\\" not in gold and gold.upper() != gold else None,
    ),
    ("full stop", wrapped("", ".", r".*[a-z]")),
    ("quotes", wrapped('"', '"', r'[^"]+')),
    ("bold", wrapped("**", "**", r"[^*]+")),
    (r"\text{..}", wrapped(r"\text{", "}", r"[A-Za-z .']+")),
    ("article before", wrapped("the ", "", r"[A-Z][a-z]+ [A-Z].*")),
    ("without the article", replaced(r"^(?:The|the) (?=[A-Z])", "")),
    ("without commas", replaced(r",(?= )", "")),
    ("1 May 1900, May 1, 1900", _date(lambda month, day, year: f"{day} {month} {year}")),
)
_OF_WORDS_LENIENT: tuple[tuple[str, Write], ...] = (
    ("the 1st of May, 1900", _date(lambda month, day, year: f"the {day}th of {month}, {year}")),
    ("1900-05-01", _date(lambda month, day, year: f"{year}-{_MONTHS.index(month) + 1:02}-{day:0>2}")),
    (
        "1900\u5e745\u67081\u65e5",
        _date(lambda m, day, y: f"{y}\u5e74{_MONTHS.index(m) + 1}\u6708{day}\u65e5"),
    ),
    ("Nov for November", replaced(rf"\b({'|'.join(_MONTHS)})\b(?= \d)", lambda match: match[1][:3])),
    ("without accents", _without_accents),
    ("curly quotes", replaced(r"(?<=\w)'(?=\w)", "\u2019")),
    ("initials together", replaced(r"\b([A-Z])\. (?=[A-Z]\.)", r"\1.")),
    ("without hyphens", replaced(r"(?<=[a-z])-(?=[A-Za-z])", " ")),
    ("1000 for 1,000", replaced(r"(?<=\d),(?=\d{3}\b)", "")),
    ("5 for five", _by_table(r"(?<!ty[ -])\bTABLE\b", _DIGITS)),
    ("fifth for 5th", _by_table(r"\bTABLE\b", _ORDINALS)),
    ("5000000 for 5 million", replaced(r"(?<![\d.])(\d+) million\b", r"\g<1>000000")),
    ("5 dollars for $5", replaced(r"(?:US)?\$(\d[\d.,]*(?: [mb]illion)?)", r"\1 dollars")),
    ("percent", replaced("%", " percent")),
    ("kilometers for km", _by_table(r"(?<=\d )TABLE\b(?!\u00b2)", _UNITS)),
    ("square kilometers for km2", replaced(r"(?<=\d) km(?:2|\u00b2)", " square kilometers")),
    ("1900-1904 for 1900 to 1904", replaced(r"(\d{4}) (?:to|until|through) (\d{4})", r"\1-\2")),
    ("commas for and", replaced(r"(?<=[a-z]) and (?=[A-Z])", ", ")),
    ("Junior", replaced(r"\bJr\.", "Junior")),
    ("Doctor", replaced(r"\bDr\. ", "Doctor ")),
    ("Saint", replaced(r"\bSt\. ", "Saint ")),
    ("Theater", replaced(r"\bTheatre\b", "Theater")),
    ("yes, since ..", wrapped("", ", that is so", r"(?i)yes|no")),
    (
        "Chinese items in another order",
        replaced("^([\u4e00-\u9fff]{2,4})\u548c([\u4e00-\u9fff]{2,4})$", "\\2\u3001\\1"),
    ),
)

NOTATIONS: tuple[Notation, ...] = (
    *(Notation(name, "mathematics", write) for name, write in _OF_FORMULAS),
    *(Notation(name, "words", write) for name, write in _OF_WORDS),
    *(Notation(name, "words", write, lenient=True) for name, write in _OF_WORDS_LENIENT),
)

LAYOUT = frozenset(
    {
        "$..$",
        r"\(..\)",
        "full stop",
        "blanks",
        r"\left( \right)",
        r"\dfrac",
        r"\,",
        r"\cdot",
        "x^{2}",
        "bold",
        "quotes",
    }
)
"""Names of notations that can be laid over others."""
