r"""Removing typesetting from mathematical answers: `\left( \dfrac{1}{2} \right)` becomes `(\frac{1}{2})`.

The result is a small dialect: commands with a meaning, `"words"` for text in a formula, plain brackets, a comma for "and"
and a semicolon for "or". A sentence that states the answer is reduced to the answer.
"""

import re
import unicodedata
from fractions import Fraction

from ramify.rewards.math_units import read_unit

_CHARACTERS = {
    "\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00f7": "/", "\u00b7": "*", "\u22c5": "*", "\u2044": "/",
    "√": "\\sqrt ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "±": "\\pm ",
    "\u222a": "\\cup ", "\u2208": "\\in ", "°": "^\\circ ", "≈": "\\approx ", "。": ".", "\u3001": ",",
    "\u03b1": "\\alpha ", "β": "\\beta ", "θ": "\\theta ", "φ": "\\phi ",
}  # fmt: skip
_CHARACTER = re.compile("|".join(map(re.escape, _CHARACTERS)))
_ROOT_OF_DIGITS = re.compile(r"√\s*(\d+(?:\.\d+)?)")
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
        (r"\\p?mod(?![A-Za-z])", r"\\bmod"),
        (r"\\degree(?![A-Za-z])|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", '"degree"'),
        (r"\\%|%", '"%"'),
        (r"(?<=\d)[eE]([+-]?\d+)(?!\w)", r"*10^{\1}"),
        (r"\s+", " "),
    )
]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph)\s*\{([^{}]*)\}")
_ROMAN = re.compile(r"\\mathrm\s*\{([^{}\\\"]+)\}|\{\s*\\rm\s([^{}\\\"]+)\}")
_AND, _OR = (
    re.compile(rf'\s*,?\s*(?:"{word}"|(?<![A-Za-z]){word}(?![A-Za-z])|{sign})\s*')
    for word, sign in (("and", r"\\land(?![A-Za-z])"), ("or", r"\\lor(?![A-Za-z])"))
)
_MIXED = re.compile(r"(?<![\d.])(\d+) (\d+)/(\d+)(?![\d.])")
_DENIED = re.compile(r"\b(?:not|never|no|or|cannot|[a-z]+n't)\b", re.IGNORECASE)
_STATED = re.compile(
    r"[\"A-Za-z][A-Za-z'\", ]*?(?:\b(?:is|are|equals)(?: equal to)?\"?:?|[A-Za-z]{3}:)\s+(?=\S)",
    re.IGNORECASE,
)
"""Words up to a verb or a colon, as in "The value is 5"."""
_IN_PROSE = re.compile(
    r"(?P<said>[A-Za-z][A-Za-z ,':]*?)\s*(?:\$(?P<a>[^$\n]+)\$|\$\$(?P<b>[^$]+)\$\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>[\s\S]+?)\\\])"
    r"(?P<rest>[\s.]*|\s+is (?:the|our|my) [a-z]+[\s.]*)"
)
"""One formula between math delimiters, with words before it."""


def clean(text: str) -> str:
    """Translate an answer into the dialect."""
    prose = _IN_PROSE.fullmatch(text.strip())
    if prose and not _DENIED.search(prose["said"]):
        text = next(filter(None, prose.group("a", "b", "c", "d")))
    if not text.isascii():
        text = _ROOT_OF_DIGITS.sub(r"\\sqrt{\1}", text)
        text = _CHARACTER.sub(_spelled, unicodedata.normalize("NFKC", _SUPERSCRIPT.sub(_raised, text)))
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = _EMPHASIS.sub(r"\1", text.replace('"', "").replace("`", ""))
    if "\\" in text:
        text = _REPEATING.sub(_repeated, _ROMAN.sub(_unit, _TEXT.sub(_words, text)))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".?").strip()
    if (said := _STATED.match(text)) and not _DENIED.search(said.group()):
        text = text[said.end() :]
    return _MIXED.sub(r"(\1+\2/\3)", _OR.sub(";", _AND.sub(",", text))).strip()


def _spelled(match: re.Match[str]) -> str:
    return _CHARACTERS[match.group()]


def _raised(match: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', match.group())}}}"


def _repeated(match: re.Match[str]) -> str:
    whole, once, again = match.groups()
    value = Fraction(
        int(whole + once + again) - int(f"{whole}{once}" or "0"), 10 ** len(once) * (10 ** len(again) - 1)
    )
    return f"({value.numerator}/{value.denominator})"


def _words(match: re.Match[str]) -> str:
    inside = match.group(1).strip()
    is_formula = any(c.isdecimal() or c in "\\^_$" for c in inside)
    return f" {inside} " if is_formula or not inside else f' "{inside}" '


def _unit(match: re.Match[str]) -> str:
    r"""Turn a unit in upright letters (`\mathrm{cm}`, `{\rm cm}`) into text; anything else stays."""
    inside = (match[1] or match[2]).strip()
    return f' "{inside}" ' if read_unit(inside) else match.group()
