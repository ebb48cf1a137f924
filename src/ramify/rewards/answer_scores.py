r"""Scores of an answer by name. Each takes the prediction and the accepted answers (golds) and lies in [0, 1].

| name | meaning |
| --- | --- |
| em, f1 | the published metrics of SQuAD and HotpotQA, whatever the gold is |
| answer | the score used in training: a mathematical gold by value (`math_equal`), any other by `f1` |
| lenient | a mathematical gold by value, any other by F1 of normalised words (`words`): 1 if a person would accept it |
| acc | a mathematical gold by value; any other if the answer states it and neither denies nor doubts it |
| math_equal | equal by value |
| unread, timeout | 1 if a mathematical answer could not be read, or its comparison ran out of CPU time or memory |

em and f1 are reproduced to the last digit. Exact match is that of SQuAD (arXiv 1606.05250). F1 is that of HotpotQA
(arXiv 1809.09600): SQuAD's, except that "yes", "no" and "noanswer" score 0 unless both sides are the same. ARPO trains with
this F1 (arXiv 2507.19849). Both delete all punctuation, so neither tells 5 from -5.

The best of the golds counts. In `answer`, `lenient` and `acc` each gold is compared by the measure that fits it, `\text{..}`
around it is ignored, and a text always equals itself.
"""

import ast
import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from ramify.rewards import math_equal as mathematics
from ramify.rewards.extract import plain
from ramify.rewards.words import MAX_CHARS, joined, words

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNLIKE_OTHER_WORDS = frozenset({"yes", "no", "noanswer"})
_LONG = 1000
"""A text with more characters is not worth caching."""
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
AnswerScore: TypeAlias = Callable[[str, Sequence[str]], float]

_PROSE = re.compile(r"[\w\s.,;:'\"?()-]*")
"""Text without any mathematical sign."""


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the normalised prediction equals a normalised gold, else 0.0."""
    return float(any(normalised(prediction) == normalised(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Return F1 of the words shared with a gold, the best over `golds`, in [0, 1]."""
    return max((_hotpot_f1(normalised(prediction), normalised(gold)) for gold in golds), default=0.0)


def normalised(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, with single spaces."""
    return _normalised(text) if len(text) > _LONG else _remembered(text)


def overlap(written: Sequence[str], wanted: Sequence[str]) -> float:
    """Return F1 of two bags of words; 0 if they share nothing."""
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


def _hotpot_f1(prediction: str, gold: str) -> float:
    if prediction != gold and (prediction in _UNLIKE_OTHER_WORDS or gold in _UNLIKE_OTHER_WORDS):
        return 0.0
    return overlap(prediction.split(), gold.split())


def lenient_f1(prediction: str, golds: Sequence[str]) -> float:
    """Return F1 of the words (`words`) shared with a gold, the best over `golds`, in [0, 1]; 1.0 for the same text.

    An answer that begins with "yes" or "no" scores 1 for the same gold and 0 for the opposite one.
    """
    return max((_lenient_f1(prediction, gold) for gold in golds), default=0.0)


def contains(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if a sentence of the prediction has all words of a gold next to each other, and nothing denies or doubts it.

    "not X", "X or Y", "X / Y", "X. However, Y is possible" and "X Jr." do not say X.
    """
    return float(any(_lenient_f1(prediction, gold) == 1.0 or _asserts(prediction, gold) for gold in golds))


def _lenient_f1(prediction: str, gold: str) -> float:
    prediction, gold = prediction[:MAX_CHARS], gold[:MAX_CHARS]
    if prediction.strip() == gold.strip() != "":
        return 1.0
    written, wanted = words(prediction), words(gold)
    if len(wanted) == 1 and wanted[0] in _VERDICTS and (verdict := _VERDICT.match(prediction)):
        return float(verdict[1].lower() == wanted[0])
    score = overlap(written, wanted)
    run_together = joined(prediction), joined(gold)
    if score < 1 and run_together != (prediction, gold):
        return max(score, overlap(*map(words, run_together)))
    return score


def _asserts(prediction: str, gold: str) -> bool:
    wanted = words(joined(gold[:MAX_CHARS]))
    if not wanted or (len(wanted) == 1 and wanted[0] in _VERDICTS):
        return False
    text = joined(prediction[:MAX_CHARS])
    text = text if "/" in gold else _SLASH.sub(" or ", text)
    sentences = [words(sentence) for sentence in _SENTENCE_END.split(text)]
    if not _ANYWHERE.isdisjoint(word for sentence in sentences for word in sentence if word not in wanted):
        return False
    return any(
        _AROUND.isdisjoint(context) and not (context and context[0] in _OTHERS)
        for sentence in sentences
        for context in _contexts(sentence, wanted)
    )


def _contexts(written: Sequence[str], wanted: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the words after, then before, each run of all wanted words side by side in any order."""
    size, bag = len(wanted), Counter(wanted)
    for start in range(len(written) - size + 1):
        if written[start] in bag and Counter(written[start : start + size]) == bag:
            yield (*written[start + size :], *written[:start])


def accepted_answers(gold: object, *, spelled_lists: bool = True) -> tuple[str, ...]:
    """Return the accepted answers as texts. A gold is a text, a number or a list of these; blank ones and other types are dropped.

    With `spelled_lists`, a text that looks like a list of words ("[Paris, City of Light]") also gives its items. In
    mathematics such brackets mean an interval, so there this is off.
    """
    if isinstance(gold, str):
        texts = [gold, *(_listed(gold.strip()) if spelled_lists else ())]
    elif isinstance(gold, Sequence):
        texts = [text for item in gold for text in accepted_answers(item, spelled_lists=spelled_lists)]
    else:
        texts = [str(gold)] if isinstance(gold, int | float) and not isinstance(gold, bool) else []
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def same_answer(answer: str, other: str) -> bool:
    """Return True if two answers are the same. For counting votes, so without math-verify."""
    if mathematics.is_mathematical(other):
        return mathematics.math_equal_quickly(answer, [other]) == 1.0
    return lenient_f1(answer, [other]) == 1.0


def _listed(text: str) -> list[str]:
    if not (text.startswith("[") and text.endswith("]")):
        return []
    try:
        items = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        inner = text[1:-1]
        return [] if re.search(r"[\[\]()\\]", inner) else [inner, *inner.split(",")]
    return [item for item in items if isinstance(item, str)]


def _by_gold(words: AnswerScore, *, numbers_are_words: bool = False) -> AnswerScore:
    """Return a score that compares each gold by its kind; with `numbers_are_words` a number also matches in words ("5 moons")."""

    def score(prediction: str, golds: Sequence[str]) -> float:
        written = [gold.strip() for gold in golds]
        golds = [plain(gold) for gold in written]
        if prediction.strip() and prediction.strip() in (*written, *golds):
            return 1.0
        formulas = [gold for gold in golds if mathematics.is_mathematical(gold)]
        others = [gold for gold in golds if not mathematics.is_mathematical(gold)]
        if numbers_are_words and _PROSE.fullmatch(prediction) and not mathematics.is_mathematical(prediction):
            others += filter(str.isdecimal, formulas)
        return max(mathematics.math_equal(prediction, formulas), words(prediction, others))

    return score


SCORES: Mapping[str, AnswerScore] = MappingProxyType(
    {
        "em": exact_match,
        "f1": f1,
        "answer": _by_gold(f1),
        "lenient": _by_gold(lenient_f1),
        "acc": _by_gold(contains, numbers_are_words=True),
        "math_equal": mathematics.math_equal,
        "unread": mathematics.unread,
        "timeout": mathematics.timeout,
    }
)
