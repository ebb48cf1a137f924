"""The papers' comparison of answers by words.

Normalisation is that of SQuAD (arXiv 1606.05250): lower case, no punctuation, no articles, single spaces. It
deletes signs and decimal points, so two plain numbers are compared by value instead; formulas are not.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:(?<=[0-9])\.|\.[0-9]+)?")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = frozenset({"yes", "no", "noanswer"})


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 when the prediction equals one of `golds` (as numbers, or after normalisation), else 0.0."""
    return float(any(_equal(prediction, gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """F1 of the words shared with a gold, the best over `golds`, in [0, 1].

    The training score of ARPO (arXiv 2507.19849): "yes", "no" and "noanswer" need equality. Two plain numbers
    score 1.0 or 0.0 by value, where the released code lets "5" answer "-5".
    """
    return max((_word_f1(prediction, gold) for gold in golds), default=0.0)


def _equal(prediction: str, gold: str) -> bool:
    left, right = _number(prediction), _number(gold)
    if left is not None and right is not None:
        return left == right
    return _normalise(prediction) == _normalise(gold)


def _word_f1(prediction: str, gold: str) -> float:
    written, wanted = _normalise(prediction), _normalise(gold)
    numbers = _number(prediction) is not None and _number(gold) is not None
    if numbers or written in _VERDICTS or wanted in _VERDICTS:
        return float(_equal(prediction, gold))
    written_words, wanted_words = written.split(), wanted.split()
    shared = (Counter(written_words) & Counter(wanted_words)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(written_words), shared / len(wanted_words)
    return 2 * precision * recall / (precision + recall)


def _normalise(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _number(text: str) -> Decimal | None:
    plain = text.strip().replace("\N{MINUS SIGN}", "-")
    if not any(c in string.digits for c in plain) or _NUMBER.fullmatch(plain) is None:
        return None
    return Decimal(plain.replace(",", ""))
