"""The training loop: publish the weights, grow and score trees, learn from them, record the step.

Publishing gives the memory of shared GPUs to the engine's servers; `phases.to_learner` takes it back.
"""

from dataclasses import replace
from pathlib import Path

from ramify.chat.token_texts import copy_tokenizer
from ramify.core.errors import RunInterruptedError
from ramify.obs.console import Phase
from ramify.obs.tree_metrics import tree_metrics
from ramify.runs.page import write_run_page
from ramify.runs.state import LoopState
from ramify.sampler.batch import take_batch
from ramify.sampler.sampler import Sampler, SamplingSession, sampling
from ramify.train.loop import interrupted, run_steps
from ramify.train.preflight import run_preflight
from ramify.train.row_memory import prepare_rows
from ramify.train.step import (
    RlRun,
    after_step,
    apply_guard_action,
    closing_notes,
    learn,
    record,
    update_guard_state,
)


def run_to_end(run: RlRun, state: LoopState, max_steps: int | None = None) -> Path:
    """Train from `state` to the end of the run, or to `max_steps`; returns the last checkpoint. Closes the sampler.

    Raises:
        UserError: The preflight refuses the run, or no problem of a new run worked.
        RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot go on; the message says why.
    """
    last = run.total_steps if max_steps is None else min(run.total_steps, max_steps)
    trained: LoopState | None = None
    try:
        with run.saver.settled(), sampling(run.sampler, lambda: run.sampler) as session:
            # A run that is at its end already needs no server and no GPU for it.
            if state.step < last:
                prepare(run, session)
            elif run.evaluation is not None and run.evaluation.is_due(state.step):
                # Its hand-over would start servers; a stop in the middle would start them once more, to have them sleep.
                session.stop.run(run.phases.begin())
            if run.is_new:
                state = start_new(run, state, session)
            copy_tokenizer(run.sampler.task.renderer.tokenizer, run.folder.root)
            trained = train(run, state, last, session)
    except RunInterruptedError as stopped:
        if trained is None:
            raise
        # It came behind the last step, while the sampler was closed.
        raise interrupted(stopped, run.saver.save(trained)) from None
    state = trained
    for line in closing_notes(run):
        run.recorder.loggers.note(line)
    if note := run.saver.best_note(state):
        run.recorder.loggers.note(note)
    # `--max-steps` and a patience end a run between two checkpoints too.
    saved = run.saver.save(state)
    # After saving, so that the trees that show why stay with a checkpoint.
    if run.is_new:
        run.sampler.scoring.require_success()
    write_run_page(run.folder.root, run.console.note)
    return saved


def prepare(run: RlRun, session: SamplingSession[Sampler]) -> None:
    """Start servers that share the learner's GPUs and put them to sleep, then try the largest row beside them.

    Raises:
        UserError: A server does not come up, or the row does not fit.
        RunInterruptedError: A stop was asked for.
    """
    session.stop.run(run.phases.begin())
    context_tokens = run.sampler.task.context_tokens
    prepare_rows(run.learning.learner, run.row_tokens, context_tokens, run.console)


def start_new(run: RlRun, state: LoopState, session: SamplingSession[Sampler]) -> LoopState:
    """Run the preflight, then save the checkpoint of step 0 that a guard can always fall back to.

    If the preflight refuses or a kill comes in between, there is no checkpoint, so the next start repeats all of this.

    Raises:
        UserError: The rewards never differ, or the engine's servers cannot be used.
        RunInterruptedError: A stop was asked for.
    """
    if run.preflight.enabled:
        session.stop.run(run.publisher.publish(state.step))
        run_preflight(session, run.order, run.preflight, run.folder, run.console)
        session.stop.run(run.phases.to_learner())
    if run.guard is None:
        return state
    guarded = replace(state, guard=run.guard.start())
    return run.saver.keep(guarded) if run.guard.config.keep_good else guarded


def train(run: RlRun, state: LoopState, last: int, session: SamplingSession[Sampler]) -> LoopState:
    """Run steps up to and including `last`.

    Raises:
        RunInterruptedError: A stop was asked for; the state was saved.
    """
    with run.console.phase("RL", last, state.step) as phase:
        return run_steps(
            run.saver,
            run.evaluation,
            state,
            last,
            session.stop,
            lambda before: rl_step(run, before, session, phase),
            lambda: session.loop.run(run.phases.to_learner()),
        )


def rl_step(run: RlRun, state: LoopState, session: SamplingSession[Sampler], phase: Phase) -> LoopState:
    """Take one step of the run: from published weights and a batch of problems to updated weights and a written record.

    Raises:
        TrainingError: The guard stops the run.
    """
    stop = session.stop
    # An evaluation has published these weights already.
    if run.evaluation is None or not run.evaluation.is_due(state.step):
        stop.run(run.publisher.publish(state.step))
    size, dynamic = run.problems_per_step, run.dynamic_sampling
    batch = stop.run(take_batch(run.sampler, run.order, size, dynamic, state.cursor, state.step, phase))
    # Before credit already, which may take an annotation pass.
    stop.run(run.phases.to_learner())
    state, rollout_metrics = update_guard_state(state, batch, tree_metrics(batch.trees))
    outcome = learn(run, state, batch, rollout_metrics)
    state, action = after_step(run, state, batch, rollout_metrics, outcome)
    record(run, state, batch, rollout_metrics, outcome, session.loop.delays.take(), phase)
    # Last, since it may bring older weights back or end the run: by then the step is on the record.
    return apply_guard_action(run, state, outcome.violation, action)
