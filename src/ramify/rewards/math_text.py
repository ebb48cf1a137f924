r"""Removing typesetting from mathematical answers, and reading units: `\left( \dfrac{1}{2} \right)` becomes `(\frac{1}{2})`.

The result is a small dialect: commands with a meaning, `"words"` for text in a formula, plain brackets, a comma for "and"
and a semicolon for "or". A sentence that states the answer is reduced to the answer.

`\text{ square centimeters}`, "cm^2" and "sq. cm" are the same unit; 100 cm is 1 m. Text in `\text{..}` after a number is a
unit unless it is a remark ("5 \text{ is wrong}"). Plain letters are a unit if they spell one in the table below, or a word
for counted things ("17 people"); "2xy" is a product.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from ramify.rewards.words import NUMBER_WORDS, SCALES

_TABLE = """
m: 1/1000 mm millimeter millimetre, 1/100 cm centimeter centimetre, 1 m meter metre, 1000 km kilometer kilometre
m: 127/5000 in inch, 381/1250 ft foot feet, 1143/1250 yd yard, 201168/125 mi mile
g: 1/1000 mg milligram, 1 g gram, 1000 kg kilogram
lb: 1 lb pound, 1/16 oz ounce
l: 1/1000 ml mL milliliter, 1 l L liter litre
s: 1 s sec second, 60 min minute, 3600 h hr hour, 86400 day
dollar: 1 dollar usd, 1/100 cent
degree: 1 degree deg
celsius: 1 celsius
fahrenheit: 1 fahrenheit
%: 1 % percent pct percentage
"""
_KNOWN = {
    name: (base.strip(), Fraction(amount))
    for line in _TABLE.strip().splitlines()
    for base, _, units in [line.partition(":")]
    for amount, *names in map(str.split, units.split(","))
    for name in names
}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_SCALES = {**SCALES, "dozen": 12}
_SCALE = re.compile(rf"\s*\b({'|'.join(_SCALES)})\b", re.IGNORECASE)
_REMARK = re.compile(r"\b(?:is|are|was|not|no|or|wrong|false|incorrect)\b", re.IGNORECASE)
_COUNTED = re.compile(rf"\s+(?!(?:{'|'.join(NUMBER_WORDS)})\b)(?=[a-z]*[aeiou])[a-z]{{4,}}(?: [A-Za-z]+)*\.?")
"""A word for counted things, in lower case: "30 Rock" and "7 eleven" are names."""
_EXPONENT = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_QUOTED = re.compile(rf'(?:\s*(?:[/*]\s*)?"[^"]*"{_EXPONENT})+(?:\s*[CF])?$')
_PLAIN = re.compile(rf"(?<=[\d}})!\]])\s*[A-Za-z][A-Za-z. ]*{_EXPONENT}(?:/\s*[A-Za-z]+{_EXPONENT})?$")
_UNIT_WORD = re.compile(r"[^\s.^{}]+")
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


@dataclass(frozen=True, slots=True)
class Unit:
    """`factor` times the base units in `of`, such as "m^2" or "m/s". Counted things are base units of their own."""

    of: str
    factor: Fraction = Fraction(1)

    @property
    def is_measure(self) -> bool:
        """True if the unit is in the table and is not a percentage."""
        bases = {base for base, _ in _KNOWN.values()} - {"%"}
        return all(part.partition("^")[0] in bases for part in self.of.split("/"))


def without_unit(text: str) -> tuple[str, Fraction, Unit | None]:
    """Return the text before the unit, the scale to multiply it by (a million in "4.4 million"), and the unit."""
    bare = (text, Fraction(1), None)
    quoted = _QUOTED.search(text)
    match = quoted or _PLAIN.search(text)
    if match is None or not match.start():
        return bare
    before, written, scale = text[: match.start()].strip(), match.group().replace('"', " "), Fraction(1)
    while word := _SCALE.match(written):
        scale, written = scale * _SCALES[word[1].lower()], written[word.end() :]
    if not written.strip():
        return before, scale, None
    if _REMARK.search(written):
        return bare
    unit = read_unit(written)
    if unit is None and (quoted or _COUNTED.fullmatch(written)):
        unit = Unit(" ".join(_UNIT_WORD.findall(written)).lower().removesuffix("s"))
    if unit is None or (quoted is None and not _may_be_plain(before, written)):
        return bare
    return before, scale, unit


def read_unit(written: str) -> Unit | None:
    """Return the unit that a text spells; None if it is not in the table."""
    if len(written) > 60:
        return None
    of, factor = [], Fraction(1)
    text = re.sub(r"\bmph\b", "mi/h", re.sub(r"\bkm?ph\b|\bkmh\b", "km/h", written))
    for position, part in enumerate(re.split(r"/|\bper\b", text)):
        power = _power_of_one(part)
        if power is None:
            return None
        name, size = power
        of.append(name)
        factor = factor / size if position else size
    return Unit("/".join(of), factor)


def _power_of_one(written: str) -> tuple[str, Fraction] | None:
    name, _, exponent = written.partition("^")
    words, raised = _UNIT_WORD.findall(name), exponent.strip("{} ")
    if raised not in ("", "2", "3"):
        return None
    power = int(raised or 1)
    for word in (words[0], words[-1]) if len(words) > 1 else ():
        if word.lower() in _POWERS:
            power *= _POWERS[word.lower()]
            words.remove(word)
    if len(words) == 2 and words[0].lower() in ("degree", "degrees"):
        words = [{"c": "celsius", "f": "fahrenheit"}.get(words[1].lower(), words[1])]
    if len(words) != 1:
        return None
    word = words[0] if len(words[0]) == 1 else words[0].lower()
    known = next(
        (_KNOWN[w] for w in (word, word.removesuffix("s"), word.removesuffix("es")) if w in _KNOWN), None
    )
    return None if known is None else (known[0] if power == 1 else f"{known[0]}^{power}", known[1] ** power)


def _may_be_plain(before: str, written: str) -> bool:
    """Return True if plain letters can be a unit.

    Up to three letters directly after a formula with letters are factors ("x^2 + 3mi"). A single letter is a unit only
    after a bare number and a blank.
    """
    letters = written.strip()
    if len(letters) == 1:
        return written[0] == " " and re.fullmatch(r"[+-]?[\d.,]+", before) is not None
    glued = written[0] != " " and len(letters) <= 3
    return not (glued and re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", before)))


def clean(text: str) -> str:
    """Translate an answer into the dialect."""
    prose = _IN_PROSE.fullmatch(text.strip())
    if prose and not DENIED.search(prose["lead"]):
        text = next(filter(None, prose.group("a", "b", "c", "d")))
    if not text.isascii():
        text = _ROOT_OF_DIGITS.sub(r"\\sqrt{\1}", text)
        text = _CHARACTER.sub(_spelled, unicodedata.normalize("NFKC", _SUPERSCRIPT.sub(_raised, text)))
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
