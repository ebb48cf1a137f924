"""`ramify rollout`: the trees of a run's first step, or one that goes on from a recorded node, and nothing trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.chat.token_texts import copy_tokenizer
from ramify.core.messages import Problem
from ramify.core.records import ScoredTree
from ramify.core.tree import StopReason
from ramify.data.order import DataCursor, ProblemOrder
from ramify.obs.console import RunConsole
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import write_indexed
from ramify.obs.tree_metrics import tree_metrics
from ramify.rollout.plan import TreeRequest, request_from, step_requests
from ramify.runs.manifest import RecipeRecord
from ramify.runs.page import write_run_page
from ramify.runs.recorded_trees import require_tokenizer, tree_at
from ramify.runs.run_folder import RunFolder
from ramify.runs.status import begin_session
from ramify.sampler.sampler import Sampler, sampling


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a recorded tree: the file of trees, the tree's place in it, from 0, and the node's id."""

    trace: Path
    tree: int
    node: str


def first_step(problems: Sequence[Problem], seed: int, count: int) -> tuple[TreeRequest, ...]:
    """Return the trees of the first step of a run with this seed, at most `count`."""
    indices, _ = ProblemOrder(len(problems), seed).take(DataCursor(), min(count, len(problems)))
    return step_requests([problems[index] for index in indices], 0)


def grow_rollout(
    sampler: Sampler,
    planned: Sequence[TreeRequest],
    folder: RunFolder,
    recipe: RecipeRecord,
    console: RunConsole,
) -> dict[str, float]:
    """Grow trees and write `trees/` and `timing/`; returns their metrics. Closes the sampler.

    Raises:
        UserError: No problem worked, or the folder cannot be written.
        RunInterruptedError: Ctrl-C or SIGTERM; nothing was written.
    """
    begin_session(folder.root, 1)
    with sampling(sampler, lambda: sampler) as session:
        with console.phase("rollout", len(planned)) as phase:

            async def count(scored: ScoredTree, seconds: float) -> ScoredTree:
                del seconds
                phase.advance()
                return scored

            work = sampler.grow_each(planned, count, lambda waits: phase.advance(0, waiting=waits))
            batch = session.stop.run(work)
        held_up = session.loop.delays.take()
    folder.create(recipe)
    copy_tokenizer(sampler.task.renderer.tokenizer, folder.root)
    sampler.timing.flush(folder.timing(1), held_up)
    for note in sampler.timing.failure_notes():
        console.note(note)
    failed = sum(trajectory.stop is StopReason.FAILED for s in batch for trajectory in s.tree.trajectories)
    if failed:
        total = sum(len(s.rewards) for s in batch)
        console.note(f"{failed} of {total} trajectories failed")
    sampler.scoring.require_success()
    # Last: with its trees a rollout is done.
    write_indexed(folder.trees(1), [TracedTree(s.tree, s.rewards) for s in batch])
    write_run_page(folder.root, console.note)
    return tree_metrics(batch)


def recorded_start(start: Place, decode: Callable[[Sequence[int]], str]) -> TreeRequest:
    """Return a tree that goes on from a recorded node; `decode` gives the text of tokens.

    Raises:
        DataError: There is no such tree or node, nothing can go on from it, or its tokens are another model's.
    """
    planned = request_from(tree_at(start.trace, start.tree).tree, start.node)
    require_tokenizer(start.trace, planned.above[0], decode)
    return planned
