r"""One notation for numbers with what stands around them: money, rates, powers of units, periods, episodes, ordinals.

$155 million = 155 million dollars    km/h = km per h    1903 to 1904 = 1903-1904    S2E9 = season 2 episode 9
"""

import re

_AMOUNT = r"(\d(?:[\d.,]*\d)?(?:\s*(?:hundred|thousand|million|billion|trillion)\b)?)"
_MONEY = {"$": "dollars", "USD": "dollars", "€": "euros", "EUR": "euros", "£": "sterling", "GBP": "sterling"}
_LENGTH = "km|m|cm|mm|mi|ft|in|yd"
_BELOW = (
    rf"(?:square|cubic|sq|{_LENGTH}|kg|h|hr|s|sec|min|hour|day|week|month|year|second|minute|mile|met(?:er|re)"
    r"|kilomet(?:er|re))s?\b"
)
_NUMERALS = "\u3007零一二三四五六七八九十百"
_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"(?<=\d)\s*(?:\^|\\textsuperscript)\s*\{?\s*(?:\\(?:text|mathrm)\s*\{)?\s*(st|nd|rd|th)\b\s*\}*",
            r"\1",
        ),
        (r"(?:\^\s*)?(?:\{\s*)?\\(?:circ|degree)(?![A-Za-z])\s*\}?", "°"),
        (r"^\s*\$([^$]*[^$\s\\])\$(?=[\s.]*$)", r"\1"),  # the signs around a formula are no money
        (r"\bper cent\b", "percent"),
        (r"(?<=\d):00(?=\s*[AaPp]\.?\s?[Mm]\b)", ""),
        (r"(?i)(?:(?<=[ap]m)|(?<=m\.)) ?- ?(?=\d{1,2}(?::\d\d)? ?[ap]\.? ?m\b)", " to "),
        (r"\b(?:US|U\.S\.) dollar", "dollar"),
        (r"(?i)(?<=\d)\s*(?:kmh|kph)\b", " km per hour"),
        (r"(?i)(?<=\d)\s*mph\b", " miles per hour"),
        (r"(?i)\bbetween (\d{3,4}) and (\d{3,4})(?![\d-]|[.,]\d)", r"\1-\2"),
        (r"\b[Pp]ounds? sterling\b", "sterling"),
        (r"(?<=\d)\s*(?:x|\u00d7|\\times)\s*(?=\d)", " x "),
        (rf"(?i)(?:(?<=\d)|(?<=\d )|(?<=/)|(?<=per ))({_LENGTH})\^?\{{?2\}}?(?!\w)", r"square \1"),
        (rf"(?i)(?:(?<=\d)|(?<=\d )|(?<=/)|(?<=per ))({_LENGTH})\^?\{{?3\}}?(?!\w)", r"cubic \1"),
        (rf"(?<=\w)\s?/\s?(?={_BELOW})|(?<=KM)/(?=[HS]\b)", " per "),
        (
            r"(?i)(?<![\d.,/-])(?:\bfrom\s+)?(?<![A-Za-z0-9_])(\d{3,4})\s*(?:-|\b(?:to|until|through)\b)\s*(\d{3,4})(?![\d-]|[.,]\d)",
            r"\1-\2",
        ),
        (r"\b[Ss](\d{1,2})\s?[Ee](\d{1,2})\b", r"season \1 episode \2"),
        (rf"百分之\s*([\d.]+|[{_NUMERALS}]+)", r"\1%"),
        (rf"(?<![\d{_NUMERALS}])(\d{{4}}|[{_NUMERALS}]{{4}})\s*年(?!\s*[\d{_NUMERALS}]|\w)", r"\1"),
    )
]
_HINT = re.compile(
    r"[$€£^\\/\u00d7年]|百分|(?i:usd|eur|gbp)|per cent|sterling|between|dollar|:00|[Mm]\.? ?- ?\d|\d\s*(?i:kmh|kph|mph)\b|\b[Ss]\d|\d(?: \d{3}|\s*(?:-|x|(?i:to|until|through))\s*\d)|[A-Za-z][23]\b"
)
"""Whether any of the rules may have something to do."""
_SIGN_OF_MONEY = re.compile(rf"(?<![A-Za-z])(?:US)?\\?(\$|€|£|USD|EUR|GBP)\s*{_AMOUNT}", re.IGNORECASE)
_SPACED_THOUSANDS = re.compile(r"\s*\d{1,3}(?: \d{3})+\s*")


def one_notation(text: str) -> str:
    """The text in the notations above; compatibility characters are folded before."""
    if _HINT.search(text) is None:
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _SIGN_OF_MONEY.sub(lambda match: f"{match[2]} {_MONEY[match[1].upper()]}", text)
    return text.replace(" ", "") if _SPACED_THOUSANDS.fullmatch(text) else text
