"""The published metrics for answers in words, exact match and F1, reproduced to the last digit.

Exact match is that of SQuAD (arXiv 1606.05250). F1 is that of HotpotQA (arXiv 1809.09600): SQuAD's, except that "yes",
"no" and "noanswer" score 0 unless both sides are the same. ARPO trains with this F1 (arXiv 2507.19849). Both delete all
punctuation, so neither tells 5 from -5; formulas are compared by `math_equal`.
"""

import functools
import re
import string
from collections.abc import Sequence

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = frozenset({"yes", "no", "noanswer"})
_LONG = 1000
"""A text with more characters is not worth caching."""


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals a normalised gold, else 0.0."""
    return float(any(normalised(prediction) == normalised(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """F1 of the words shared with a gold, the best over `golds`, in [0, 1]."""
    return max((_f1(normalised(prediction), normalised(gold)) for gold in golds), default=0.0)


def normalised(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces."""
    return _normalised(text) if len(text) > _LONG else _remembered(text)


def overlap(written: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of two bags of words; 0 if they share nothing."""
    left: dict[str, int] = {}
    for word in wanted:
        left[word] = left.get(word, 0) + 1
    shared = 0
    for word in written:
        if left.get(word):
            left[word] -= 1
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(written), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _normalised(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


_remembered = functools.lru_cache(maxsize=1 << 12)(_normalised)


def _f1(prediction: str, gold: str) -> float:
    if prediction != gold and (prediction in _VERDICTS or gold in _VERDICTS):
        return 0.0
    return overlap(prediction.split(), gold.split())
