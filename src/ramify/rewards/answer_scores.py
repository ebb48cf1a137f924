r"""Scores of an answer by name. Each takes the prediction and the accepted answers (golds) and lies in [0, 1].

| name | meaning |
| --- | --- |
| em, f1 | the published metrics of SQuAD and HotpotQA, whatever the gold is |
| answer | the score used in training: a mathematical gold by value (`math_equal`), any other by `f1` |
| lenient | a mathematical gold by value, any other by F1 of normalised words (`words`): 1 if a person would accept it |
| acc | a mathematical gold by value; any other if the answer states it and neither denies nor doubts it |
| math_equal | equal by value |
| unread, timeout | 1 if a mathematical answer could not be read, or its comparison ran out of CPU time or memory |

f1 is reproduced to the last digit, and em but for texts of which nothing is left. Exact match is that of SQuAD (arXiv
1606.05250), where "." and "the" would equal the choice "A". F1 is that of HotpotQA (arXiv 1809.09600): SQuAD's, except that
"yes", "no" and "noanswer" score 0 unless both sides are the same. ARPO trains with this F1 (arXiv 2507.19849). Both delete
all punctuation, so neither tells 5 from -5.

The best of the golds counts. In `answer`, `lenient` and `acc` each gold is compared by the measure that fits it, `\text{..}`
around it is ignored, and a text always equals itself. A number also counts in a short statement ("in 1867"), and a gold in
words that has a number also in another notation ("5 million", 5,000,000).
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
from ramify.rewards.words import (
    MAX_CHARS,
    MONTHS,
    NUMBER_WORDS,
    is_clock_time,
    is_number,
    joined,
    same_clock_time,
    words,
)

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
_CLOCK_WORDS = frozenset({"am", "pm", "noon", "midnight", "oclock", "meter"})
"""Words of times of day; "p.m." is read as "p meter"."""
AnswerScore: TypeAlias = Callable[[str, Sequence[str]], float]

_PROSE = re.compile(r"[\w\s.,;:'\"?()-]*")
"""Text without any mathematical sign."""
_LINKS = """
in at is was were are be been has have had since by about around approximately roughly circa exactly only just year aged there
lasted contains won wrote scored weighs costs measures equals became reached totaled ad
"""
_TOTAL = (
    "number|total|age|value|sum|average|score|population|length|height|width|distance|weight|area|price|cost"
)
_LEAD = re.compile(
    rf"(?P<lead>(?:[^\W\d_](?:[^\W\d_]|['-])*[ ,]+)*?)(?:{'|'.join(_LINKS.split())}|(?:{_TOTAL}) of)\s+"
    rf"(?=[-$\d]|\.\d|from \d|(?:{'|'.join(sorted(NUMBER_WORDS))})\b)",
    re.IGNORECASE,
)
"""Words before a number up to one that cannot be part of its name: "It was founded in 1867", but not "Apollo 11"."""
_TAIL = re.compile(
    r"(?:\s+(?:A\.?D\.?|C\.?E\.?|in (?:all|total)|altogether|overall)|,?\s+(?:when|because|since)\b[^\d]*)?[.\s]*\Z"
)
_RESTATED = re.compile(r"(?P<outside>.*\S)\s*\((?P<inside>[^()]*)\)[.\s]*", re.DOTALL)
_CHANGE = """
less more over under before after between least most almost nearly minus negative half double twice than until fewer greater
up beyond below above
"""
_CHANGES = frozenset(_CHANGE.split())
"""Words before a number after which it is not the value."""
_NOT_A_NAME = frozenset({*_LINKS.split(), *MONTHS, "the", "a", "an", "number", "total", "ce", "born"})
_ON_THE_CLOCK = frozenset({"am", "pm", "bc", "bce"})
_CAPITALS = re.compile(r"[A-Z][^\W\d_]*")


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the normalised prediction equals a normalised gold, else 0.0. An empty normalised text equals only itself."""
    written = normalised(prediction)
    return float(
        any(
            written == normalised(gold) and (written != "" or _bare(prediction) == _bare(gold))
            for gold in golds
        )
    )


