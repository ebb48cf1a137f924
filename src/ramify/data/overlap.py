"""Questions that two sets share: a score on questions that were trained on measures memory."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.data.benchmark_files import read_question, read_rows
from ramify.data.problems import ENVIRONMENT, GOLDS, ProblemSet, listed
from ramify.data.row_columns import find_field
from ramify.data.tables import find_tables

_LEFT = r"(?:(?<=[\d)\]}$=<>(\[{,+^*/])|(?<=\b[a-z]))"
_RIGHT = r"(?=[\d(\[{\\$]|[a-z]\b)"
_OPERATOR = re.compile(rf"{_LEFT} ?([-*/]) ?{_RIGHT}")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_SIGNS = {"-": "\N{MINUS SIGN}", "*": "\N{MULTIPLICATION SIGN}", "/": "\N{DIVISION SIGN}"}
_MAX_LISTED = 5
_WORLD = ("collection", ENVIRONMENT)
"""Columns that say what a question is asked about: its passages, its environment."""
SAME_PROBLEM = "A question counts wherever it stands, unless the two rows have different collections or environments and different answers"


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


@dataclass(frozen=True, slots=True)
class Variant:
    """The subject of a row's question, and its accepted answers if it says so; () and none if the question says it all."""

    world: tuple[str, ...] = ()
    golds: frozenset[str] = frozenset()

    def differs(self, other: "Variant") -> bool:
        """Return True if the same question is another problem there: asked about another world, with another answer."""
        # Names of collections are a file's own, and arithmetic has the same answer in all of them.
        elsewhere = any(a and b and a != b for a, b in zip(self.world, other.world, strict=False))
        return elsewhere and bool(self.golds and other.golds) and self.golds.isdisjoint(other.golds)


Questions: TypeAlias = Mapping[str, frozenset[Variant]]
"""Folded questions with the variants in which they were read."""


def find_overlaps(train: ProblemSet, test: ProblemSet) -> tuple[Overlap, ...]:
    """Return all pairs of a training and a test problem that are the same, in the order of the training set."""
    tests: defaultdict[str, list[Problem]] = defaultdict(list)
    for problem in test.problems:
        for key in folded_questions(problem):
            tests[key].append(problem)
    pairs = []
    for problem in train.problems:
        variant = _variant(problem.info, problem.answer)
        matches = {id(each): each for key in folded_questions(problem) for each in tests.get(key, ())}
        pairs += [
            Overlap(problem, each)
            for each in matches.values()
            if not variant.differs(_variant(each.info, each.answer))
        ]
    return tuple(pairs)


def find_duplicates(problems: Sequence[Problem]) -> tuple[tuple[Problem, ...], ...]:
    """Return groups of problems with the same question about the same world, ordered by their first problems."""
    groups: defaultdict[tuple[str, ...], list[Problem]] = defaultdict(list)
    for problem in problems:
        for key in folded_questions(problem):
            groups[key, *_world_within_a_set(problem)].append(problem)
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


def read_questions(locations: Iterable[str]) -> Questions:
    """Return the questions of files, folders with files, or data sets of the hub (see `find_tables`).

    Raises:
        DataError: There is nothing at a location, a file is empty, or a row has no question; names file and row.
    """
    questions: defaultdict[str, set[Variant]] = defaultdict(set)
    for location in locations:
        is_empty = True
        for row in read_rows(find_tables(location)):
            is_empty = False
            gold = find_field(row.values, GOLDS)
            variant = _variant(row.values, () if gold is None else gold[1])
            try:
                questions[fold_question(read_question(row.values))].add(variant)
                # In alpaca rows it may stand behind a fixed instruction.
                if row.values.get("instruction") and isinstance(behind := row.values.get("input"), str):
                    questions[fold_question(behind)].add(variant)
            except ValueError as error:
                raise DataError(f"{row.where}: {error}") from None
        if is_empty:
            raise DataError(f"{location}: empty; expected rows with a question")
    return {question: frozenset(variants) for question, variants in questions.items() if question}


def questions_of(problems: Sequence[Problem]) -> Questions:
    """Return the questions of problems."""
    questions: defaultdict[str, set[Variant]] = defaultdict(set)
    for problem in problems:
        for key in folded_questions(problem):
            questions[key].add(_variant(problem.info, problem.answer))
    return {question: frozenset(variants) for question, variants in questions.items()}


def subtract(questions: Questions, excluded: Questions) -> Questions:
    """Return the questions without those among `excluded`."""
    left = {
        question: frozenset(each for each in variants if all(map(each.differs, excluded.get(question, ()))))
        for question, variants in questions.items()
    }
    return {question: variants for question, variants in left.items() if variants}


def without_questions(problems: Sequence[Problem], questions: Questions) -> tuple[Problem, ...]:
    """Return the problems that are not among the questions."""
    return tuple(
        problem
        for problem in problems
        if all(
            map(
                _variant(problem.info, problem.answer).differs,
                frozenset().union(*(questions.get(key, frozenset()) for key in folded_questions(problem))),
            )
        )
    )


def folded_questions(problem: Problem) -> frozenset[str]:
    """Return the folded questions of a problem: its last user message, and the bare question if its row has that too."""
    spoken = [message.text for message in problem.messages if message.role == "user"]
    bare = problem.info.get("question")
    texts = {*spoken[-1:], *([bare] if isinstance(bare, str) else [])}
    return frozenset(map(fold_question, texts)) - {""}


def _variant(columns: Mapping[str, Any], golds: object) -> Variant:
    world = tuple(str(columns.get(name) or "") for name in _WORLD)
    if not any(world):
        return Variant()
    values = golds if isinstance(golds, list | tuple) else [golds]
    return Variant(world, frozenset(" ".join(str(each).casefold().split()) for each in values))


def _world_within_a_set(problem: Problem) -> tuple[str, ...]:
    """Return what tells problems of one file apart that have the same question: the turns before it, and what it is asked about.

    An environment gets all columns of its row.
    """
    turns = [message.text for message in problem.messages if message.role != "system"][:-1]
    columns = problem.info if ENVIRONMENT in problem.info else {"collection": problem.info.get("collection")}
    return (*map(fold_question, turns), *map(str, columns.values()))
