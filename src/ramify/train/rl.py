"""Reinforcement learning, one straight loop: take problems, grow trees, score, advantages, pack, update, record."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.config.against_data import note_long_warmup, num_steps, refuse_large_steps
from ramify.config.build import build_optimizer
from ramify.config.build_algorithm import build_learning, build_objective
from ramify.config.build_model import build_model
from ramify.config.inert import note_inert_clips
from ramify.config.largest_row import largest_row
from ramify.config.schema_train import TrainRecipe
from ramify.core.call_clock import HeldUp
from ramify.core.errors import ConfigError, Interrupted, TrainingError
from ramify.core.records import TrainingTree
from ramify.learner.checkpoint import checkpoint_folder
from ramify.learner.learning import Learning
from ramify.learner.ranks import max_over_ranks
from ramify.learner.report import UpdateReport
from ramify.learner.update import MAX_SKIPPED_IN_A_ROW, Learner
from ramify.modeling.numerics import set_numerics
from ramify.obs.branch_metrics import branch_notes, entropy_warnings
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import MetricsRow, finite, read_metrics
from ramify.obs.trace import TracedTree, write_trees
from ramify.obs.tree_metrics import tree_metrics
from ramify.rollout.agent_loop import AgentLoop, StopOnSignal, agent_loop
from ramify.train.guard import Action, Guard, GuardState, Violation
from ramify.train.manifest import task_manifest
from ramify.train.preflight import run_preflight
from ramify.train.resume import begin_run, restore, starting_point
from ramify.train.rollout import Rollout, build_rollout, build_task
from ramify.train.row_memory import prepare_rows
from ramify.train.run_folder import RunFolder, claim_run_folder
from ramify.train.sampling import Batch, take_batch
from ramify.train.state import LoopState, Saver


@dataclass(frozen=True, slots=True)
class RlRun:
    """All parts of a run."""

    recipe: TrainRecipe
    console: RunConsole
    folder: RunFolder
    loop: AgentLoop
    rollout: Rollout
    learning: Learning
    saver: Saver
    guard: Guard | None
    total_steps: int
    is_new: bool = False


def run_rl(
    recipe: TrainRecipe, console: RunConsole, *, resume: bool = False, max_steps: int | None = None
) -> Path:
    """Train to the end of the recipe; returns the last checkpoint.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot go on; the message says why.
    """
    with claim_run_folder(recipe.run.dir, recipe, resume) as folder:
        with agent_loop() as loop:
            run, state = build_rl(recipe, console, folder, loop)
            loop.settle()
            last = run.total_steps if max_steps is None else min(run.total_steps, max_steps)
            try:
                with StopOnSignal(loop) as stop:
                    if run.is_new:
                        state = start_new(run, state, stop)
                    state = train(run, state, last, stop)
            finally:
                loop.run(run.rollout.close())
        history = read_metrics(run.folder.root / "metrics.jsonl")
        looks = recipe.rollout.branching.looks_at_entropy
        for line in (
            *branch_notes(history, looks_at_entropy=looks),
            *entropy_warnings(history, looks_at_entropy=looks),
            *update_warnings(history),
        ):
            console.note(line)
        if note := run.saver.best_note(state):
            console.note(note)
        return run.saver.save(state)


def start_new(run: RlRun, state: LoopState, stop: StopOnSignal) -> LoopState:
    """Run the preflight, then save the checkpoint of step 0 that a guard can always fall back to.

    If the preflight refuses, the folder is no run any more; only what the preflight saw stays. A kill in between leaves no checkpoint, so the next start
    repeats all of this.

    Raises:
        ConfigError: The rewards never differ.
        Interrupted: A stop was asked for.
    """
    if run.recipe.preflight.enabled:
        try:
            run_preflight(run.rollout, run.recipe.preflight, run.folder, run.console, run.loop, stop)
        except (ConfigError, Interrupted):
            run.folder.forget()
            raise
    if run.guard is None:
        return state
    guarded = replace(state, guard=run.guard.start())
    return run.saver.keep(guarded) if run.recipe.guard.keep_good else guarded


def train(run: RlRun, state: LoopState, last: int, stop: StopOnSignal) -> LoopState:
    """Run steps up to and including `last`.

    Raises:
        Interrupted: A stop was asked for; the state was saved.
    """
    with run.console.phase("RL", last, state.step) as phase:
        try:
            while state.step < last:
                stop.check()
                state = run.saver.keep(rl_step(run, state, stop, phase))
        except Interrupted as stopped:
            saved = run.saver.save(state)
            raise Interrupted(stopped.number, f"state saved in {saved}, go on with --resume") from None
    return state


def rl_step(run: RlRun, state: LoopState, stop: StopOnSignal, phase: Phase) -> LoopState:
    """One step of the run: from a batch of problems to updated weights and a written record.

    Raises:
        TrainingError: The guard stops the run.
    """
    batch = stop.run(take_batch(run.rollout, run.recipe.rollout, state.cursor, state.step, phase))
    grown = tree_metrics(batch.trees)
    passed = state.guard.passed if state.guard else None
    learned, reports, found = learn(run, batch, state.step + 1, grown, passed)
    run.learning.end_step(state.step + 1)
    state = replace(
        state.after_step(batch.cursor, grown["reward/mean"]), branching=run.rollout.agent.brancher.state()
    )
    action = Action.GO_ON
    guarded: dict[str, float] = {}
    if run.guard is not None and state.guard is not None:
        remembered = run.guard.passed(state.guard, max_over_ranks(grown))
        after, action = run.guard.count(remembered, found)
        state = replace(state, guard=after)
        guarded = {
            "guard/violated": float(found is not None),
            "guard/in_a_row": float(after.in_a_row),
            "guard/fallbacks": float(after.fallbacks),
        }
    told = update_metrics(reports)
    held_up = run.loop.delays.take()
    record(run, state.step, batch, learned, {**grown, **told, **guarded}, held_up)
    norm = told["update/grad_norm"]
    shown: dict[str, float | str] = {} if norm is None else {"gradient": norm}
    if held_up.is_noticeable:
        shown["event loop held up"] = f"{held_up.longest:.2f} s"
    phase.advance(1, waiting="", reward=grown["reward/mean"], **shown)
    if found is not None and state.guard is not None:
        follow(run, state.step, state.guard, found, action)
        if action is Action.FALL_BACK:
            assert state.guard.last_good is not None
            state = state.went_back(state.guard.last_good)
    return state


def learn(
    run: RlRun,
    batch: Batch,
    step: int,
    grown: Mapping[str, float],
    passed: Sequence[str] | None = None,
) -> tuple[Sequence[TrainingTree], Sequence[UpdateReport], Violation | None]:
    """Compute the advantages of a batch and update on it, as far as the guard allows.

    All ranks decide alike: the guard looks at the maximum of each metric over ranks (also of the entropy, since all
    ranks sample from one policy), and a rank without trees takes part as long as another one has some. `passed` are the
    guard's settings whose thresholds the run was within before; None: all count.
    """
    kept = batch.kept
    found = run.guard.look(max_over_ranks(grown), passed) if run.guard else None
    if not max_over_ranks({"trees": len(kept)})["trees"]:
        run.console.note(
            f"step {step}: none of {len(batch.trees)} problems had both right and wrong answers in "
            f"{batch.attempts} attempts; nothing was learned"
        )
        return (), (), found
    trees = run.learning.credit(kept)
    if found is not None:
        return trees, (), found

    def refused(reports: Sequence[UpdateReport]) -> bool:
        return run.guard is not None and run.guard.look(update_metrics(reports)) is not None

    reports = run.learning.update(trees, refused)
    return trees, reports, run.guard.look(update_metrics(reports)) if run.guard else None


def follow(run: RlRun, step: int, state: GuardState, found: Violation, action: Action) -> None:
    """Report what the guard found, and do what it decided.

    Raises:
        TrainingError: The guard stops the run.
    """
    if action is Action.STOP:
        steps = "in 1 step" if state.in_a_row == 1 else f"in {state.in_a_row} steps in a row"
        if state.last_good is None:
            raise TrainingError(
                f"step {step}: {found} {steps}: the policy has collapsed; start again with a lower learner.optimizer.rate, "
                "or with a [guard] of the recipe's own (guard.enabled = false: none)"
            )
        good = checkpoint_folder(run.folder.root, state.last_good)
        returns = f"{state.fallbacks} return{'s' * (state.fallbacks != 1)}"
        raise TrainingError(
            f"step {step}: {found} {steps}, after {returns} to a good checkpoint; the last good one is {good}: start a "
            "new run from it with other settings"
        )
    run.console.note(f"step {step}: {found}; the rest of its update was skipped")
    if action is Action.FALL_BACK:
        assert state.last_good is not None
        run.console.note(f"step {step}: back to {run.saver.fall_back(state.last_good)}")


def record(
    run: RlRun,
    step: int,
    batch: Batch,
    learned: Sequence[TrainingTree],
    metrics: Mapping[str, float | None],
    held_up: HeldUp,
) -> None:
    """Write the trace, the timing and the metrics of a step."""
    means = {
        tree.tree.key: tuple(float(a.mean()) if len(a) else 0.0 for a in tree.advantages) for tree in learned
    }
    traced = [TracedTree(scored.tree, scored.rewards, means.get(scored.tree.key)) for scored in batch.trees]
    write_trees(run.folder.trees(step), traced)
    run.rollout.timing.flush(run.folder.timing(step), held_up)
    sampling = batch.metrics if run.recipe.rollout.dynamic_sampling is not None else {}
    run.folder.metrics.append(step, {**metrics, **sampling})


def update_metrics(reports: Sequence[UpdateReport]) -> dict[str, float | None]:
    """The metrics of one step's mini-batches; None where nothing was measured or the value is not finite."""
    # A mini-batch of dead groups measures nothing and changes no weight. So the first other one is still computed with
    # the weights that sampled: its gap is that between engine and learner.
    measured = [report for report in reports if report.outcome != "empty"]
    first = measured[0] if measured else None
    told = (first or reports[0]).metrics if reports else {}
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
        **{f"update/{name}": finite(value) for name, value in told.items()},
    }


