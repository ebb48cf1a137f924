"""`ramify rollout`: the trees of a run's first step, or one that goes on from a recorded node, and nothing trained."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.assemble.model import build_model
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import DataError
from ramify.core.tree import StopReason
from ramify.data.order import DataCursor, ProblemOrder
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.trace import TracedTree, read_trees, write_trees
from ramify.obs.tree_metrics import tree_metrics
from ramify.rollout.plan import Planned, planned_from, planned_step
from ramify.runtime.agent_loop import StopOnSignal, agent_loop
from ramify.sampler.sampler import build_sampler, build_task
from ramify.train.run_folder import ROLLOUT, RunFolder


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a recorded tree: the run's folder, the step, the tree's slot in it, and the node's id."""

    run: Path
    step: int
    slot: int
    node: str


def run_rollout(
    recipe: TrainRecipe, console: RunConsole, num_problems: int | None = None, start: Place | None = None
) -> dict[str, float]:
    """Grow the trees of a run's first step and write `trees/` and `timing/`; returns their metrics.

    If `num_problems` is None, it is `rollout.problems_per_step`. With `start`, one tree is grown that goes on from there.
    Nothing is trained.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong, or no problem worked.
        Interrupted: Ctrl-C or SIGTERM; nothing was written.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    with ROLLOUT.claim(recipe.run.dir, lambda: ROLLOUT.check(recipe.run.dir, resume=False)):
        task = build_task(recipe, console)
        sampler = build_sampler(recipe, task, lambda: build_model(recipe.model, task.context_tokens), console)
        if start is None:
            count = min(num_problems or recipe.rollout.problems_per_step, len(task.problems))
            indices, _ = ProblemOrder(len(task.problems), recipe.run.seed).take(DataCursor(), count)
            planned = planned_step([task.problems[index] for index in indices], 0)
        else:
            planned = (recorded_start(start, task.renderer.decode),)
        with agent_loop() as loop:
            loop.settle()
            try:
                with StopOnSignal(loop) as stop, console.phase("rollout", 1) as phase:
                    batch = stop.run(sampler.grow(planned, phase))
                    phase.advance()
            finally:
                loop.run(sampler.close())
            held_up = loop.delays.take()
        folder = RunFolder(recipe.run.dir)
        folder.create(recipe)
        sampler.timing.flush(folder.timing(1), held_up)
        for note in sampler.timing.failure_notes():
            console.note(note)
        failed = sum(
            trajectory.stop is StopReason.FAILED for s in batch for trajectory in s.tree.trajectories
        )
        if failed:
            total = sum(len(s.rewards) for s in batch)
            console.note(f"{failed} of {total} trajectories failed")
        sampler.scoring.require_success()
        # Last: with its trees a rollout is done.
        write_trees(folder.trees(1), [TracedTree(s.tree, s.rewards) for s in batch])
    return tree_metrics(batch)


def recorded_start(place: Place, decode: Callable[[Sequence[int]], str]) -> Planned:
    """A tree that goes on from a recorded node; `decode` gives the text of tokens.

    Raises:
        DataError: There is no such tree or node, nothing can go on from it, or its tokens are another model's.
    """
    path = RunFolder(place.run).trees(place.step)
    trees = {traced.tree.key.slot: traced.tree for traced in read_trees(path)}
    if place.slot not in trees:
        raise DataError(f"{path}: it has no tree {place.slot}; it has {', '.join(map(str, sorted(trees)))}")
    planned = planned_from(trees[place.slot], place.node)
    prompt = planned.above[0]
    if decode(prompt.token_ids) != prompt.text:
        raise DataError(f"{path}: its tokens are those of another model's tokenizer")
    return planned
