"""Answers to every question: without tools, with them, and after hints."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ramify.core.draws import stream
from ramify.core.messages import Problem
from ramify.core.tree import TreeKey
from ramify.rollout.plan import TreeRequest
from ramify.rollout.tool_set import ToolSet
from ramify.sampler.sampler import Sampler
from ramify.synth.configs import HintsConfig
from ramify.synth.folder import read_stage
from ramify.synth.hints import HintLibrary, hint_positions, planned_hint
from ramify.synth.rows import is_right

DIRECT, TOOLS, FIRST_HINT = 0, 1, 2
"""`TreeKey.attempt` of a question's trees: it names their random streams, and their lines."""


def without_tools(sampler: Sampler, samples: int) -> Sampler:
    """Return the same agent without tools. A call ends its answer, or is not parsed as a call."""
    limits = replace(sampler.agent.limits, n=samples, max_calls=0)
    agent = replace(sampler.agent, environment=ToolSet({}), limits=limits, rewriters=())
    return replace(sampler, agent=agent)


def with_samples(sampler: Sampler, samples: int) -> Sampler:
    """Return the same agent with `samples` answers to a question."""
    limits = replace(sampler.agent.limits, n=samples)
    return replace(sampler, agent=replace(sampler.agent, limits=limits))


def planned_answers(problems: Sequence[Problem], attempt: int) -> Iterator[TreeRequest]:
    """Yield one tree request for each question."""
    return (TreeRequest(problem, TreeKey(0, slot, attempt)) for slot, problem in enumerate(problems))


def planned_hints(
    folder: Path,
    section: HintsConfig,
    library: HintLibrary,
    sampler: Sampler,
    problems: Sequence[Problem],
    unanswered: frozenset[str],
) -> Iterator[TreeRequest]:
    """Yield requests for trees that continue, after hints, from recorded answers to the questions `unanswered`, wrong ones first.

    An answer without a position for a hint is skipped; any other is continued once, from a position that is drawn.

    Args:
        folder: Holds the recorded answers.
        section: The stage of the answers, and their number for a question.
        library: The hints.
        sampler: The agent that continues, with its tools.
        problems: The questions under its prompt.
        unanswered: Ids of the questions that get hints.
    """
    agent = sampler.agent
    renderer, tools = agent.renderer, agent.tools
    of_id = {problem.id: (slot, problem) for slot, problem in enumerate(problems)}
    for traced in read_stage(folder, section.after):
        if traced.tree.problem.id not in unanswered:
            continue
        slot, problem = of_id[traced.tree.problem.id]
        if section.after == "tools":
            # An environment may have added words of its own to the question.
            problem = traced.tree.problem
        pairs = zip(traced.tree.trajectories, traced.rewards, strict=True)
        attempt = FIRST_HINT
        for answer, _ in sorted(pairs, key=lambda pair: is_right(pair[1])):
            positions = hint_positions(library, renderer, answer, tools)
            if not positions or attempt == FIRST_HINT + section.per_question:
                continue
            draw = stream(agent.run_seed, "hint", problem.id, answer.leaf.path)
            position = positions[draw % len(positions)]
            yield planned_hint(renderer, problem, answer, position, TreeKey(0, slot, attempt), tools)
            attempt += 1