def update_warnings(history: Sequence[MetricsRow]) -> tuple[str, ...]:
    """A line if no step of a run changed the weights: why, with the most frequent cause first."""
    if not history or any(row.get("update/steps") for row in history):
        return ()
    causes = Counter(map(_why_no_step, history)).most_common()
    steps = f"{len(history)} step{'s' * (len(history) > 1)}"
    told = "; ".join(f"{cause} (in {count})" for cause, count in causes)
    return (f"no optimizer step in {steps}, the weights are what they were: {told}",)


def _why_no_step(row: MetricsRow) -> str:
    if row.get("update/non_finite"):
        return "loss or gradient was not finite, lower learner.optimizer.rate"
    if row.get("guard/violated"):
        return "the guard refused to train on it"
    if row.get("sampling/empty"):
        return "dynamic sampling kept no problem, since none had both right and wrong answers"
    if row.get("group/zero_variance") == 1:
        return "rewards never differed within a group, so that all of them were dead"
    return "no token was left with an advantage: masked (truncated, correction) or exactly zero"


def build_rl(
    recipe: TrainRecipe, console: RunConsole, folder: RunFolder, loop: AgentLoop
) -> tuple[RlRun, LoopState]:
    """Build every part from the recipe, and the state to start from.

    Raises:
        UserError: The recipe, the data, the machine or the checkpoint is wrong.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    start = starting_point(folder, recipe, console)
    task = build_task(recipe, recipe.model.folder, console)
    manifest = task_manifest(recipe, task, start.tokenizer)
    folder.take_up(recipe, manifest, console.note)
    rollout = recipe.rollout
    refuse_large_steps("rollout.problems_per_step", rollout.problems_per_step, len(task.problems))
    steps = num_steps(recipe.run, recipe.data.epochs, len(task.problems), rollout.problems_per_step)
    guard = Guard(recipe.guard, rollout.max_tokens) if recipe.guard.enabled else None
    looks_at_non_finite = guard is not None and recipe.guard.max_non_finite is not None
    minibatches = math.ceil(rollout.problems_per_step / recipe.learner.problems_per_minibatch)
    idle = note_inert_clips(
        recipe.algorithm,
        rollout.problems_per_step,
        recipe.learner.problems_per_minibatch,
        recipe.engine.name == "local",
    )
    for note in (*idle, *note_long_warmup(recipe.learner.optimizer, steps * minibatches)):
        console.note(note)

    def make_learner() -> Learner:
        optimizer, schedule = build_optimizer(recipe.learner.optimizer)
        return Learner(
            build_model(
                recipe.model.model_copy(update={"path": start.source}), task.context_tokens, recipe.run.seed
            ),
            optimizer=optimizer,
            schedule=schedule,
            total_steps=steps * minibatches,
            objective=build_objective(recipe.algorithm),
            temperature=rollout.temperature,
            max_grad_norm=recipe.learner.optimizer.max_grad_norm,
            token_budget=recipe.learner.token_budget,
            max_skipped_in_a_row=None if looks_at_non_finite else MAX_SKIPPED_IN_A_ROW,
        )

    learner, state = restore(start, make_learner)
    rolling = build_rollout(recipe, task, lambda: learner.model)
    if start.record is not None:
        rolling.agent.brancher.restore(state.branching)
    run = RlRun(
        recipe=recipe,
        console=console,
        folder=folder,
        loop=loop,
        rollout=rolling,
        learning=build_learning(recipe, learner, minibatches),
        saver=begin_run(folder, recipe, start, state, learner, steps, manifest),
        guard=guard,
        total_steps=steps,
        is_new=start.record is None,
    )
    # Now that the engine's slots and a reference model have their memory.
    prepare_rows(
        learner.model,
        largest_row(recipe),
        console,
        learner.optimizers.missing_bytes(),
    )
    return run, state
