"""Questions that two sets share: a score on questions that were trained on measures memory."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.data.benchmark_files import read_question, read_rows
from ramify.data.problems import ProblemSet, listed
from ramify.data.tables import find_tables

_LEFT = r"(?:(?<=[\d)\]}$=<>(\[{,+^*/])|(?<=\b[a-z]))"
_RIGHT = r"(?=[\d(\[{\\$]|[a-z]\b)"
_OPERATOR = re.compile(rf"{_LEFT} ?([-*/]) ?{_RIGHT}")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_SIGNS = {"-": "\N{MINUS SIGN}", "*": "\N{MULTIPLICATION SIGN}", "/": "\N{DIVISION SIGN}"}
_MAX_LISTED = 5


class Overlap(NamedTuple):
    """A training problem and a test problem with the same question."""

    train: Problem
    test: Problem


class _Folding(dict[int, str | None]):
    """The characters that folding keeps: letters, digits, combining marks and mathematical symbols, but no punctuation."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        stays = (
            character.isalnum() or character == "^" or unicodedata.category(character) in ("Sm", "Mn", "Mc")
        )
        self[code] = character if stays else None
        return self[code]


_FOLDING = _Folding()


def fold_question(question: str) -> str:
    """Return a question without case, punctuation and blanks, so that two spellings of it become the same text.

    Operators between operands and decimal points are not punctuation: "3 - 5", "3 + 5" and "3.5" stay different.
    """
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    text = _OPERATOR.sub(lambda match: _SIGNS[match[1]], text)
    return _DECIMAL_POINT.sub("\N{BULLET OPERATOR}", text).translate(_FOLDING)


def find_overlaps(train: ProblemSet, test: ProblemSet) -> tuple[Overlap, ...]:
    """Return all pairs of a training and a test problem with the same question, in the order of the training set."""
    tests: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in test.problems:
        for key in folded_questions(problem):
            tests[key].append(problem)
    pairs = []
    for problem in train.problems:
        matches = {id(each): each for key in folded_questions(problem) for each in tests.get(key, ())}
        pairs += [Overlap(problem, each) for each in matches.values()]
    return tuple(pairs)


def find_duplicates(problems: Sequence[Problem]) -> tuple[tuple[Problem, ...], ...]:
    """Return groups of problems with the same question, ordered by their first problems."""
    groups: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        for key in folded_questions(problem):
            groups[key].append(problem)
    # A problem whose row contains its question twice may have two keys.
    duplicates = dict.fromkeys(
        tuple(problem.id for problem in group) for group in groups.values() if len(group) > 1
    )
    by_id = {problem.id: problem for problem in problems}
    return tuple(tuple(by_id[identifier] for identifier in group) for group in duplicates)


def duplicate_notes(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return a note about problems that repeat an earlier question; none if all questions differ."""
    again = list(dict.fromkeys(problem.id for group in find_duplicates(problems) for problem in group[1:]))
    if not again:
        return ()
    return (
        f"{len(again)} of {len(problems)} problems ask what an earlier one asks: {listed(again, _MAX_LISTED)}",
    )


def read_questions(locations: Iterable[str]) -> frozenset[str]:
    """Return the folded questions of files, folders with files, or data sets of the hub (see `find_tables`).

    Raises:
        DataError: There is nothing at a location, a file is empty, or a row has no question; names file and row.
    """
    folded = set()
    for location in locations:
        is_empty = True
        for row in read_rows(find_tables(location)):
            is_empty = False
            try:
                folded.add(fold_question(read_question(row.values)))
                # In alpaca rows it may stand behind a fixed instruction.
                if row.values.get("instruction") and isinstance(behind := row.values.get("input"), str):
                    folded.add(fold_question(behind))
            except ValueError as error:
                raise DataError(f"{row.where}: {error}") from None
        if is_empty:
            raise DataError(f"{location}: empty; expected rows with a question")
    return frozenset(folded - {""})


def without_questions(problems: Sequence[Problem], folded: Collection[str]) -> tuple[Problem, ...]:
    """Return the problems whose question is not among the folded ones."""
    return tuple(problem for problem in problems if folded_questions(problem).isdisjoint(folded))


def folded_questions(problem: Problem) -> frozenset[str]:
    """Return the folded questions of a problem: its last user message, and the bare question if its row has that too."""
    spoken = [message.text for message in problem.messages if message.role == "user"]
    bare = problem.info.get("question")
    texts = {*spoken[-1:], *([bare] if isinstance(bare, str) else [])}
    return frozenset(map(fold_question, texts)) - {""}
