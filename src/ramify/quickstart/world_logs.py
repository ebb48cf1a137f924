"""Logs of tools at work in the quick-start world, on which a model is trained before it learns to answer.

A log does what its first line says, and answers no question:

    compute the age of Gure plus the area of Peli
    <think> find Gure age</think><search> Gure age</search> <result> .. </result><think> Gure age 40</think> ..
    <think> compute this</think><python> print("=", 40 + 25)</python> <result> .. </result><think> done</think> 65

It stands for the knowledge of a language model before a cold start: calling tools, reading their results, and using the facts in
them.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ramify.quickstart.demonstrator import Demonstrator, Flaws, Search
from ramify.quickstart.world_files import WorldSettings, split_editions, write_rows
from ramify.quickstart.world_questions import make_question, pick, shuffled

_CAREFUL = Flaws(
    vague=0.3, give_up=0.0, take_outdated=0.0, early=0.0, mental=0.0, wrong_tool=0.0, unboxed=0.0
)
_KINDS = ("find", "compute", "both")
_LOOKED_UP = 2


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
