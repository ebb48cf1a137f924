"""System messages for benchmarks: they explain the tags of `chat/tags.py`, in English and Chinese.

The texts are in `instructions/`, in our own words. A model that was trained with other ones does best with those.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.resources import files

from ramify.core.messages import Message, Problem

LANGUAGES = ("en", "zh")


def instructions(tools: Collection[str], language: str) -> str:
    """The system message for an agent with these tools.

    It explains search and python only; the renderer describes other tools.

    Args:
        tools: Names of the tools.
        language: Language of the question: "zh", or anything else for English.
    """
    known = language if language in LANGUAGES else "en"
    kind = "_".join(name for name in ("search", "python") if name in tools) or "no_tools"
    # The examples in it are real calls, because models copy placeholders such as "your query here".
    text = (files("ramify.data") / "instructions" / f"{kind}_{known}.txt").read_text(encoding="utf-8")
    return text.strip()


def instructed(problems: Sequence[Problem], tools: Collection[str]) -> tuple[Problem, ...]:
    """Put a system message in front of each problem, in the problem's language (`info["language"]`).

    A problem that already has a system message keeps it.
    """
    said = {language: Message.of("system", instructions(tools, language)) for language in LANGUAGES}

    def with_system(problem: Problem) -> Problem:
        if problem.messages[0].role == "system":
            return problem
        system = said.get(str(problem.info.get("language")), said["en"])
        return replace(problem, messages=(system, *problem.messages))

    return tuple(map(with_system, problems))
