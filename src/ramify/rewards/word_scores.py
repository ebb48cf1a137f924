"""Our own scores for answers in words: the lenient F1, and whether an answer asserts a gold."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ramify.rewards.squad import overlap
from ramify.rewards.words import MAX_CHARS, joined, words

_VERDICTS = frozenset({"yes", "no"})
_SUBJECT = r"they|it|he|she|we|you|i|this|that|these|those|there|both|neither|the|because|since"
_VERDICT = re.compile(
    rf"\W*(yes|no)\b[*_\"')\]]*(?:\s*(?:[,;:!(—-]|\.(?!\s*\d)|$)(?!\s*(?:or|nor)\b)|\s+(?:{_SUBJECT})\b)",
    re.IGNORECASE,
)
"""The verdict at the start of an answer: "Yes, both are", "No they are not"; but not "no one", "No. 5", "yes or no"."""
_SENTENCE_END = re.compile(r"[。!?\n]|(?<=[^\W_]{4})\.\s")
"""A full stop ends a sentence only after four letters, since "Dr. Smith" and "U.S. Steel" are names."""
_DENIALS = """
not never neither nor no none nobody nothing cannot cant couldnt dont doesnt didnt wont wouldnt isnt wasnt arent werent
except rather instead but wrong incorrect false unlike 不 非 没 副
"""
_HEDGES = "alternatively maybe perhaps possibly possible possibility might 或"
_AROUND = frozenset(
    f"{_DENIALS} {_HEDGES} or could probably either although though unless else vs versus unsure unclear unknown".split()
)
"""Words that must not occur next to the gold in its sentence."""
_ANYWHERE = frozenset(_HEDGES.split())
"""Words that must not occur in any other sentence either."""
_SLASH = re.compile(r"\s*(?:[/|]|[?\n]\s*[oO]r\b)\s*")
_OTHERS = frozenset({"junior", "senior", "ii", "iii", "iv"})
"""After a name, these mean another person."""


def lenient_f1(prediction: str, golds: Sequence[str]) -> float:
    """F1 of the words (`words`) shared with a gold, the best over `golds`, in [0, 1]; 1.0 for the same text.

    An answer that begins with "yes" or "no" scores 1 for the same gold and 0 for the opposite one.
    """
    return max((_f1(prediction, gold) for gold in golds), default=0.0)


def contains(prediction: str, golds: Sequence[str]) -> float:
    """1.0 if a sentence of the prediction has all words of a gold next to each other, and nothing denies or doubts it.

    "not X", "X or Y", "X / Y", "X. However, Y is possible" and "X Jr." do not say X.
    """
    return float(any(_f1(prediction, gold) == 1.0 or _asserts(prediction, gold) for gold in golds))


def _f1(prediction: str, gold: str) -> float:
    prediction, gold = prediction[:MAX_CHARS], gold[:MAX_CHARS]
    if prediction.strip() == gold.strip() != "":
        return 1.0
    written, wanted = words(prediction), words(gold)
    if len(wanted) == 1 and wanted[0] in _VERDICTS and (verdict := _VERDICT.match(prediction)):
        return float(verdict[1].lower() == wanted[0])
    found = overlap(written, wanted)
    run_together = joined(prediction), joined(gold)
    if found < 1 and run_together != (prediction, gold):
        return max(found, overlap(*map(words, run_together)))
    return found


def _asserts(prediction: str, gold: str) -> bool:
    wanted = words(joined(gold[:MAX_CHARS]))
    if not wanted or (len(wanted) == 1 and wanted[0] in _VERDICTS):
        return False
    said = joined(prediction[:MAX_CHARS])
    said = said if "/" in gold else _SLASH.sub(" or ", said)
    sentences = [words(sentence) for sentence in _SENTENCE_END.split(said)]
    if not _ANYWHERE.isdisjoint(word for sentence in sentences for word in sentence if word not in wanted):
        return False
    return any(
        _AROUND.isdisjoint(rest) and not (rest and rest[0] in _OTHERS)
        for sentence in sentences
        for rest in _around(sentence, wanted)
    )


def _around(written: Sequence[str], wanted: Sequence[str]) -> Iterator[Sequence[str]]:
    """For each place where all wanted words are adjacent, in any order: the words after it, then the words before it."""
    size, bag = len(wanted), Counter(wanted)
    for start in range(len(written) - size + 1):
        if written[start] in bag and Counter(written[start : start + size]) == bag:
            yield (*written[start + size :], *written[:start])
