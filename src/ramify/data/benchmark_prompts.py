"""System messages for benchmarks: they explain how to call and to answer in a dialect, in English and Chinese.

The texts are in `instructions/`, in our own words. A model that was trained with other ones does best with those.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.resources import files

from ramify.core.messages import Message, Problem

LANGUAGES = ("en", "zh")


def instructions(tools: Collection[str], language: str, dialect: str = "tags") -> str:
    """The system message for an agent with these tools.

    For the tag dialect it explains search and python only; the renderer describes other tools. In the hermes dialect
    the chat template describes all of them.

    Args:
        tools: Names of the tools.
        language: Language of the question: "zh", or anything else for English.
        dialect: The recipe's `model.dialect`.
    """
    known = language if language in LANGUAGES else "en"
    kind = (
        dialect
        if dialect != "tags"
        else "_".join(name for name in ("search", "python") if name in tools) or "no_tools"
    )
    # The examples in it are real calls, because models copy placeholders such as "your query here".
    text = (files("ramify.data") / "instructions" / f"{kind}_{known}.txt").read_text(encoding="utf-8")
    return text.strip()


def instructed(
    problems: Sequence[Problem], tools: Collection[str], dialect: str = "tags"
) -> tuple[Problem, ...]:
    """Put a system message in front of each problem, in the problem's language (`info["language"]`).

    A problem that already has a system message keeps it.
    """
    said = {language: Message.of("system", instructions(tools, language, dialect)) for language in LANGUAGES}

    def with_system(problem: Problem) -> Problem:
        if problem.messages[0].role == "system":
            return problem
        system = said.get(str(problem.info.get("language")), said["en"])
        return replace(problem, messages=(system, *problem.messages))

    return tuple(map(with_system, problems))
