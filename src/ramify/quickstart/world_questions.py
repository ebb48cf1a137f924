"""The quick-start world's encyclopedia and the questions about it: names, words, facts, passages. See `world_files`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from ramify.core.draws import StreamPart, stream

T = TypeVar("T")
S = TypeVar("S", bound=StreamPart)

_TRAINING = """
Mimo Tugo Vuda Sose Kaga Kazo Bero Zaba Sulo Nere Rudo Ruli Fode Ragi Feso Rini Dodu Vuze Vemu Fegi
Sete Livo Baki Konu Puvo Mege Zede Kosi Fura Zoda Zove Bima Peli Viso Tusi Vika Pisi Poza Kune Folo
Nivi Dako Kuvi Neta Bize Fare Vige Varu Gure Fedu Rola
"""
_HELD_OUT = "Zubo Gamo Dori Devo Babu Loge Roze Lano Nida Giku Palu Gesi Moko"
TRAINING_NAMES = tuple(_TRAINING.split())
HELD_OUT_NAMES = tuple(_HELD_OUT.split())
NAMES_PER_EDITION = (9, 3)
"""Number of training names and of held-out names in an edition."""

TO_NAME = ("mayor", "neighbor", "founder")
TO_NUMBER = ("area", "age", "height")
RELATIONS = (*TO_NAME, *TO_NUMBER)
SYNONYMS: Mapping[str, tuple[str, str]] = {
    "mayor": ("leader", "chief"),
    "neighbor": ("border", "frontier"),
    "founder": ("creator", "builder"),
    "area": ("size", "extent"),
    "age": ("years", "lifetime"),
    "height": ("elevation", "altitude"),
}
OPERATORS: Mapping[str, str] = {"plus": "+", "minus": "-", "times": "*"}
SMALLEST, LARGEST = 10, 59
LINE = "- "
"""Prefix of every passage."""
Split: TypeAlias = Literal["train", "dev", "test", "seen", "demo"]


@dataclass(frozen=True, slots=True)
class Level:
    """The parameters of a difficulty; see `world_files`."""

    kinds: tuple[str, ...]
    num_synonyms: int
    synonym_share: float
    outdated_share: float
    num_arith: int
    num_calc: int
    ambiguous_share: float = 0.0


_KINDS = ("lookup", "arith", "hop2", "calc", "compare")
LEVELS: Mapping[int, Level] = {
    1: Level(_KINDS, 1, 0.2, 0.0, 2, 2),
    2: Level((*_KINDS, "hop3"), 1, 0.5, 0.3, 3, 2),
    3: Level((*_KINDS, "hop3"), 2, 0.7, 0.6, 4, 3),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact as an edition states it: the value, and the word used for the relation."""

    value: str
    word: str


@dataclass(frozen=True, slots=True)
class Edition:
    """One version of the encyclopedia; `facts`, `outdated` and `rivals` are keyed by (name, relation).

    Every name has a fact for each relation to a number, and for two of the three relations to a name. The values of a
    relation are names without a fact for that relation: if an edition contained both "Zoda mayor Laru" and "Laru mayor
    Bado", a search for "Laru mayor" could not tell them apart.
    """

    id: str
    names: tuple[str, ...]
    facts: Mapping[tuple[str, str], Fact]
    outdated: Mapping[tuple[str, str], Fact]
    rivals: Mapping[tuple[str, str], Fact]

    def value(self, name: str, relation: str) -> str:
        """Return the valid value."""
        return self.facts[name, relation].value

    def relations(self, name: str, options: Sequence[str]) -> list[str]:
        """Return the relations among `options` for which `name` has a fact."""
        return [relation for relation in options if (name, relation) in self.facts]

    def sentence(self, name: str, relation: str) -> str:
        """Return the passage with the valid value."""
        fact = self.facts[name, relation]
        return f"{LINE}{name} {fact.word} {fact.value}"

    def outdated_sentence(self, name: str, relation: str) -> str | None:
        """Return the passage with the outdated value, if there is one."""
        fact = self.outdated.get((name, relation))
        return f"{LINE}{name} {fact.word} was {fact.value}" if fact else None

    def rival_sentence(self, name: str, relation: str) -> str | None:
        """Return the passage with a wrong value that nothing tells from the valid one, if the fact is ambiguous."""
        fact = self.rivals.get((name, relation))
        return f"{LINE}{name} {fact.word} {fact.value}" if fact else None

    def settling_sentence(self, name: str, relation: str) -> str:
        """Return the passage that settles an ambiguous fact: the valid value under the relation's first synonym."""
        return f"{LINE}{name} {SYNONYMS[relation][0]} {self.value(name, relation)}"

    def passages(self) -> list[str]:
        """Return all passages, shuffled."""
        valid = [self.sentence(*key) for key in self.facts]
        outdated = [sentence for key in self.facts if (sentence := self.outdated_sentence(*key))]
        rivals = [sentence for key in self.facts if (sentence := self.rival_sentence(*key))]
        settling = [self.settling_sentence(*key) for key in self.rivals]
        return shuffled([*valid, *outdated, *rivals, *settling], "order", self.id)

    def ambiguous_passages(self) -> list[list[str]]:
        """Return the ids of the two passages of each ambiguous fact."""
        ids = {text: f"{self.id}/{number}" for number, text in enumerate(self.passages())}
        return [[ids[self.sentence(*key)], ids[str(self.rival_sentence(*key))]] for key in self.rivals]


