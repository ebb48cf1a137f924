"""The loop of every training run: steps with evaluations between them, and a state that is saved when a stop is asked for.

An evaluation is made with an engine that has the run's weights; evaluations rank checkpoints and can end the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.core.errors import DataError, RunInterruptedError
from ramify.core.protocols import Publisher
from ramify.eval.evaluation import Evaluation
from ramify.eval.null_agents import null_line, null_scores
from ramify.eval.run import evaluate
from ramify.obs.console import RunConsole
from ramify.obs.metrics import MetricsRow, read_metrics
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import trace_files, write_indexed
from ramify.runs.recorder import Loggers
from ramify.runs.run_folder import SCORE, RunFolder
from ramify.runs.state import LoopState, Saver
from ramify.runtime.agent_loop import StopOnSignal
from ramify.sampler.sampler import Sampler
from ramify.train.configs import EvaluationConfig


@dataclass(frozen=True, slots=True)
class TrainingEvaluation:
    """An agent that computes with the weights of a run, and its problems.

    Attributes:
        config: When to evaluate, and when to stop.
        sampler: Makes the attempts; its task holds the problems of `eval.test`.
        publisher: Hands the learner's weights to its engine.
        group_size: Attempts that must be made together; None: each can be made alone.
        total_steps: Steps of the whole run.
        folder: Where the run is recorded.
        console: Shows the progress.
        loggers: Follow the run.
    """

    config: EvaluationConfig
    sampler: Sampler
    publisher: Publisher
    group_size: int | None
    total_steps: int
    folder: RunFolder
    console: RunConsole
    loggers: Loggers

    def is_due(self, step: int) -> bool:
        """Return True if the weights after `step` are evaluated."""
        if step == 0:
            return self.config.at_start
        return step % self.config.every == 0 or step == self.total_steps

    def evaluate(self, state: LoopState, stop: StopOnSignal) -> LoopState:
        """Publish the weights of `state` and evaluate them, unless the folder holds the result; returns the state with it.

        The score counts for the checkpoint of these weights, if there is one.

        Raises:
            DataError: No problem worked.
            RunInterruptedError: A stop was asked for; nothing of this evaluation was recorded.
        """
        stop.run(self.publisher.publish(state.step))
        row = next((row for row in read_evaluations(self.folder) if row["step"] == state.step), None)
        if row is None:
            row = self._measure(state.step, stop)
        return state if state.due != state.step else replace(state, scores=(row[SCORE],))

    def _measure(self, step: int, stop: StopOnSignal) -> MetricsRow:
        problems, attempts = self.sampler.task.problems, self.config.attempts
        failures = self.sampler.timing.failed_problems
        earlier = len(failures)
        with self.console.phase(f"evaluation at step {step}", len(problems) * attempts) as phase:
            work = evaluate(self.sampler, problems, attempts, phase, group_size=self.group_size)
            evaluation, trees = stop.run(work)
        self.sampler.timing.clear()
        if self.group_size is not None:
            # A rollout must find the engine's cache as a run without evaluations does: empty, at this version.
            stop.run(self.sampler.agent.engine.load_weights(step))
        self.sampler.scoring.require_success()
        if failed := failures[earlier:]:
            self.console.note(
                f"warning: step {step}: {len(failed)} of {len(trees)} attempts failed and count as wrong; the first: {failed[0]}"
            )
        row = evaluation_metrics(evaluation)
        if self.config.null and not read_evaluations(self.folder):
            row |= self._null_metrics(stop)
        write_indexed(self.folder.evaluation(step), [TracedTree(s.tree, s.rewards) for s in trees])
        # Last: with its line an evaluation is done.
        self.folder.evaluations.append(step, row)
        # What a session before this one logged of the step itself stays.
        self.loggers.step(step, row, {"eval/trees": trees}, first_again=step + 1)
        interval = evaluation.pass_at(1)
        self.console.note(
            f"step {step}: {SCORE} {interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}] on "
            f"{len(problems)} problems"
        )
        return row

    def _null_metrics(self, stop: StopOnSignal) -> dict[str, float | None]:
        task, agent = self.sampler.task, self.sampler.agent
        with self.console.phase("agents that know nothing", 3 * len(task.problems)) as phase:
            scores = stop.run(null_scores(task, agent.limits, agent.run_seed, phase))
        self.console.note(null_line(scores))
        return {f"eval/null/{name}": interval.value for name, interval in scores.items()}

    def note_lost(self, state: LoopState) -> None:
        """Note evaluations before the step of `state` that left a trace or a rank, but no line in `evals.jsonl`."""
        traced = {int(path.stem) for path in trace_files(self.folder.evaluation(0).parent)}
        ranked = {judged.step for judged in state.ranking}
        lines = {row["step"] for row in read_evaluations(self.folder)}
        # That of the step itself may have been cut off by a kill; it is done again.
        if lost := sorted(step for step in (traced | ranked) - lines if step < state.step):
            self.console.note(
                f"warning: {self.folder.root / 'evals.jsonl'} has no line for {len(lost)} evaluations, the first is of step "
                f"{lost[0]}: eval.patience does not count them. Restore it from a copy."
            )

    def should_stop(self) -> bool:
        """Return True, with a note, if `patience` evaluations in a row brought no better score than one before them."""
        patience = self.config.patience
        scores = [row[SCORE] or 0.0 for row in read_evaluations(self.folder)]
        if patience is None or not scores or len(scores) - 1 - scores.index(max(scores)) < patience:
            return False
        self.console.note(f"no better {SCORE} in {patience} evaluations: the run ends here")
        return True


def read_evaluations(folder: RunFolder) -> Sequence[MetricsRow]:
    """Return the lines of `evals.jsonl`, in order; none without the file.

    Raises:
        DataError: A line cannot be read.
    """
    path = folder.root / "evals.jsonl"
    rows = read_metrics(path) if path.exists() else ()
    for number, row in enumerate(rows, start=1):
        if row.get(SCORE) is None:
            raise DataError(
                f"{path} row {number}: expected a number {SCORE!r}. Restore the file from a copy, or delete this line."
            )
    return rows


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float | None]:
    """Return the metrics of an evaluation."""
    attempts = evaluation.attempts
    return {
        SCORE: evaluation.pass_at(1).value,
        "eval/answered": sum(bool(attempt.answer.strip()) for attempt in attempts) / len(attempts),
        "eval/reward": sum(attempt.reward for attempt in attempts) / len(attempts),
        "eval/calls": evaluation.calls_per_attempt,
        "eval/tokens": sum(attempt.tokens.written for attempt in attempts) / len(attempts),
    }


def run_steps(
    saver: Saver,
    evaluation: TrainingEvaluation | None,
    state: LoopState,
    last: int,
    stop: StopOnSignal,
    take_step: Callable[[LoopState], LoopState],
    take_memory: Callable[[], None],
) -> LoopState:
    """Take steps up to and including `last`, and evaluate before each of them and after the last where it is due.

    `take_memory` makes sure that the learner has the memory of its GPUs; it is called before a stopped run is saved.

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
        take_memory()
        raise interrupted(stopped, saver.save(state)) from None
    # The scores of steps say nothing of the checkpoint behind the last one; an evaluation does.
    return state if evaluation is None else state.judged(saver.run.keep_best)


def interrupted(stopped: RunInterruptedError, saved: Path) -> RunInterruptedError:
    """Return the error of a run that was stopped and whose state was saved."""
    return RunInterruptedError(stopped.number, f"state saved in {saved}, go on with --resume")
