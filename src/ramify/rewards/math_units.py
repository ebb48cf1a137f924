r"""Units behind a number, in one spelling: `\text{ square centimeters}`, "cm^2" and "sq. cm" are all "cm^2".

Plain letters are a unit only where they spell one that is listed here: "2xy" is a product. What stands in `\text{..}` is
one unless it says something ("5 \text{ is wrong}"). Words for scales ("4.4 million") multiply.
"""

import re
from fractions import Fraction

from ramify.rewards.numerals import SCALES

_MEASURES = {
    name: words[0]
    for line in """
    mm millimeter millimetre
    cm centimeter centimetre
    m meter metre
    km kilometer kilometre
    in inch
    ft foot feet
    yd yard
    mi mile
    mg milligram
    g gram gramme
    kg kilogram kilogramme kilo
    lb pound
    oz ounce
    ton tonne
    ml mL milliliter millilitre
    l L liter litre
    gal gallon
    s sec second
    min minute
    h hr hour
    day
    dollar usd
    cent
    euro eur
    sterling gbp
    degree deg
    celsius
    fahrenheit
    rad radian
    mph
    kph kmh
    hz hertz
    % percent
    """.strip().splitlines()
    if (words := line.split())
    for name in words
}
_COUNTED = """
unit week month year yr people person inhabitant student child children boy girl man men woman women member team
player medal point way time piece item page step turn apple orange book coin ball marble card digit edge vertex
vertices side face number solution integer
"""
_COUNTS = frozenset(_COUNTED.split())
_SYNONYMS = {"mph": "mi/h", "kph": "km/h"}
_TEMPERATURES = {"c": "celsius", "celsius": "celsius", "f": "fahrenheit", "fahrenheit": "fahrenheit"}
_SCALES = {**SCALES, "dozen": 12}
_SCALE = re.compile(rf"\s*\b({'|'.join(_SCALES)})s?\b\s*", re.IGNORECASE)
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_LETTERS = frozenset("mgslL")
"""Units of one letter that plain text may hold, with a blank before them and a bare number before that."""
_MAX_GLUED = 3
_REMARK = re.compile(r"\b(?:is|are|was|not|no|or|wrong|false|incorrect)\b", re.IGNORECASE)
"""Text that says something about the number and names nothing that is counted."""
_EXPONENT = r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
_QUOTED = re.compile(rf'(?:\s*(?:[/*]\s*)?"[^"]*"{_EXPONENT})+(?:\s*[CF])?$')
_PLAIN = re.compile(rf"(?<=[\d}})!\]])\s*[A-Za-z][A-Za-z. ]*{_EXPONENT}(?:/\s*[A-Za-z]+{_EXPONENT})?$")
_BARE_NUMBER = re.compile(r"[+-]?[\d.,]+")
_WORD = re.compile(r"[^\s.^{}]+")
_COMMAND = re.compile(r"\\[A-Za-z]+")


def without_unit(text: str) -> tuple[str, Fraction, str]:
    """What stands before the unit, the scale to multiply it by, and the unit in its one spelling ("" for none)."""
    quoted = _QUOTED.search(text)
    match = quoted or _PLAIN.search(text)
    if match is None or not match.start():
        return text, Fraction(1), ""
    before, written, scale = text[: match.start()], match.group().replace('"', " "), Fraction(1)
    while word := _SCALE.match(written):
        scale *= _SCALES[word[1].lower()]
        written = f" {written[word.end() :]}"
    if not written.strip():
        return before.strip(), scale, ""
    unit = _unit(written)
    if _REMARK.search(written):
        return text, Fraction(1), ""
    if quoted is None and (unit is None or not _may_be_plain(before.strip(), written)):
        return text, Fraction(1), ""
    if quoted and (word := re.search(rf"{_SCALE.pattern}$", before, re.IGNORECASE)):
        before, scale = before[: word.start()], scale * _SCALES[word[1].lower()]
    return before.strip(), scale, unit or " ".join(_WORD.findall(written)).lower().removesuffix("s")


def is_unit(text: str) -> bool:
    """Whether the text is nothing but a unit that is known here ("cm^2", "m/s")."""
    return _unit(text) is not None


def is_measure(unit: str) -> bool:
    """Whether a unit in its one spelling is one of measurement, money or angles, and not of things that are counted."""
    return unit != "%" and all(part.partition("^")[0] in _MEASURES for part in unit.split("/"))


def is_letter(unit: str) -> bool:
    """Whether plain text may mean a variable by it."""
    return unit in _LETTERS


def _may_be_plain(before: str, written: str) -> bool:
    """Letters right behind a formula with letters are factors: "x^2 + 3mi"; so is a letter behind any formula."""
    letters = written.strip()
    if len(letters) == 1:
        return written[0] == " " and letters in _LETTERS and _BARE_NUMBER.fullmatch(before) is not None
    glued = written[0] != " " and len(letters) <= _MAX_GLUED
    return not (glued and re.search("[A-Za-z]", _COMMAND.sub("", before)))


def _unit(written: str) -> str | None:
    parts = [_factor(part) for part in re.split(r"/|\bper\b", written)]
    known = [part for part in parts if part is not None]
    unit = "/".join(known)
    return _SYNONYMS.get(unit, unit) if len(known) == len(parts) else None


def _factor(written: str) -> str | None:
    """One unit with its power."""
    name, _, exponent = written.partition("^")
    words, raised = _WORD.findall(name), exponent.strip("{} ")
    if raised not in ("", "2", "3"):
        return None
    power = int(raised or 1)
    for word in (words[0], words[-1]) if len(words) > 1 else ():
        if word.lower() in _POWERS:
            power *= _POWERS[word.lower()]
            words.remove(word)
    found = _name(words)
    return None if found is None else found if power == 1 else f"{found}^{power}"


def _name(words: list[str]) -> str | None:
    if len(words) == 2 and words[0].lower() in ("degree", "degrees"):
        return _TEMPERATURES.get(words[1].lower())
    if [word.lower() for word in words[1:]] == ["sterling"] and words[0].lower() in ("pound", "pounds"):
        return "sterling"
    if len(words) != 1:
        return None
    word = words[0] if len(words[0]) == 1 else words[0].lower()
    for spelling in (word, word.removesuffix("s"), word.removesuffix("es")):
        if spelling in _MEASURES:
            return _MEASURES[spelling]
        if spelling in _COUNTS:
            return spelling
    return None
