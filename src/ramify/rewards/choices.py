r"""Letters of choices: `C` is `(C)`, `C) 14`, "Option C" and "The answer is C"; it is no list of letters."""

import functools
import re
from dataclasses import dataclass

from ramify.rewards.math_forms import DENIED

_MARKUP = re.compile(r"\\(?:text|math)[a-z]*\s*|\\boxed|\\[ ,;:!()\[\]]|\\q?quad(?![a-z])|[{}$*`\"~]+")
_CHOICE = re.compile(
    r"\s*(?P<lead>(?:[a-z ,']*?\b(?:answer|option|choice|letter|alternative|choose|pick|select)|it)(?: is|'s)?\s*:?\s*)?"
    r"(?P<open>[(\[])?\s*(?P<letter>[a-z])(?P<mark>\s*[)\]][.:]?|[.:](?=[\s\d\\(-]|$))?(?P<remainder>.*)",
    re.IGNORECASE | re.DOTALL,
)
"""A letter of a choice: "C", "(C)", "C. 14", "Option C", "The answer is C because .."."""
_LETTER_FIRST = re.compile(r"(?:\\(?:text|math)[a-z]*|[\s({\[$*\"])*[A-Za-z](?![A-Za-z0-9_^\\])")
_GOES_ON = re.compile(
    r"[.,;!\s]*|\s+is (?:the )?(?:correct|right|best|answer)\b.*|,?\s+(?:because|since)\b.*|\s+(?:\([^()]{2,}\)|[\u2013\u2014]\s.*|-\s+(?:[A-Z][a-z]|[A-Za-z]{3}).*)",
    re.DOTALL,
)
"""Text after a letter without a mark."""
_REASON = re.compile(r"\b(?:because|since)\b")
_INITIALS = re.compile(r"^(?:[A-Z]\.\s*)+(?=[A-Z][a-z])")
_MAX_CHOICE = 500
_FURTHER = re.compile(
    r"^[A-Z]\.\s|(?:^|[\s,;/&])\(?[A-Ja-j]\)|(?:^|[\s,;/&])[A-J]:(?:\s|$)|(?:^|[.;,/&\n]\s*|\d\s+|\b(?:or|not)\s+|(?<! [A-J] )(?<!^[A-J] )\band\s+)"
    r"[A-J](?:\.(?:\s|$)|\s*[,;/]|\s*$)|[.;,/&\n]\s*[A-J]\s+[-\u2013\u2014]\s|\b(?:option|choice)s?\s+\(?[A-J]\b|\b(?:wrong|incorrect)\b|^\s*(?:is|was)\s+(?:not|false)\b"
)
"""A further letter, or a denial: then the answer chooses none."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A letter as it is written, whether a mark follows it, what else follows it, and whether it is the whole text."""

    letter: str
    is_marked: bool
    content: str
    is_alone: bool


def same_choice(prediction: str, gold: str) -> bool | None:
    """Compare the letters of two choices; None if values decide. A list of letters is no choice."""
    wanted = _choice(gold) if _LETTER_FIRST.match(gold) else None
    if wanted is None or (wanted.content and not (wanted.is_marked and wanted.letter.isupper())):
        return None
    written = _choice(prediction)
    if written is None or (wanted.is_alone and wanted.letter.islower() and written.is_alone):
        return None  # the second are symbols
    if written.letter.upper() != wanted.letter.upper():
        return False
    return None if wanted.content and written.content and written.is_marked else True


@functools.lru_cache(maxsize=1 << 12)
def _choice(text: str) -> _Choice | None:
    match = _CHOICE.fullmatch(_MARKUP.sub("", text)) if len(text) <= _MAX_CHOICE else None
    if match is None:
        return None
    lead, opening, letter, mark, remainder = match.groups()
    if not "A" <= letter <= ("Z" if lead or mark else "J") and not "a" <= letter <= "j":
        return None
    if mark is None and not _GOES_ON.fullmatch(remainder):
        return None
    further = _REASON.split(remainder.strip())[0]
    if mark and ")" in mark:
        further = _INITIALS.sub("", further)
    if _FURTHER.search(further) or DENIED.search(lead or ""):
        return None
    content = remainder.strip(" .,;!")
    return _Choice(letter, bool(mark), content, not (lead or opening or mark or content))
