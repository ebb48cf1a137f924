"""The training loop: publish the weights, grow and score trees, learn from them, record the step."""

from dataclasses import replace
from pathlib import Path

from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import Interrupted
from ramify.learner.parallel import Ranks
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.obs.console import Phase, RunConsole
from ramify.obs.tree_metrics import tree_metrics
from ramify.runtime.agent_loop import StopOnSignal, agent_loop
from ramify.sampler.batch import take_batch
from ramify.train.preflight import run_preflight
from ramify.train.rl_parts import RlRun, build_rl
from ramify.train.run_folder import claim_run_folder
from ramify.train.state import LoopState
from ramify.train.step import after_step, closing_notes, follow, learn, record, watched


def run_rl(
    recipe: TrainRecipe,
    console: RunConsole,
    ranks: Ranks,
    *,
    layout: Layout = GATHERED_ONCE,
    resume: bool = False,
    max_steps: int | None = None,
) -> Path:
    """Train to the end of the recipe on `ranks`; returns the last checkpoint.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong, or no problem of a new run worked.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot go on; the message says why.
    """
    with claim_run_folder(recipe.run.dir, recipe, resume) as folder:
        with agent_loop() as loop:
            run, state = build_rl(recipe, console, folder, loop, ranks, layout)
            loop.settle()
            last = run.total_steps if max_steps is None else min(run.total_steps, max_steps)
            try:
                with StopOnSignal(loop) as stop:
                    if run.is_new:
                        state = start_new(run, state, stop)
                    state = train(run, state, last, stop)
            finally:
                loop.run(run.sampler.close())
        for line in closing_notes(run):
            console.note(line)
        if note := run.saver.best_note(state):
            console.note(note)
        saved = run.saver.save(state)
        if run.is_new:
            run.sampler.scoring.require_success()
        return saved


def start_new(run: RlRun, state: LoopState, stop: StopOnSignal) -> LoopState:
    """Run the preflight, then save the checkpoint of step 0 that a guard can always fall back to.

    If the preflight refuses or a kill comes in between, there is no checkpoint, so the next start repeats all of this.

    Raises:
        UserError: The rewards never differ, or the engine's servers cannot be used.
        Interrupted: A stop was asked for.
    """
    if run.recipe.preflight.enabled:
        stop.run(run.publisher.publish(state.step))
        run_preflight(run.sampler, run.order, run.recipe.preflight, run.folder, run.console, run.loop, stop)
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
    stop.run(run.publisher.publish(state.step))
    batch = stop.run(take_batch(run.sampler, run.order, run.recipe.rollout, state.cursor, state.step, phase))
    stop.run(run.sampler.agent.engine.sleep())
    state, grown = watched(state, batch, tree_metrics(batch.trees))
    learned = learn(run, state, batch, grown)
    state, action = after_step(run, state, batch, grown, learned)
    record(run, state, batch, grown, learned, phase)
    return follow(run, state, learned.violation, action)
