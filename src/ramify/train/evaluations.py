"""Evaluations during training: every few steps, with the sampler's own engine; they rank checkpoints and can end the run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.core.errors import DataError
from ramify.eval.evaluation import Evaluation
from ramify.eval.live import evaluate
from ramify.obs.console import RunConsole
from ramify.obs.metrics import MetricsRow, read_metrics
from ramify.obs.trace import TracedTree, write_trees
from ramify.runs.recorder import Loggers
from ramify.runs.run_folder import RunFolder
from ramify.runs.state import LoopState
from ramify.sampler.sampler import Sampler
from ramify.sampler.session import SamplingSession
from ramify.train.configs import EvaluationConfig

SCORE = "eval/pass@1"
"""The metric that ranks checkpoints: the share of attempts that are right."""


@dataclass(frozen=True, slots=True)
class TrainingEvaluation:
    """An agent that shares the training sampler's engine, and its problems.

    Attributes:
        config: When to evaluate, and when to stop.
        sampler: Makes the attempts; its task holds the problems of `eval.test`.
        group_size: Attempts that must be made together; None: each can be made alone.
    """

    config: EvaluationConfig
    sampler: Sampler
    group_size: int | None

    def is_due(self, step: int, total_steps: int) -> bool:
        """Return True if the weights after `step` are evaluated."""
        if step == 0:
            return self.config.at_start
        return step % self.config.every == 0 or step == total_steps

    def evaluate(
        self,
        state: LoopState,
        session: SamplingSession[Sampler],
        folder: RunFolder,
        console: RunConsole,
        loggers: Loggers,
    ) -> LoopState:
        """Evaluate the weights of `state`, which the engine has, unless the folder holds the result; returns the state with it.

        The score counts for the checkpoint of these weights, if there is one.

        Raises:
            DataError: No problem worked.
            RunInterruptedError: A stop was asked for; nothing of this evaluation was recorded.
        """
        row = next((row for row in read_evaluations(folder) if row["step"] == state.step), None)
        if row is None:
            problems, attempts = self.sampler.task.problems, self.config.attempts
            with console.phase(f"evaluation at step {state.step}", len(problems) * attempts) as phase:
                work = evaluate(self.sampler, problems, attempts, phase, group_size=self.group_size)
                evaluation, trees = session.stop.run(work)
            if self.group_size is not None:
                # The rollout must find the engine's cache as a run without evaluations does: empty, at this version.
                session.stop.run(self.sampler.agent.engine.load_weights(state.step))
            self.sampler.scoring.require_success()
            row = evaluation_metrics(evaluation)
            write_trees(folder.evaluation(state.step), [TracedTree(s.tree, s.rewards) for s in trees])
            # Last: with its line an evaluation is done.
            folder.evaluations.append(state.step, row)
            # What a session before this one logged of the step itself stays.
            loggers.step(state.step, row, first_again=state.step + 1)
            interval = evaluation.pass_at(1)
            console.note(
                f"step {state.step}: {SCORE} {interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}] on "
                f"{len(problems)} problems"
            )
        if state.due != state.step:
            return state
        return replace(state, scores=(row[SCORE],))

    def should_stop(self, folder: RunFolder) -> bool:
        """Return True if `patience` evaluations in a row brought no better score than one before them."""
        patience = self.config.patience
        scores = [row[SCORE] or 0.0 for row in read_evaluations(folder)]
        if patience is None or not scores:
            return False
        return len(scores) - 1 - scores.index(max(scores)) >= patience


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
