"""The loop of every training run: steps with evaluations between them, and a state that is saved when a stop is asked for."""

from collections.abc import Callable

from ramify.core.errors import RunInterruptedError
from ramify.runs.state import LoopState, Saver
from ramify.runtime.agent_loop import StopOnSignal
from ramify.train.evaluations import TrainingEvaluation


def run_steps(
    saver: Saver,
    evaluation: TrainingEvaluation | None,
    state: LoopState,
    last: int,
    stop: StopOnSignal,
    take_step: Callable[[LoopState], LoopState],
) -> LoopState:
    """Take steps up to and including `last`, and evaluate before each of them and after the last where it is due.

    Raises:
        TrainingError: Training cannot go on.
        RunInterruptedError: A stop was asked for; the state was saved.
    """
    if evaluation is not None:
        evaluation.note_lost(state)
    try:
        while True:
            stop.check()
            if evaluation is not None and evaluation.is_due(state.step):
                state = evaluation.evaluate(state, stop)
            if state.step >= last or (evaluation is not None and evaluation.should_stop()):
                break
            state = saver.keep(take_step(state))
    except RunInterruptedError as stopped:
        saved = saver.save(state)
        raise RunInterruptedError(stopped.number, f"state saved in {saved}, go on with --resume") from None
    # The scores of steps say nothing of the checkpoint behind the last one; an evaluation does.
    return state if evaluation is None else state.judged(saver.run.keep_best)