def _bare(text: str) -> str:
    """Return a text of articles in lower case without punctuation, and one of punctuation as it is."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split()) or text.strip()


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
    if score < 1 and not (_CLOCK_WORDS.isdisjoint(wanted) and _CLOCK_WORDS.isdisjoint(written)):
        same_time = same_clock_time(prediction, gold)
        score = score if same_time is None else float(same_time)
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
    elif isinstance(gold, float) and gold.is_integer():
        # Tables turn a column of integers into floats if it contains a null.
        texts = [str(int(gold))]
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
        if any(_says_number(prediction, gold) for gold in others):
            return 1.0
        statement = _stated_number(prediction) if formulas else None
        if statement and mathematics.math_equal(statement, formulas):
            return 1.0
        if numbers_are_words and _PROSE.fullmatch(prediction) and not mathematics.is_mathematical(prediction):
            others += filter(str.isdecimal, formulas)
            prediction = prediction[:MAX_CHARS]
            others = [
                gold
                for gold in others
                if len(gold) > _LONG or not is_number(gold) or _is_value(prediction, gold)
            ]
        elif not numbers_are_words:
            # Shared words such as "1.5" or "10:30" are no part of the right value.
            others = [gold for gold in others if not _is_one_value(gold)]
        return max(mathematics.math_equal(prediction, formulas), words(prediction, others))

    return score


def _says_number(prediction: str, gold: str) -> bool:
    """Return True if a gold in words that has a number is the answer in another notation."""
    if max(len(prediction), len(gold)) > _LONG:
        return False
    if not _has_number(gold):
        return bool(same_clock_time(prediction, gold))
    texts = (prediction, _stated_number(prediction) or prediction)
    if not is_number(gold):
        # The published F1 takes "5 million" for "$5 million".
        amount = words(gold.removeprefix("$")) if gold.startswith("$") else None
        return any(
            lenient_f1(text, [gold]) == 1.0 or (text[:1].isdecimal() and words(text) == amount)
            for text in (texts if _is_one_value(gold) else texts[:1])
        )
    return any(
        mathematics.math_equal_quickly(text, [gold]) or (is_number(text) and words(text) == words(gold))
        for text in texts
    )


def _is_one_value(gold: str) -> bool:
    """Return True for a number, a sum of money, a range and a time of day in digits: other words of an answer say nothing about these."""
    if len(gold) > _LONG:
        return False
    return is_number(gold.removeprefix("$")) or (_has_number(gold) and is_clock_time(gold))


def _has_number(text: str) -> bool:
    return any(token[-1].isdecimal() for token in words(text))


def _stated_number(prediction: str) -> str | None:
    """Return the number of a short statement ("It was in 1867.", "30 (thirty)"); None if it has none, or denies or changes it."""
    if len(prediction) > _LONG:
        return None
    text = prediction.strip()
    if restated := _RESTATED.fullmatch(text):
        outside, inside = _after_lead(restated["outside"]), restated["inside"]
        is_same = (
            mathematics.math_equal_quickly(inside, [outside]) == 1.0
            if _has_number(inside)
            else _PROSE.fullmatch(inside) is not None and _AROUND.isdisjoint(words(inside))
        )
        return outside if is_same and _has_number(outside) else None
    statement = _after_lead(text)
    return None if statement == text else statement


def _after_lead(text: str) -> str:
    lead = _LEAD.match(text)
    if lead and (_AROUND | _CHANGES).isdisjoint(words(lead["lead"])):
        text = text[lead.end() :]
    return _TAIL.sub("", text)


def _is_value(prediction: str, number: str) -> bool:
    """Return True unless a number is only part of a name ("Apollo 11", "30 Rock", "F16"), or only bounds or changes the value."""
    matches = [
        *re.finditer(rf"(?<![A-Za-z0-9_-]){re.escape(number)}(?![A-Za-z0-9_-])", prediction, re.IGNORECASE)
    ]
    around = [
        (prediction[: match.start()].split()[-2:], prediction[match.end() :].split()[:1]) for match in matches
    ]
    if not matches:
        return number.lower() not in prediction.lower()
    return any(_is_value_between(before, after) for before, after in around)


def _is_value_between(before: Sequence[str], after: Sequence[str]) -> bool:
    named = before[:1] if before[-1:] == ["of"] else before[-1:]
    following = [word.rstrip(".,;:").replace(".", "").lower() for word in after]
    return (
        not any(map(_is_name, (*named, *after)))
        and _CHANGES.isdisjoint(word.lower() for word in before)
        and _ON_THE_CLOCK.isdisjoint(following)
        and NUMBER_WORDS.isdisjoint(following)
    )


def _is_name(word: str) -> bool:
    """Return True for a word with a capital letter that is no month, link or participle ("July", "In", "Founded")."""
    return bool(_CAPITALS.fullmatch(word)) and not (word.lower() in _NOT_A_NAME or word.endswith("ed"))


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
