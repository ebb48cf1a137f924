"""Answers to every question: without tools, with them, and after hints; recorded as they come, so that a run can go on."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ramify.actor.actor import Actor
from ramify.actor.groups import grow_in_groups
from ramify.chat.renderer import ChatRenderer
from ramify.config.schema_synth import HintsSection
from ramify.core.draws import stream
from ramify.core.messages import Problem
from ramify.core.records import ScoredTree
from ramify.core.tree import TreeKey
from ramify.obs.console import RunConsole
from ramify.obs.keyed_lines import Key
from ramify.obs.trace import TracedTree, tree_record
from ramify.rollout.agent_loop import StopOnSignal
from ramify.rollout.plan import Planned
from ramify.rollout.tool_set import ToolSet
from ramify.synth.folder import Stage, read_stage, stage_lines
from ramify.synth.hints import HintLibrary, places_for, planned_hint
from ramify.synth.rows import is_right

GROUP = 1024
"""Trees that are planned at a time, where none must be grown together with others."""
DIRECT, TOOLS, FIRST_HINT = 0, 1, 2
"""`TreeKey.attempt` of a question's trees: it names their random streams, and their lines."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Grows the trees of one stage after the other into the folder of a synthesis.

    Attributes:
        folder: The folder.
        console: Shows the progress.
        stop: Ends it on a signal; what was recorded stays.
        whole: Number of sequences that are written together, so that the last bits of their logprobs are the same in any
            session; None: each tree can be grown alone.
    """

    folder: Path
    console: RunConsole
    stop: StopOnSignal
    whole: int | None

    def sample(self, stage: Stage, actor: Actor, planned: Iterable[Planned], most: int) -> None:
        """Grow what a stage lacks, and put its file in the order of `planned`, which has at most `most` trees.

        Raises:
            Interrupted: Ctrl-C or SIGTERM.
        """
        lines = stage_lines(self.folder, stage)
        lines.path.parent.mkdir(exist_ok=True)
        found = lines.keys()
        # Also drops a last line that was cut off.
        lines.keep(found)
        keys: list[Key] = []
        recording = asyncio.Lock()
        with self.console.phase(stage, most) as phase:

            async def keep(scored: ScoredTree, seconds: float) -> None:
                del seconds
                actor.timing.take((scored.tree.key.step, scored.tree.key.slot))
                async with recording:
                    await asyncio.to_thread(
                        lines.append, tree_record(TracedTree(scored.tree, scored.rewards))
                    )
                phase.advance(1)

            for group in _chunks(planned, self._size(actor)):
                keys += [_key(one) for one in group]
                done = {_key(one) for one in group} & found
                if self.whole is not None and len(done) < len(group):
                    lines.keep(lines.keys() - done)
                    done = set()
                phase.advance(len(done))
                if left := [one for one in group if _key(one) not in done]:
                    self.stop.run(grow_in_groups(actor, [left], keep, phase, whole=self.whole is not None))
        lines.sort(keys)
        for note in actor.timing.failure_notes():
            self.console.note(note)

    def _size(self, actor: Actor) -> int:
        return GROUP if self.whole is None else max(1, self.whole // actor.agent.limits.n)


def _chunks(planned: Iterable[Planned], size: int) -> Iterator[tuple[Planned, ...]]:
    rest = iter(planned)
    while chunk := tuple(islice(rest, size)):
        yield chunk


def _key(planned: Planned) -> Key:
    return planned.problem.id, planned.key.attempt


def without_tools(actor: Actor, renderer: ChatRenderer, samples: int) -> Actor:
    """The same agent without tools; `renderer` shows none. A call ends its answer, or is no call at all."""
    limits = replace(actor.agent.limits, n=samples, max_calls=0)
    agent = replace(actor.agent, renderer=renderer, environment=ToolSet({}), limits=limits, rewriters=())
    return replace(actor, agent=agent)


def with_samples(actor: Actor, samples: int) -> Actor:
    """The same agent with so many answers to a question."""
    limits = replace(actor.agent.limits, n=samples)
    return replace(actor, agent=replace(actor.agent, limits=limits))


def planned_answers(problems: Sequence[Problem], attempt: int) -> Iterator[Planned]:
    """One tree for each question."""
    return (Planned(problem, TreeKey(0, slot, attempt)) for slot, problem in enumerate(problems))


def planned_hints(
    folder: Path,
    section: HintsSection,
    library: HintLibrary,
    actor: Actor,
    problems: Sequence[Problem],
    asked: frozenset[str],
) -> Iterator[Planned]:
    """Trees that go on after hints from recorded answers to the questions `asked`: from wrong answers first.

    Answers in which no hint has a place are passed over. Which hint, and where, is drawn for each answer.

    Args:
        folder: Holds the recorded answers.
        section: Which answers, and how many of a question.
        library: The hints.
        actor: The agent that goes on, with its tools.
        problems: The questions under its prompt.
        asked: Ids of the questions that get hints.
    """
    agent, of_id = actor.agent, {problem.id: (slot, problem) for slot, problem in enumerate(problems)}
    for traced in read_stage(folder, section.after):
        if traced.tree.problem.id not in asked:
            continue
        slot, problem = of_id[traced.tree.problem.id]
        pairs = zip(traced.tree.trajectories, traced.rewards, strict=True)
        attempt = FIRST_HINT
        for answer, _ in sorted(pairs, key=lambda pair: is_right(pair[1])):
            places = places_for(library, agent.renderer, answer)
            if not places or attempt == FIRST_HINT + section.per_question:
                continue
            place = places[stream(agent.run_seed, "hint", problem.id, answer.leaf.path) % len(places)]
            yield planned_hint(agent.renderer, problem, answer, place, TreeKey(0, slot, attempt))
            attempt += 1