def pick(options: Sequence[T], *name: StreamPart) -> T:
    """Return one of `options`, drawn from the random stream with that name."""
    return options[stream(*name) % len(options)]


def chance(rate: float, *name: StreamPart) -> bool:
    """Return True with probability `rate`, drawn from the random stream with that name."""
    return stream(*name) < rate * 2**63


def shuffled(items: Iterable[S], *name: StreamPart) -> list[S]:
    """Return `items` (all different) in an order drawn from the random stream with that name."""
    return sorted(items, key=lambda item: stream(*name, item))


def make_edition(edition: str, level: Level) -> Edition:
    """Draw the facts of an edition; they depend only on its id and the level."""
    num_training, num_held_out = NAMES_PER_EDITION
    training = shuffled(TRAINING_NAMES, "names", edition)[:num_training]
    held_out = shuffled(HELD_OUT_NAMES, "names", edition)[:num_held_out]
    numbers = [str(number) for number in range(SMALLEST, LARGEST + 1)]
    values = {(name, relation): numbers for name in (*training, *held_out) for relation in TO_NUMBER}
    groups = [[*training[part::3], *held_out[part::3]] for part in range(3)]
    for targets, relation in zip(groups, TO_NAME, strict=True):
        values |= {(name, relation): targets for group in groups if group is not targets for name in group}
    facts = {}
    outdated = {}
    rivals = {}
    for key, options in values.items():
        facts[key] = _draw_fact(options, level, (edition, *key))
        others = [value for value in options if value != facts[key].value]
        if chance(level.outdated_share, "is outdated", edition, *key):
            outdated[key] = _draw_fact(others, level, ("outdated", edition, *key))
        if chance(level.ambiguous_share, "is ambiguous", edition, *key):
            rivals[key] = _draw_fact(others, level, ("rival", edition, *key))
    return Edition(edition, (*training, *held_out), facts, outdated, rivals)


def _draw_fact(options: Sequence[str], level: Level, name: tuple[str, ...]) -> Fact:
    word = relation = name[-1]
    if chance(level.synonym_share, "reworded", *name):
        word = pick(SYNONYMS[relation][: level.num_synonyms], "word", *name)
    return Fact(pick(options, "value", *name), word)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what is needed to solve it.

    Attributes:
        kind: See `world_files`.
        edition: Id of the edition with the facts.
        answer: The accepted answer.
        text: The user's question.
        subjects: Names that the question is about.
        relations: hop2, hop3: in the order to follow; calc: one for each subject; compare and lookup: one.
        numbers: The operands of arith.
        operators: The operators of arith and calc, in words.
    """

    id: str
    kind: str
    edition: str
    answer: str
    text: str
    subjects: tuple[str, ...] = ()
    relations: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    operators: tuple[str, ...] = ()

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages of a data row."""
        return [{"role": "user", "content": self.text}]


def evaluate(numbers: Sequence[int], operators: Sequence[str]) -> int:
    """Return the value of `numbers` with `operators` (words) between them; times takes precedence over plus and minus."""
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
    names = HELD_OUT_NAMES if split in ("dev", "test") else TRAINING_NAMES
    pool = shuffled([each for each in edition.names if each in names], *name, "subjects")
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


def infix(operands: Sequence[object], operators: Sequence[str]) -> str:
    """Return the operands with the operators between them, as text."""
    terms = (f" {word} {operand}" for word, operand in zip(operators, operands[1:], strict=True))
    return f"{operands[0]}{''.join(terms)}"


def _draw_arith(count: int, name: tuple[StreamPart, ...]) -> dict[str, Any]:
    options = range(SMALLEST, LARGEST + 1)
    numbers = tuple(pick(options, *name, "number", index) for index in range(count))
    operators = _draw_operators(count - 1, name)
    return {
        "numbers": numbers,
        "operators": operators,
        "answer": str(evaluate(numbers, operators)),
        "text": f"what is {infix(numbers, operators)}?",
    }


def _draw_calc(edition: Edition, subjects: Sequence[str], name: tuple[StreamPart, ...]) -> dict[str, Any]:
    relations = tuple(shuffled(TO_NUMBER, *name, "relations")[: len(subjects)])
    operators = _draw_operators(len(subjects) - 1, name)
    pairs = list(zip(subjects, relations, strict=True))
    operands = [f"the {relation} of {subject}" for subject, relation in pairs]
    return {
        "subjects": tuple(subjects),
        "relations": relations,
        "operators": operators,
        "answer": str(evaluate([int(edition.value(*pair)) for pair in pairs], operators)),
        "text": f"what is {infix(operands, operators)}?",
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
        "answer": first if larger else second,
        "text": f"which has the larger {relation}, {first} or {second}?",
    }


def _draw_hops(edition: Edition, subject: str, hops: int, name: tuple[StreamPart, ...]) -> dict[str, Any]:
    value = subject
    relations: list[str] = []
    for index in range(hops + 1):
        last = index == hops
        options = pick((TO_NAME, TO_NUMBER), *name, "sort") if last else TO_NAME
        relations.append(pick(edition.relations(value, options), *name, "relation", index))
        value = edition.value(value, relations[-1])
    phrase = "".join(f"the {relation} of " for relation in reversed(relations))
    return {
        "subjects": (subject,),
        "relations": tuple(relations),
        "answer": value,
        "text": f"what is {phrase}{subject}?",
    }
