"""Reinforcement learning, one straight loop: take problems, grow trees, score, advantages, pack, update, record."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.config.build import build_optimizer
from ramify.config.build_algorithm import build_objective
from ramify.config.build_model import build_model
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import Interrupted
from ramify.core.records import Floats
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import finite, read_metrics
from ramify.obs.trace import TracedTree, write_trees
from ramify.obs.tree_metrics import entropy_warnings, tree_metrics
from ramify.train.interrupts import StopOnCtrlC
from ramify.train.learning import Learning, build_learning
from ramify.train.rollout import Rollout, build_rollout, build_task
from ramify.train.run_folder import RunFolder, claim_run_folder
from ramify.train.sampling import Batch, take_batch
from ramify.train.state import LoopState, Saver, restore, starting_point


@dataclass(frozen=True, slots=True)
class RlRun:
    """All parts of a run."""

    recipe: TrainRecipe
    console: RunConsole
    folder: RunFolder
    rollout: Rollout
    learning: Learning
    saver: Saver
    total_steps: int


def run_rl(
    recipe: TrainRecipe, console: RunConsole, *, resume: bool = False, max_steps: int | None = None
) -> Path:
    """Train to the end of the recipe; returns the last checkpoint.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong.
        Interrupted: Ctrl-C; the state was saved.
    """
    with claim_run_folder(recipe.run.dir, recipe, resume) as folder:
        run, state = build_rl(recipe, console, folder)
        last = run.total_steps if max_steps is None else min(run.total_steps, max_steps)
        with asyncio.Runner() as runner:
            try:
                with StopOnCtrlC(runner) as stop, console.phase("RL", last) as phase:
                    phase.advance(state.step)
                    try:
                        while state.step < last:
                            stop.check()
                            state = rl_step(run, state, stop, phase)
                            if state.step % recipe.run.save_every == 0:
                                run.saver.save(state)
                    except Interrupted as stopped:
                        saved = run.saver.save(state)
                        raise Interrupted(f"{stopped}; state saved in {saved}, go on with --resume") from None
            finally:
                runner.run(run.rollout.close())
        looks = recipe.rollout.branching.looks_at_entropy
        for warning in entropy_warnings(
            read_metrics(run.folder.root / "metrics.jsonl"), looks_at_entropy=looks
        ):
            console.note(warning)
        return run.saver.save(state)


def rl_step(run: RlRun, state: LoopState, stop: StopOnCtrlC, phase: Phase) -> LoopState:
    """One step of the run: from a batch of problems to updated weights and a written record."""
    batch = stop.run(take_batch(run.rollout, run.recipe.rollout, state.cursor, state.step, phase))
    trees, rewards = batch.learned
    advantages: Sequence[Sequence[Floats]] = ()
    reports: Sequence[UpdateReport] = ()
    if trees:
        notes = run.learning.annotate(trees)
        advantages = run.learning.advantages(trees, rewards, notes)
        reports = run.learning.update(trees, advantages, notes)
    else:
        run.console.note(
            f"step {state.step + 1}: none of {len(batch.trees)} problems had both right and wrong answers in "
            f"{batch.attempts} attempts; nothing was learned"
        )
    state = replace(state, step=state.step + 1, cursor=batch.cursor)
    record(run, state.step, batch, advantages, reports)
    phase.advance(waiting="", reward=tree_metrics(batch.trees, batch.rewards)["reward/mean"])
    if reports:
        phase.advance(0, gradient=reports[0].grad_norm)
    return state


def record(
    run: RlRun,
    step: int,
    batch: Batch,
    advantages: Sequence[Sequence[Floats]],
    reports: Sequence[UpdateReport],
) -> None:
    """Write the trace, the times and the metrics of a step; `advantages` are those of the trees it learned from."""
    means = iter([tuple(float(a.mean()) if len(a) else 0.0 for a in of_tree) for of_tree in advantages])
    traced = [
        TracedTree(tree, tuple(given), next(means) if is_kept else None)
        for tree, given, is_kept in zip(batch.trees, batch.rewards, batch.kept, strict=True)
    ]
    write_trees(run.folder.trees(step), traced)
    run.rollout.timing.flush(run.folder.timing(step))
    sampling = batch.metrics if run.recipe.rollout.dynamic_sampling is not None else {}
    grown = tree_metrics(batch.trees, batch.rewards)
    run.folder.metrics.append(step, {**grown, **sampling, **update_metrics(reports)})


def update_metrics(reports: Sequence[UpdateReport]) -> dict[str, float | None]:
    """What the mini-batches of one step report; None where nothing was measured or no number came out."""
    # Dead groups alone measure nothing and change no weight, so the first mini-batch that has more is still that
    # of the policy that sampled: its gap is engine against learner.
    measured = [report for report in reports if report.outcome != "empty"]
    first = measured[0] if measured else None
    return {
        "update/loss": finite(first.loss) if first else None,
        "update/grad_norm": finite(first.grad_norm) if first else None,
        "update/lr_factor": reports[0].lr_factor if reports else None,
        "update/entropy": finite(first.entropy) if first else None,
        "update/steps": float(sum(report.outcome == "stepped" for report in reports)),
        "update/non_finite": float(sum(report.outcome == "non_finite" for report in reports)),
        "update/gap_mean": finite(first.gap_mean) if first else None,
        "update/gap_max": finite(first.gap_max) if first else None,
        "update/gap_ess": finite(first.gap_ess) if first else None,
        "update/tokens": float(sum(report.num_tokens for report in reports)),
        "update/repeated_tokens": float(sum(report.num_repeated for report in reports)),
        **{f"update/{name}": finite(value) for name, value in (first.metrics if first else {}).items()},
    }


def build_rl(recipe: TrainRecipe, console: RunConsole, folder: RunFolder) -> tuple[RlRun, LoopState]:
    """Build every part from the recipe, and the state to start from.

    Raises:
        UserError: The recipe, the data, the machine or the checkpoint is wrong.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    source = starting_point(folder, recipe.model.path)
    task = build_task(recipe, source, console)
    rollout = recipe.rollout
    steps = math.ceil(len(task.problems) * recipe.data.epochs / rollout.problems_per_step)
    minibatches = math.ceil(rollout.problems_per_step / recipe.learner.problems_per_minibatch)

    def make_learner() -> Learner:
        optimizer, schedule = build_optimizer(recipe.learner.optimizer)
        return Learner(
            build_model(recipe.model.model_copy(update={"path": source}), task.context_tokens),
            optimizer=optimizer,
            schedule=schedule,
            total_steps=steps * minibatches,
            objective=build_objective(recipe.algorithm),
            temperature=rollout.temperature,
            max_grad_norm=recipe.learner.optimizer.max_grad_norm,
        )

    learner, state = restore(folder, make_learner, recipe.run.seed)
    folder.create(recipe)
    folder.rewind(state.step)
    run = RlRun(
        recipe=recipe,
        console=console,
        folder=folder,
        rollout=build_rollout(recipe, task, lambda: learner.model),
        learning=build_learning(recipe, learner),
        saver=Saver(folder, learner, recipe.model.path, recipe.run.seed, recipe.run.keep_last),
        total_steps=steps,
    )
    return run, state
