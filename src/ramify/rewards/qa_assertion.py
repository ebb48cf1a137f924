"""Whether an answer asserts what stands in it: verdicts, denials and alternatives."""

import bisect
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from ramify.rewards.qa_words import folded, words

VERDICTS = frozenset({"yes", "no"})
_SUBJECT = r"they|it|he|she|we|you|i|this|that|these|those|there|both|neither|the|because|since"
_LEADING_VERDICT = re.compile(
    rf"\W*(?P<verdict>yes|no)\b[*_\"')\]]*(?:\s*(?:[,;:!(—-]|\.(?!\s*\d)|$)(?!\s*(?:or|nor)\b)|\s+(?:{_SUBJECT})\b"
    # "no" also begins "no one" and "no evidence"; "yes" begins nothing but an answer or a choice.
    r"|(?<=yes)\s+(?!or\b|and\b|nor\b|&)\w)",
    re.IGNORECASE,
)
_NOT_SO = frozenset({"not", "isnt", "wasnt", "arent", "werent"})
_NEGATIONS = "never neither nor except cannot cant couldnt dont doesnt didnt wont wouldnt"
_DENIALS = _NOT_SO.union(_NEGATIONS.split())
_IN_PLACE_OF = (("rather", "than"), ("instead", "of"))
_ALL = frozenset({"anything", "everything", "anyone", "everyone", "anywhere", "everywhere", "all"})
_FILLERS = frozenset({"it", "is", "was", "be", "that", "think", "believe", "say"})
"""Words that a denial reaches over: "I do not think that it is X"."""
_WRONG = frozenset({"wrong", "incorrect", "false"})
_RIGHT = frozenset({"answer", "correct", "right", "it"})
_CHINESE_DENIALS = (("不", "是"), ("并", "非"), ("不", "在"))
_CHINESE_NOT = ("不", "副")
"""Directly before a word; a 副 is a deputy."""
_REACH = 3
_ALTERNATIVES = frozenset({"or", "nor", "或"})
_SUSPECT = _DENIALS | _ALTERNATIVES | _WRONG | {*_CHINESE_NOT, "并", "rather", "instead", "but"}
_ITEM_WORDS, _ITEM_CHARACTERS = 3, 6
"""The longest item of a list of candidates."""
# A point ends a clause behind a word of four letters or more: "Dr. Smith" and "U.S. Steel" are names.
_CLAUSE_END = re.compile(
    r"(?P<comma>,(?![0-9])|[\uff0c、])|[;:!?。\uff1b\uff1a\uff01\uff1f)\n]|(?<=[^\W_]{4})\.(?=\s)|\s-+\s"
)


class _Clause(NamedTuple):
    words: tuple[str, ...]
    goes_on: bool
    """Whether a comma ends it."""


def leading_verdict(prediction: str) -> str | None:
    """The "yes" or "no" that an answer begins with: "Yes, both are", "No they are not", and not "yes or no"."""
    match = _LEADING_VERDICT.match(prediction)
    return match["verdict"].lower() if match else None


def closing_verdict(prediction: str, written: Sequence[str]) -> str | None:
    """The "yes" or "no" that an answer ends with, when it is asserted and the only one."""
    if not written or written[-1] not in VERDICTS or not VERDICTS.difference(written):
        return None
    return written[-1] if is_asserted(prediction, written, [len(written) - 1], 1) else None


def is_asserted(prediction: str, written: Sequence[str], places: Sequence[int], size: int) -> bool:
    """Whether `size` words at one of the places are neither denied ("not X") nor one of several candidates ("X, Y or Z").

    A denial reaches to the end of its clause, and `_REACH` words at most.
    """
    if not places or _SUSPECT.isdisjoint(written):
        return bool(places)
    clauses = _clauses(prediction, written)
    ends = list(itertools.accumulate(len(clause.words) for clause in clauses))
    listed = _before_alternatives(clauses)
    for start in places:
        end = start + size
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(ends, end)
        clause_start = ends[first] - len(clauses[first].words)
        beside = (*written[max(0, start - 1) : start], *written[end : end + 1])
        if not (
            _denied(written[clause_start:start])
            or _refuted(written[end : ends[last]])
            or not _ALTERNATIVES.isdisjoint(beside)
            or (ends[last] == end and listed[last])
        ):
            return True
    return False


def _clauses(prediction: str, written: Sequence[str]) -> list[_Clause]:
    """The clauses of an answer; a single one where a word or number spans two."""
    text = folded(prediction)
    found, start = [], 0
    for end in _CLAUSE_END.finditer(text):
        found.append(_Clause(words(text[start : end.start()]).bare, end["comma"] is not None))
        start = end.end()
    found.append(_Clause(words(text[start:]).bare, goes_on=False))
    spelled = tuple(word for clause in found for word in clause.words)
    return found if spelled == tuple(written) else [_Clause(tuple(written), goes_on=False)]


def _denied(before: Sequence[str]) -> bool:
    before = tuple(before)
    if "but" in before:  # "not X but Y" says Y, "anything but X" not X
        place = len(before) - before[::-1].index("but")
        if place == len(before) and before[place - 2] in _ALL:
            return True
        before = before[place:]
    near = tuple(word for word in before if word not in _FILLERS)[-_REACH:]
    return (
        any(word in _DENIALS and after != "only" for word, after in itertools.pairwise((*near, "")))
        or near[-2:] in _IN_PLACE_OF
        or (near != () and near[-1] in _CHINESE_NOT)
        or any(pair in _CHINESE_DENIALS for pair in itertools.pairwise(near))
    )


def _refuted(after: Sequence[str]) -> bool:
    """ "X is wrong", "X is not the answer"."""
    verb, *rest = (*after[:3], "", "", "")
    if verb in ("is", "was"):
        return rest[0] in _WRONG or (rest[0] == "not" and rest[1] in _RIGHT)
    return verb in _NOT_SO and rest[0] in _RIGHT


def _before_alternatives(clauses: Sequence[_Clause]) -> list[bool]:
    """For each clause: whether a list goes on behind it that comes to an "or" (", Rome, or London")."""
    listed = [False] * len(clauses)
    for i in range(len(clauses) - 2, -1, -1):
        following = clauses[i + 1].words
        item = tuple(itertools.takewhile(lambda word: word not in _ALTERNATIVES, following))
        longest = _ITEM_WORDS if all(word.isascii() for word in item) else _ITEM_CHARACTERS
        if clauses[i].goes_on and len(item) <= longest and _DENIALS.isdisjoint(item):
            listed[i] = len(item) < len(following) or listed[i + 1]
    return listed
