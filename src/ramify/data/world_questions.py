"""Questions about the quick-start world, drawn from the facts of an edition. See `data.world`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ramify.core.draws import StreamPart
from ramify.data.world_editions import (
    HELD_OUT_NAMES,
    LARGEST,
    OPERATORS,
    SMALLEST,
    TO_NAME,
    TO_NUMBER,
    TRAINING_NAMES,
    Edition,
    Level,
    pick,
    shuffled,
)

Split: TypeAlias = Literal["train", "dev", "test", "seen", "demo"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what is needed to solve it.

    Attributes:
        kind: See `data.world`.
        edition: Id of the edition with the facts.
        subjects: Names that the question is about.
        relations: hop2, hop3: in the order to follow; calc: one for each subject; compare and lookup: one.
        numbers: The operands of arith.
        operators: The operators of arith and calc, in words.
        answer: The accepted answer.
        text: The user's question.
    """

    id: str
    kind: str
    edition: str
    subjects: tuple[str, ...]
    relations: tuple[str, ...]
    numbers: tuple[int, ...]
    operators: tuple[str, ...]
    answer: str
    text: str

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages of a data row."""
        return [{"role": "user", "content": self.text}]


def evaluate(numbers: Sequence[int], operators: Sequence[str]) -> int:
    """The value of `numbers` with `operators` (words) between them; times takes precedence over plus and minus."""
    terms = [numbers[0]]
    for operator, number in zip(operators, numbers[1:], strict=True):
        if operator == "times":
            terms[-1] *= number
        else:
            terms.append(number if operator == "plus" else -number)
    return sum(terms)


def make_question(number: int, split: Split, edition: Edition, level: Level, seed: int) -> Question:
    """Draw question `number` of a split about an edition; kinds take turns.

    Args:
        number: Position in the split.
        split: `dev` and `test` ask about held-out names, the others about training names.
        edition: The edition with the facts.
        level: Sets the kinds and the number of operands.
        seed: Run seed; ignored for `dev`, `test` and `seen`.
    """
    name: tuple[StreamPart, ...] = ("question", split, seed if split in ("train", "demo") else 0, number)
    kind = level.kinds[number % len(level.kinds)]
    asked = HELD_OUT_NAMES if split in ("dev", "test") else TRAINING_NAMES
    pool = shuffled([each for each in edition.names if each in asked], *name, "subjects")
    if kind == "arith":
        parts = _draw_arith(level.num_arith, name)
    elif kind == "calc":
        parts = _draw_calc(edition, pool[: level.num_calc], name)
    elif kind == "compare":
        parts = _draw_compare(edition, pool, name)
    else:
        hops = {"lookup": 0, "hop2": 1, "hop3": 2}[kind]
        parts = _draw_hops(edition, pool[0], hops, name)
    return Question(id=f"{split}-{number:05d}", kind=kind, edition=edition.id, **parts)


def _draw_operators(count: int, name: tuple[StreamPart, ...]) -> tuple[str, ...]:
    return tuple(pick(tuple(OPERATORS), *name, "operator", index) for index in range(count))


def _chain(operands: Sequence[object], operators: Sequence[str]) -> str:
    rest = (f" {word} {operand}" for word, operand in zip(operators, operands[1:], strict=True))
    return f"what is {operands[0]}{''.join(rest)}?"


def _draw_arith(count: int, name: tuple[StreamPart, ...]) -> dict[str, Any]:
    options = range(SMALLEST, LARGEST + 1)
    numbers = tuple(pick(options, *name, "number", index) for index in range(count))
    operators = _draw_operators(count - 1, name)
    return {
        "subjects": (),
        "relations": (),
        "numbers": numbers,
        "operators": operators,
        "answer": str(evaluate(numbers, operators)),
        "text": _chain(numbers, operators),
    }


def _draw_calc(edition: Edition, subjects: Sequence[str], name: tuple[StreamPart, ...]) -> dict[str, Any]:
    relations = tuple(shuffled(TO_NUMBER, *name, "relations")[: len(subjects)])
    operators = _draw_operators(len(subjects) - 1, name)
    pairs = list(zip(subjects, relations, strict=True))
    return {
        "subjects": tuple(subjects),
        "relations": relations,
        "numbers": (),
        "operators": operators,
        "answer": str(evaluate([int(edition.value(*pair)) for pair in pairs], operators)),
        "text": _chain([f"the {relation} of {subject}" for subject, relation in pairs], operators),
    }


def _draw_compare(edition: Edition, pool: Sequence[str], name: tuple[StreamPart, ...]) -> dict[str, Any]:
    options = [
        (relation, first, second)
        for relation in TO_NUMBER
        for first in pool
        for second in pool
        if edition.value(first, relation) != edition.value(second, relation)
    ]
    relation, first, second = pick(options, *name, "pair")
    larger = int(edition.value(first, relation)) > int(edition.value(second, relation))
    return {
        "subjects": (first, second),
        "relations": (relation,),
        "numbers": (),
        "operators": (),
        "answer": first if larger else second,
        "text": f"which has the larger {relation}, {first} or {second}?",
    }


def _draw_hops(edition: Edition, subject: str, hops: int, name: tuple[StreamPart, ...]) -> dict[str, Any]:
    place = subject
    relations: list[str] = []
    for index in range(hops + 1):
        last = index == hops
        options = pick((TO_NAME, TO_NUMBER), *name, "sort") if last else TO_NAME
        relations.append(pick(edition.relations(place, options), *name, "relation", index))
        place = edition.value(place, relations[-1])
    phrase = "".join(f"the {relation} of " for relation in reversed(relations))
    return {
        "subjects": (subject,),
        "relations": tuple(relations),
        "numbers": (),
        "operators": (),
        "answer": place,
        "text": f"what is {phrase}{subject}?",
    }
