r"""Units after a number: `\text{ square centimeters}`, "cm^2" and "sq. cm" are the same; 100 cm is 1 m.

Text in `\text{..}` is a unit unless it is a remark ("5 \text{ is wrong}"). Plain letters are a unit if they spell one in
the table below, or a word for counted things ("17 people"); "2xy" is a product.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from ramify.rewards.numerals import SCALES

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
_COUNTED = re.compile(r"\s+(?=[A-Za-z]*[aeiou])[A-Za-z]{4,}(?: [A-Za-z]+)*\.?")
_EXPONENT = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_QUOTED = re.compile(rf'(?:\s*(?:[/*]\s*)?"[^"]*"{_EXPONENT})+(?:\s*[CF])?$')
_PLAIN = re.compile(rf"(?<=[\d}})!\]])\s*[A-Za-z][A-Za-z. ]*{_EXPONENT}(?:/\s*[A-Za-z]+{_EXPONENT})?$")
_WORD = re.compile(r"[^\s.^{}]+")


@dataclass(frozen=True, slots=True)
class Unit:
    """`factor` times the base units in `of`, such as "m^2" or "m/s". Counted things are base units of their own."""

    of: str
    factor: Fraction = Fraction(1)

    @property
    def is_measure(self) -> bool:
        """Whether it is a unit of the table, and not a percentage."""
        bases = {base for base, _ in _KNOWN.values()} - {"%"}
        return all(part.partition("^")[0] in bases for part in self.of.split("/"))


def without_unit(text: str) -> tuple[str, Fraction, Unit | None]:
    """The text before the unit, the scale to multiply it by (a million in "4.4 million"), and the unit."""
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
        unit = Unit(" ".join(_WORD.findall(written)).lower().removesuffix("s"))
    if unit is None or (quoted is None and not _may_be_plain(before, written)):
        return bare
    return before, scale, unit


def read_unit(written: str) -> Unit | None:
    """The unit that a text spells; None if it is not in the table."""
    if len(written) > 60:
        return None
    of, factor = [], Fraction(1)
    text = re.sub(r"\bmph\b", "mi/h", re.sub(r"\bkm?ph\b|\bkmh\b", "km/h", written))
    for position, part in enumerate(re.split(r"/|\bper\b", text)):
        found = _power_of_one(part)
        if found is None:
            return None
        name, size = found
        of.append(name)
        factor = factor / size if position else size
    return Unit("/".join(of), factor)


def _power_of_one(written: str) -> tuple[str, Fraction] | None:
    name, _, exponent = written.partition("^")
    words, raised = _WORD.findall(name), exponent.strip("{} ")
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
    """Whether plain letters can be a unit.

    Up to three letters directly after a formula with letters are factors ("x^2 + 3mi"). A single letter is a unit only
    after a bare number and a blank.
    """
    letters = written.strip()
    if len(letters) == 1:
        return written[0] == " " and re.fullmatch(r"[+-]?[\d.,]+", before) is not None
    glued = written[0] != " " and len(letters) <= 3
    return not (glued and re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", before)))
