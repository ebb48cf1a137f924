r"""Units of mathematical answers: which text behind a formula is one, and which spellings are the same.

`\text{ square centimeters}`, "cm^2" and "sq. cm" are the same unit; 100 cm is 1 m. Text in `\text{..}` after a number is a
unit unless it is a remark ("5 \text{ is wrong}"). Plain letters are a unit if they spell one in the table below, or a word
for counted things ("17 people"); "2xy" is a product.
"""

import re
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
celsius: 1 celsius °c °celsius
fahrenheit: 1 fahrenheit °f °fahrenheit
%: 1 % percent pct percentage
"""
_KNOWN = {
    name: (base.strip(), Fraction(amount))
    for line in _TABLE.strip().splitlines()
    for base, _, units in [line.partition(":")]
    for amount, *names in map(str.split, units.split(","))
    for name in names
}
_POWERS = {None: 1, "s": 2, "2": 2, "c": 3, "3": 3}
"""Exponents by the first letter of "square", "squared", "cubic" and so on."""
_POWER = re.compile(
    r"[\s.]*(?:(sq|cu)(?:uare|bic)?[\s.]+)?([^\s.^{}]+)(?:\s+(sq|cu)(?:uar|b)ed)?[\s.]*(?:\^[\s{]*([23])[\s}]*)?",
    re.IGNORECASE,
)
_SCALES = {**SCALES, "dozen": 12}
_SCALE = re.compile(rf"\s*\b({'|'.join(_SCALES)})\b", re.IGNORECASE)
_REMARK = re.compile(r"\b(?:is|are|was|not|no|or|wrong|false|incorrect)\b", re.IGNORECASE)
_COUNTED = re.compile(rf"\s+(?!(?:{'|'.join(NUMBER_WORDS)})\b)(?=[a-z]*[aeiou])[a-z]{{4,}}(?: [A-Za-z]+)*\.?")
"""A word for counted things, in lower case: "30 Rock" and "7 eleven" are names."""
_EXPONENT = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_QUOTED_UNIT = re.compile(rf'(?:\s*(?:[/*]\s*)?"[^"]*"{_EXPONENT})+(?:\s*[CF])?$')
_PLAIN = re.compile(rf"(?<=[\d}})!\]])\s*[A-Za-z][A-Za-z. ]*{_EXPONENT}(?:/\s*[A-Za-z]+{_EXPONENT})?$")


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
    quoted = _QUOTED_UNIT.search(text)
    match = quoted or _PLAIN.search(text)
    if match is None or not match.start() or _REMARK.search(match.group()):
        return bare
    before, written, scale = text[: match.start()].strip(), match.group().replace('"', " "), Fraction(1)
    while word := _SCALE.match(written):
        scale, written = scale * _SCALES[word[1].lower()], written[word.end() :]
    if not written.strip():
        return before, scale, None
    unit = read_unit(written)
    if unit is None and (quoted or _COUNTED.fullmatch(written)):
        unit = Unit(" ".join(re.findall(r"[^\s.^{}]+", written)).lower().removesuffix("s"))
    if unit is None or (quoted is None and not _may_be_plain(before, written)):
        return bare
    return before, scale, unit


def read_unit(written: str) -> Unit | None:
    """Return the unit that a text spells; None if it is not in the table."""
    of: list[str] = []
    factor = Fraction(1)
    text = re.sub(r"\bdegrees?\s+(?=[cf])", "°", written, flags=re.IGNORECASE)
    text = re.sub(r"\bmph\b", "mi/h", re.sub(r"\bkm?ph\b|\bkmh\b", "km/h", text))
    for part in re.split(r"/|\bper\b", text):
        power = _POWER.fullmatch(part)
        if power is None:
            return None
        word = power[2] if len(power[2]) == 1 else power[2].lower()
        name = next((w for w in (word, word.removesuffix("s"), word.removesuffix("es")) if w in _KNOWN), None)
        if name is None:
            return None
        raised = power[1] or power[3] or power[4]
        (base, size), exponent = _KNOWN[name], _POWERS[raised and raised[0].lower()]
        factor = factor / size**exponent if of else size**exponent
        of.append(base if exponent == 1 else f"{base}^{exponent}")
    return Unit("/".join(of), factor)


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
