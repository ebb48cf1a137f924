r"""Mathematical answers without their typesetting: `\left( \dfrac{1}{2} \right)` and `(1/2)` look alike afterwards.

What stays is a small dialect: commands with a meaning, `"words"` for text in a formula, plain brackets, a comma for "and"
and a semicolon for "or",
and `\mathbb{R}`.
"""

import re
import unicodedata

from ramify.rewards.math_units import is_unit

_CHARACTERS = {
    "\u2212": "-", "\u2013": "-", "\u00d7": "\\times ", "\u00f7": "/", "\u00b7": "*", "\u22c5": "*", "\u2044": "/",
    "√": "\\sqrt ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "±": "\\pm ",
    "\u2213": "\\mp ", "\u222a": "\\cup ", "\u2208": "\\in ", "°": "^\\circ ", "≈": "\\approx ", "。": ".", "、": ",",
    "\u03b1": "\\alpha ", "β": "\\beta ", "\u03b3": "\\gamma ", "θ": "\\theta ", "λ": "\\lambda ", "φ": "\\phi ",
    "\u200b": "", "`": "", "¢": " cents",
}  # fmt: skip
_CHARACTER = re.compile("|".join(map(re.escape, _CHARACTERS)))
_DECIMAL = re.compile(r"\d")
_ROOT_OF_DIGITS = re.compile(r"√\s*(\d+(?:\.\d+)?)")
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_AMOUNT = r"\s*(\d(?:[\d.,]*\d)?|\.\d+)"
_REPLACED = [
    (re.compile(pattern), text)
    for pattern, text in (
        (r"(?<=\d)(?:,\\!\s*|\{,\}|,\\,)(?=\d{3}(?!\d))", ""),
        (r",\\!\s*|\{,\}|,\\,", ","),
        (r"\\(?:text)?color\s*\{[^{}]*\}|\\(?:tiny|small|[lL]arge|LARGE|[hH]uge)(?![A-Za-z])", " "),
        (r"(?<!\\)\\[!,;:> ]|\\q?quad(?![A-Za-z])|~|\\displaystyle|\\limits|&nbsp;", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\lbrace|\\\{", "\\\\{"),
        (r"\\rbrace|\\\}", "\\\\}"),
        (r"\\lbrack", "["),
        (r"\\rbrack", "]"),
        (r"\\langle", "("),
        (r"\\rangle", ")"),
        (r"\\[lr]?[vV]ert|\\mid", "|"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\mathbb\s*(?:R(?![A-Za-z])|\{\s*R\s*\})", r"\\mathbb{R}"),
        (
            r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|underline|therefore|mathbb(?!\{R\})|boldsymbol|bm|operatorname\*?|boxed|fbox)(?![A-Za-z])",
            "",
        ),
        # A sign of money before a number that ends the answer; "$" by itself may only open a formula.
        (rf'(?:\\\$|"?\bUSD\b"?){_AMOUNT}(?=[\s.$]*$)|^\s*\${_AMOUNT}(?=[\s.]*$)', r'\1\2 "dollar"'),
        (rf"€{_AMOUNT}(?=[\s.]*$)", r'\1 "euro"'),
        (rf"£{_AMOUNT}(?=[\s.]*$)", r'\1 "sterling"'),
        (r"\\[()\[\]]|\\\$|\$|[£€]", " "),
        (r"\\leqs?lant|\\leqq?(?![A-Za-z])", r"\\le "),
        (r"\\geqs?lant|\\geqq?(?![A-Za-z])", r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\neq?(?![A-Za-z])", r"\\ne "),
        (r"\\colon(?![A-Za-z])|\{:\}", ":"),
        (r"\\(?:cdot|times|ast)(?![A-Za-z])|\*\*?(?=\s*\*)", "*"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\degree(?![A-Za-z])|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))", '"degree"'),
        (r"\\%|%", '"%"'),
        (r"\\varnothing|\\emptyset|\u2205", r"\\emptyset "),
        (r"\\ldots|\\cdots|\\dots|\u2026", "..."),
        (r"(?<=\d)[eE]([+-]?\d+)(?!\w)", r"*10^{\1}"),
        (r"\s+", " "),
    )
]
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph)\s*\{([^{}]*)\}")
_LETTERS_ALONE = re.compile(r"(?=.*[-+=<>*/])(?!.*[A-Za-z]{2})[-+=<>*/(),\sA-Za-z]+")
"""A formula of single letters, such as "x + y"; "(C)" is a choice."""
_ROMAN = re.compile(r"\\mathrm\s*\{([^{}\\\"]+)\}|\{\s*\\rm\s([^{}\\\"]+)\}")
_AND, _OR = (
    re.compile(rf'\s*,?\s*(?:"{word}"|(?<![A-Za-z]){word}(?![A-Za-z]){sign})\s*')
    for word, sign in (("and", ""), ("or", r"|\\(?:lor|vee)(?![A-Za-z])"))
)
_CLOCK = re.compile(r'(?<=\d:\d\d)\s*"?\s*([ap])\.?\s*m\.?\s*"?$', re.IGNORECASE)
_STATED = re.compile(
    r'^\s*"(?![^"]*\b(?:not|never|[a-z]+n\'t)\b)[^"]*(?:\b(?:is|are|equals|be|to|thus|hence|so|therefore|then),?|[:=])"\s*(?=\S)|"\s*(?:is|equals)\s*"',
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"(?!.*\b(?:not|never|cannot|[a-z]+n't)\b)(?:[A-Za-z][A-Za-z',]*\s+)+(?:is|are|equals)(?:\s+equal to)?:?\s+(?=\S)",
    re.IGNORECASE,
)
_REPEATING = re.compile(r"(?<!\d)(\d{0,100})\.(\d{0,100})\\(?:overline|bar|dot)\{(\d{1,30})\}")
_MIXED = re.compile(r"(?<![\d.])(\d+) (\d+)/(\d+)(?![\d.])")
_MIXED_SIGN = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
"""Before a fraction of one character that follows a number, as in 2½."""
_TAIL = ".,;:!?。"


def clean(text: str) -> str:
    """The text in the dialect; a sentence "The value is 5." becomes its value."""
    if not text.isascii():
        text = _MIXED_SIGN.sub(" ", text.replace("\u211d", "\\mathbb{R}"))
        text = _ROOT_OF_DIGITS.sub(r"\\sqrt{\1}", text)
        text = _SUPERSCRIPT.sub(_raised, text)
        text = _CHARACTER.sub(lambda match: _CHARACTERS[match.group()], unicodedata.normalize("NFKC", text))
        text = _CHARACTER.sub(lambda match: _CHARACTERS[match.group()], text)
        text = _DECIMAL.sub(lambda match: str(unicodedata.decimal(match.group())), text)
    text = (
        text.replace('"', "").replace("**", "^")
        if "**" in text.strip("*")
        else text.replace('"', "").strip("*")
    )
    if "\\" in text or "$" in text or "%" in text:
        text = _ROMAN.sub(_unit, _TEXT.sub(_words, text))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    if "\\overline" in text or "\\bar" in text or "\\dot{" in text:
        text = _REPEATING.sub(_repeated, text)
    text = _CLOCK.sub(r' "\1m"', text.strip()).rstrip(_TAIL[:-3] + "?。").strip()
    if '"' in text:
        text = _STATED.sub(lambda match: "" if match.start() == 0 else "=", text)
    text = _SENTENCE.sub("", text, count=1) if _SENTENCE.match(text) else text
    return _MIXED.sub(r"(\1+\2/\3)", _OR.sub(";", _AND.sub(",", text))).strip()


def _raised(match: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", match.group())
    is_alone = len(digits) == 1 and not match.string[match.end() : match.end() + 1].isdecimal()
    return f"^{digits}" if is_alone else f"^{{{digits}}}"


def _words(match: re.Match[str]) -> str:
    inside = match.group(1).strip()
    is_formula = (
        any(c.isdecimal() or c in "\\^_$" for c in inside) or _LETTERS_ALONE.fullmatch(inside) is not None
    )
    return f" {inside} " if is_formula or not inside else f' "{inside}" '


def _unit(match: re.Match[str]) -> str:
    r"""A unit in upright letters (`\mathrm{cm}`, `{\rm cm}`) as the text that it is; anything else stays."""
    inside = (match[1] or match[2]).strip()
    return f' "{inside}" ' if is_unit(inside) else match.group()


def _repeated(match: re.Match[str]) -> str:
    r"""A repeating decimal as a fraction: `0.1\overline{6}` is (16 - 1) / 90."""
    whole, start, period = match.groups()
    before = int(f"0{whole}{start}")
    return f"(({int(f'0{whole}{start}{period}') - before})/({(10 ** len(period) - 1) * 10 ** len(start)}))"
