r"""Equality of Tool-Star's maths reward: a normalisation, then math-verify on the two bare texts (`compat` only).

The normalisation is that of arXiv 2206.14858, appendix D.1, without its cut at the last equals sign and with more
spellings. Without math delimiters math-verify takes the first number that it finds, and so accepts many a wrong formula.
"""

import re

from ramify.rewards.math_workers import MathWorkers, Symbolic, shared_workers

_SUBSTITUTIONS = (
    ("an ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
    *(("\\left", ""), ("\\right", "")),
    *(("\N{RATIO}", ":"), ("\N{FULLWIDTH COMMA}", ","), ("$", "")),
    *(("\\approx", "="), ("\\simeq", "="), ("\\sim", "=")),
    *(("^\\prime", "'"), ("^{\\prime}", "'")),
    *(("\\dfrac", "\\frac"), ("\\tfrac", "\\frac")),
    *(("^\\circ", ""), ("%", "")),
    *(("\N{SQUARE ROOT}", "\\sqrt"), ("\N{INFINITY}", "\\infty"), ("\N{UNION}", "\\cup")),
)
_WORDS = r"""
square ways integers dollars mph inches hours km units \ldots sue points feet minutes digits cents degrees cm
gm pounds meters meals edges students childrentickets multiples \text{s} \text{.}
"""
_REMOVED = (
    *_WORDS.split(),
    "\\text{\ns}",
    *("\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}"),
    *("\\;", ",\\!", "{,}", '"', "\\dots"),
)
_MAX_CHARS = 2000
_WRAPPED = tuple(re.compile(rf"\\{name}\{{(.*?)\}}") for name in ("text", "textbf", "overline"))
_BOXED = re.compile(r"\\boxed\{(.*)\}")
_FRACTION = re.compile(r"frac([^{])(.)")
_ROOT = re.compile(r"sqrt([^{])")


def toolstar_equal(prediction: str, gold: str | None, workers: MathWorkers | None = None) -> bool:
    """Same text ignoring case and blanks around it, or equal by math-verify; a comparison that takes too long is unequal.

    Raises:
        AttributeError: The gold is neither a text nor None.
    """
    if gold is None:
        return False
    if prediction.strip().lower() == gold.strip().lower():
        return True
    if max(len(prediction), len(gold)) > _MAX_CHARS:
        return False
    found = (workers or shared_workers()).compare(_normalise(prediction), _normalise(gold), "bare")
    return found is Symbolic.EQUAL


def _normalise(text: str) -> str:
    text = _undelimited(text.strip())
    for old, new in _SUBSTITUTIONS:
        text = text.replace(old, new)
    for word in _REMOVED:
        text = text.replace(word, "")
    for wrapped in (*_WRAPPED, _BOXED):
        text = wrapped.sub(r"\1", text)
    text = _ROOT.sub(r"sqrt{\1}", _FRACTION.sub(r"frac{\1}{\2}", text))
    digits = text.replace(",", "")
    return _undelimited(digits if digits.isdigit() else text).strip()


def _undelimited(text: str) -> str:
    text = text[2:] if text.startswith(("\\(", "\\[")) else text
    return text[:-2] if text.endswith(("\\)", "\\]")) else text
