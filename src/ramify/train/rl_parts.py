"""The parts of an RL run: sampler, publisher and learner, which know nothing of each other, and what keeps its state."""

import math
from dataclasses import dataclass

from ramify.assemble.algorithm import build_learning, build_objective, build_optimizer
from ramify.assemble.worker import WorkerPlan, build_engine_model
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import largest_row, note_long_warmup, num_steps, refuse_large_steps
from ramify.core.protocols import Publisher
from ramify.data.order import ProblemOrder
from ramify.learner.guard import Guard
from ramify.learner.learning import Learning
from ramify.learner.parallel import Ranks
from ramify.learner.update import MAX_SKIPPED_IN_A_ROW, Learner
from ramify.modeling.memory_plan import Layout
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.runtime.agent_loop import AgentLoop
from ramify.sampler.publisher import build_publisher
from ramify.sampler.sampler import Sampler, build_sampler, build_task
from ramify.train.manifest import task_manifest
from ramify.train.resume import begin_run, restore, starting_point
from ramify.train.row_memory import prepare_rows
from ramify.train.run_folder import RunFolder
from ramify.train.state import LoopState, Saver


@dataclass(frozen=True, slots=True)
class RlRun:
    """All parts of a run."""

    recipe: TrainRecipe
    console: RunConsole
    folder: RunFolder
    loop: AgentLoop
    sampler: Sampler
    order: ProblemOrder
    publisher: Publisher
    learning: Learning
    saver: Saver
    guard: Guard | None
    total_steps: int
    is_new: bool = False


def build_rl(
    recipe: TrainRecipe,
    console: RunConsole,
    folder: RunFolder,
    loop: AgentLoop,
    ranks: Ranks,
    layout: Layout,
) -> tuple[RlRun, LoopState]:
    """Build every part from the recipe, and the state to start from.

    Raises:
        UserError: The recipe, the data, the machine or the checkpoint is wrong.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    start = starting_point(folder, recipe, console)
    task = build_task(recipe, console)
    manifest = task_manifest(recipe, task, start.tokenizer)
    folder.take_up(recipe, manifest, console.note)
    rollout = recipe.rollout
    refuse_large_steps("rollout.problems_per_step", rollout.problems_per_step, len(task.problems))
    steps = num_steps(recipe.run, recipe.data.epochs, len(task.problems), rollout.problems_per_step)
    guard = Guard(recipe.guard, rollout.max_tokens) if recipe.guard.enabled else None
    looks_at_non_finite = guard is not None and recipe.guard.max_non_finite is not None
    minibatches = math.ceil(rollout.problems_per_step / recipe.learner.problems_per_minibatch)
    idle = recipe.algorithm.note_idle(
        rollout.problems_per_step,
        recipe.learner.problems_per_minibatch,
        recipe.engine.computes_here,
    )
    for note in (*idle, *note_long_warmup(recipe.learner.optimizer, steps * minibatches)):
        console.note(note)

    optimizer, schedule = build_optimizer(recipe.learner.optimizer)
    plan = WorkerPlan(
        model=recipe.model,
        source=start.source,
        context_tokens=task.context_tokens,
        seed=recipe.run.seed,
        optimizer=optimizer,
        with_reference=recipe.algorithm.kl is not None,
        copies=recipe.learner.copies,
        layout=layout,
        threads=recipe.run.threads,
        deterministic=recipe.run.deterministic,
    )

    def make_learner() -> Learner:
        ranks.build(plan)
        return Learner(
            ranks,
            schedule=schedule,
            total_steps=steps * minibatches,
            objective=build_objective(recipe.algorithm),
            temperature=rollout.temperature,
            max_grad_norm=recipe.learner.optimizer.max_grad_norm,
            token_budget=recipe.learner.token_budget,
            max_skipped_in_a_row=None if looks_at_non_finite else MAX_SKIPPED_IN_A_ROW,
        )

    learner, state = restore(start, make_learner)
    engine_model = build_engine_model(recipe.engine, learner.model, plan.engine_model)
    sampler = build_sampler(recipe, task, lambda: engine_model, console, hands_over=True)
    if start.record is not None:
        sampler.agent.brancher.restore(state.branching)
    run = RlRun(
        recipe=recipe,
        console=console,
        folder=folder,
        loop=loop,
        sampler=sampler,
        order=ProblemOrder(len(task.problems), recipe.run.seed),
        publisher=build_publisher(
            sampler, learner, engine_model, getattr(recipe.engine, "dtype", recipe.model.dtype)
        ),
        learning=build_learning(recipe, learner, minibatches),
        saver=begin_run(folder, recipe, start, state, learner, steps, manifest),
        guard=guard,
        total_steps=steps,
        is_new=start.record is None,
    )
    # Now that the engine's slots and a reference model have their memory.
    prepare_rows(learner, largest_row(recipe), task.context_tokens, console)
    return run, state
