"""What a system message says to an agent that answers a benchmark: the tags of `chat/tags.py`, in English and Chinese.

The texts are in `instructions/`, in our own words. A model that was trained with others is best asked with those.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.resources import files

from ramify.core.messages import Message, Problem

LANGUAGES = ("en", "zh")


def instructions(tools: Collection[str], language: str) -> str:
    """The system message for an agent with these tools; of others than search and python the renderer tells.

    Args:
        tools: Their names, as tags call them.
        language: Of the question: "zh", or anything else for English.
    """
    known = language if language in LANGUAGES else "en"
    kind = "_".join(name for name in ("search", "python") if name in tools) or "no_tools"
    # The examples can be carried out: models copy a placeholder such as "your query here" into their calls.
    text = (files("ramify.data") / "instructions" / f"{kind}_{known}.txt").read_text(encoding="utf-8")
    return text.strip()


def instructed(problems: Sequence[Problem], tools: Collection[str]) -> tuple[Problem, ...]:
    """The problems with a system message in front, in the language of each (`info["language"]`).

    A problem that brings a system message of its own keeps that instead.
    """
    said = {language: Message.of("system", instructions(tools, language)) for language in LANGUAGES}

    def with_system(problem: Problem) -> Problem:
        if problem.messages[0].role == "system":
            return problem
        system = said.get(str(problem.info.get("language")), said["en"])
        return replace(problem, messages=(system, *problem.messages))

    return tuple(map(with_system, problems))
