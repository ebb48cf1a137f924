"""Questions that two sets share: a score on questions that were trained on measures memory."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.data.benchmark_files import read_question, read_rows
from ramify.data.problems import ENVIRONMENT, GOLDS
from ramify.data.row_columns import find_field
from ramify.data.tables import find_tables

_LEFT = r"(?:(?<=[\d)\]}$=<>(\[{,+^*/])|(?<=\b[a-z]))"
_RIGHT = r"(?=[\d(\[{\\$]|[a-z]\b)"
_OPERATOR = re.compile(rf"{_LEFT} ?([-*/]) ?{_RIGHT}")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_SIGNS = {"-": "\N{MINUS SIGN}", "*": "\N{MULTIPLICATION SIGN}", "/": "\N{DIVISION SIGN}"}
_WORLD = ("collection", ENVIRONMENT)
"""Columns that say what a question is asked about: its passages, its environment."""


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
