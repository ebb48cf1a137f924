"""Imperfect demonstrations of the quick-start world: SFT imitates them, flaws included, and RL improves on them.

A demonstrator solves a question with search and python in the tag dialect of `chat.tags`, in one message:

    <think> find Laru area</think><search> Laru area</search> <result>
    - Laru mayor Bado
    - Laru height 31
    </result><think> not found</think><search> Laru size</search> <result>
    - Laru size 56
    - Laru mayor Bado
    </result><think> Laru size 56</think><answer> \\boxed{ 56 }</answer>

The think after a result repeats the fact that is used, with the key right before the value, so that a small model can
learn to copy it. Every word and number has one space before it and none after it, so it is the same token everywhere;
the space before `<result>` comes from the dialect. Code prints "=" first (`print("=", 56 * 31)` gives "= 1736") for the
same reason.

Logs do what their first line says, and answer no question. A model is trained on them before it learns to answer, in the place of
the knowledge of a language model before a cold start: calling tools, reading their results, and using the facts in them.

    compute the age of Gure plus the area of Peli
    <think> find Gure age</think><search> Gure age</search> <result> .. </result><think> Gure age 40</think> ..
    <think> compute this</think><python> print("=", 40 + 25)</python> <result> .. </result><think> done</think> 65

A flaw is a random decision at the point where it can happen, each kind with its own rate (`Flaws`). So a model that
imitates the demonstrations makes each mistake sometimes and avoids it at other times, and RL can reinforce the better
choice. A wrong number is always one that was seen; an invented number would be noise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN
from ramify.core.draws import stream
from ramify.core.errors import DataError
from ramify.quickstart.world_files import WorldSettings, split_editions, write_rows
from ramify.quickstart.world_questions import (
    LINE,
    OPERATORS,
    SYNONYMS,
    Edition,
    Level,
    Question,
    chance,
    evaluate,
    infix,
    make_question,
    pick,
    shuffled,
)

Search: TypeAlias = Callable[[str, str], str]
"""(collection, query) -> the result text of the search tool."""
Run: TypeAlias = Callable[[str], str]
"""A program -> the result text of the Python tool."""


@dataclass(frozen=True, slots=True)
class Flaws:
    """Probability of each mistake, wherever it can be made.

    Attributes:
        vague: Search for the name alone first.
        give_up: Use some line of a result that does not contain the fact, or one of two that contradict each other.
        take_outdated: Use the outdated line although the valid one is there too.
        early: Stop after a hop that is not the last.
        mental: Answer without calling python.
        wrong_tool: Search for a sum before computing it.
        unboxed: Answer without `\\boxed{}`.
        mental_after_search: As `mental`, where the numbers were searched for; None: the same.
        slip: Write the operator as the question does, in words, so that the program fails.
    """

    vague: float = 0.3
    give_up: float = 0.4
    take_outdated: float = 0.3
    early: float = 0.4
    mental: float = 0.4
    wrong_tool: float = 0.2
    unboxed: float = 0.03
    mental_after_search: float | None = None
    slip: float = 0.0


_CAREFUL = Flaws(
    vague=0.3, give_up=0.0, take_outdated=0.0, early=0.0, mental=0.0, wrong_tool=0.0, unboxed=0.0
)
_KINDS = ("find", "compute", "both")
_LOOKED_UP = 2


@dataclass(frozen=True, slots=True)
class DemonstrationSummary:
    """The number of demonstrations, and the share with the right answer, in total and by kind."""

    count: int
    correct: float
    correct_by_kind: Mapping[str, float]


def write_demonstrations(
    path: Path,
    settings: WorldSettings,
    seed: int,
    count: int,
    search: Search,
    flaws: Flaws | None = None,
    run: Run | None = None,
) -> DemonstrationSummary:
    """Write demonstrations about training names; the kinds of question take turns.

    Args:
        path: JSONL file: {id, prompt, completion, kind, collection, correct}.
        settings: The settings that the passages were built with.
        seed: Run seed.
        count: Number of demonstrations.
        search: Searches those passages as the search tool does; called once per distinct query.
        flaws: Probabilities of the mistakes.
        run: Runs programs as the Python tool does; needed for programs that fail.

    Raises:
        DataError: `search` does not find a passage of the world.
    """
    rows = list(_demonstrations(settings, seed, count, cache(search), flaws or Flaws(), run))
    write_rows(path, rows)
    by_kind: dict[str, list[bool]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).append(row["correct"])
    return DemonstrationSummary(
        count=len(rows),
        correct=fmean(row["correct"] for row in rows),
        correct_by_kind={kind: fmean(outcomes) for kind, outcomes in by_kind.items()},
    )


def _demonstrations(
    settings: WorldSettings, seed: int, count: int, search: Search, flaws: Flaws, run: Run | None
) -> Iterator[dict[str, Any]]:
    editions = split_editions("demo", settings)
    for number in range(count):
        edition = pick(editions, "demonstration edition", seed, number)
        question = make_question(number, "demo", edition, settings.level, seed)
        demonstrator = Demonstrator(question, edition, settings.level, search, flaws, seed, run)
        completion, correct = demonstrator.solve()
        yield {
            "id": question.id,
            "prompt": question.prompt,
            "completion": completion,
            "kind": question.kind,
            "collection": edition.id,
            "correct": correct,
        }


def write_logs(path: Path, settings: WorldSettings, seed: int, count: int, search: Search) -> int:
    """Write logs about the editions of the demonstrations; returns their number.

    Args:
        path: JSONL file: {id, prompt, completion}.
        settings: The settings that the passages were built with.
        seed: Run seed.
        count: Number of logs; those that search, compute, and do both take turns.
        search: Searches those passages as the search tool does; called once per distinct query.
    """
    return write_rows(path, _logs(settings, seed, count, cache(search)))


def _logs(settings: WorldSettings, seed: int, count: int, search: Search) -> Iterator[dict[str, Any]]:
    editions = split_editions("demo", settings)
    kinds = settings.level.kinds
    for number in range(count):
        edition = pick(editions, "log edition", seed, number)
        kind = _KINDS[number % len(_KINDS)]
        # Kinds of question take turns: the next turn of this kind.
        turn = len(kinds) * number + kinds.index("arith" if kind == "compute" else "calc")
        question = make_question(turn, "demo", edition, settings.level, seed)
        keys = list(zip(question.subjects, question.relations, strict=True))
        task = question.text.replace("what is", "compute").rstrip("?")
        if kind == "find":
            facts = list(edition.facts)
            order = shuffled(range(len(facts)), "log facts", seed, number)
            keys = [facts[index] for index in order[:_LOOKED_UP]]
            task = "find " + ", ".join(map(" ".join, keys))
        demonstrator = Demonstrator(question, edition, settings.level, search, _CAREFUL, seed)
        yield {
            "id": f"log-{number:05d}",
            "prompt": [{"role": "user", "content": task}],
            "completion": demonstrator.log(keys, computes=kind != "find"),
        }


class Demonstrator:
    """Solves one question, once."""

    def __init__(
        self,
        question: Question,
        edition: Edition,
        level: Level,
        search: Search,
        flaws: Flaws,
        seed: int,
        run: Run | None = None,
    ) -> None:
        self._tool = run
        self._question = question
        self._edition = edition
        self._level = level
        self._search = search
        self._flaws = flaws
        self._draws = stream("demonstration", seed, question.id)
        self._parts: list[str] = []

    def solve(self) -> tuple[str, bool]:
        """Return the assistant's whole message, and whether it gives the right answer in a `\\boxed{}`."""
        if self._question.kind == "arith":
            answer = self._solve_arith()
        elif self._question.kind in ("calc", "compare"):
            answer = self._solve_two_step()
        else:
            answer = self._solve_hops()
        if self._parts[-1] == RESULT_CLOSE:
            self._think("done")
        unboxed = self._slips(self._flaws.unboxed, "unboxed")
        shown = f" {answer}" if unboxed else f" \\boxed{{ {answer} }}"
        self._parts.append(f"<answer>{shown}</answer>")
        return "".join(self._parts), answer == self._question.answer and not unboxed

    def log(self, keys: Sequence[tuple[str, str]], *, computes: bool) -> str:
        """Return a log of tools at work, which ends with the last value.

        Args:
            keys: Facts to look up, one after the other.
            computes: Compute with the question's operators, from these facts, or without facts from the question's numbers.
        """
        values = []
        for name, relation in keys:
            self._think(f"find {name} {relation}")
            values.append(self._look_up(name, relation))
        if computes:
            self._think("compute this")
            numbers = [int(value) for value in values] or self._question.numbers
            values.append(self._compute(numbers, mental=0.0))
        self._think("done")
        return "".join((*self._parts, f" {values[-1]}"))

    def _solve_hops(self) -> str:
        name = self._question.subjects[0]
        for index, relation in enumerate(self._question.relations):
            if index and self._slips(self._flaws.early, "early"):
                break
            name = self._look_up(name, relation)
            if name not in self._edition.names:
                break
        return name

    def _solve_arith(self) -> str:
        numbers = self._question.numbers
        if self._slips(self._flaws.wrong_tool, "wrong tool"):
            self._think("search this")
            self._call("search", infix(numbers, self._question.operators))
        self._think("compute this")
        return self._compute(numbers, self._flaws.mental)

    def _solve_two_step(self) -> str:
        subjects = self._question.subjects
        relations = self._question.relations
        if self._question.kind == "compare":
            relations = relations * 2
        values = [self._look_up(*pair) for pair in zip(subjects, relations, strict=True)]
        if not all(value.isdigit() for value in values):
            return values[0]
        numbers = [int(value) for value in values]
        searched = self._flaws.mental_after_search
        mental = self._flaws.mental if searched is None else searched
        if self._question.kind == "calc":
            return self._compute(numbers, mental)
        return subjects[0] if self._exceeds(numbers, mental) else subjects[1]

    def _look_up(self, name: str, relation: str) -> str:
        """Search until a result holds the fact or the demonstrator gives up; return the value that it uses."""
        if not self._parts:
            self._think(f"find {name} {relation}")
        # A wrong name from an earlier hop may have no such fact.
        known = (name, relation) in self._edition.facts
        wanted = self._edition.sentence(name, relation) if known else None
        outdated = self._edition.outdated_sentence(name, relation)
        queries = [f"{name} {word}" for word in (relation, *SYNONYMS[relation][: self._level.num_synonyms])]
        if self._slips(self._flaws.vague, "vague"):
            queries.insert(0, name)
        rival = self._edition.rival_sentence(name, relation)
        settling = self._edition.settling_sentence(name, relation) if rival else None
        for query in queries:
            lines = self._call("search", query).splitlines()
            if settling in lines:
                return self._take(settling)
            if rival in lines and wanted in lines:
                if self._slips(self._flaws.give_up, "give up"):
                    return self._take(pick((wanted, rival), self._draws, "line", len(self._parts)))
                self._think("not found")
                continue
            if outdated in lines and wanted in lines and self._slips(self._flaws.take_outdated, "outdated"):
                return self._take(lines[lines.index(outdated)])
            if wanted in lines:
                return self._take(wanted)
            if self._slips(self._flaws.give_up, "give up") or (not known and query is queries[-1]):
                return self._take(pick(lines, self._draws, "line", len(self._parts)))
            self._think("not found")
        raise DataError(
            f"collection {self._edition.id!r}: {queries} do not find {wanted!r}; "
            "expected the world's own passages"
        )

    def _take(self, line: str) -> str:
        self._think(line.removeprefix(LINE))
        return line.rpartition(" ")[2]

    def _compute(self, numbers: Sequence[int], mental: float) -> str:
        operators = self._question.operators
        if self._slips(mental, "mental"):
            return str(pick(numbers, self._draws, "seen number"))
        if self._slips(self._flaws.slip, "slip"):
            assert self._tool is not None
            program = f'print("=", {infix(numbers, operators)})'
            self._parts += [f"<python> {program}</python>", RESULT_OPEN, self._tool(program), RESULT_CLOSE]
            if self._slips(self._flaws.give_up, "give up"):
                return str(pick(numbers, self._draws, "seen number"))
        code = infix(numbers, [OPERATORS[word] for word in operators])
        return self._run(code, str(evaluate(numbers, operators)))

    def _exceeds(self, numbers: Sequence[int], mental: float) -> bool:
        if self._slips(mental, "mental"):
            return pick((True, False), self._draws, "guess")
        first, second = numbers
        return self._run(f"{first} > {second}", str(first > second)) == "True"

    def _run(self, expression: str, value: str) -> str:
        self._parts += [
            f'<python> print("=", {expression})</python>',
            RESULT_OPEN,
            f"= {value}",
            RESULT_CLOSE,
        ]
        return value

    def _call(self, tool: str, argument: str) -> str:
        text = self._search(self._edition.id, argument)
        self._parts += [f"<{tool}> {argument}</{tool}>", RESULT_OPEN, text, RESULT_CLOSE]
        return text

    def _think(self, text: str) -> None:
        self._parts.append(f"<think> {text}</think>")

    def _slips(self, rate: float, flaw: str) -> bool:
        return chance(rate, self._draws, flaw, len(self._parts))
