"""The training loop for files of examples, shuffled anew each epoch, and its two kinds.

Demonstrations (SFT) are trees with one leaf; preference pairs (direct preference optimization) are trees with two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ramify.algos.dpo import PREFERENCE, DpoLoss, PreferenceLoss, pair, preferred
from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, demonstrated
from ramify.core.errors import RunInterruptedError
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree, TreeKey
from ramify.data.order import ProblemOrder
from ramify.learner.learning import AnnotationRequest, annotate
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.obs.console import RunConsole
from ramify.obs.metrics import finite
from ramify.runs.page import write_run_page
from ramify.runs.recorder import Recorder
from ramify.runs.state import LoopState, Saver
from ramify.runtime.agent_loop import StopOnSignal
from ramify.sampler.sampler import sampling
from ramify.train.examples import RenderedExample, RowRenderer
from ramify.train.loop import TrainingEvaluation, interrupted, run_steps

Update: TypeAlias = Callable[[Sequence[int], int], UpdateReport]
"""Trains on the examples with these indices; the second argument is the step."""


@dataclass(frozen=True, slots=True)
class SupervisedTask:
    """What distinguishes one kind of training on examples from another.

    Attributes:
        title: Name of the phase on the console.
        num_examples: Number of examples.
        objective: What is minimised.
        make_update: Given the learner, returns the function that takes a step.
        metrics: Metrics of the updates' reports, besides those that all kinds have.
        with_reference: True if the loss needs a reference model.
    """

    title: str
    num_examples: int
    objective: Objective
    make_update: Callable[[Learner], Update]
    metrics: Callable[[UpdateReport], Mapping[str, float]]
    with_reference: bool = False


@dataclass(frozen=True, slots=True)
class SupervisedRun:
    """All parts of a run on examples.

    Attributes:
        task: Kind of training, with its examples.
        console: Shows the progress.
        recorder: Records the steps, and has loggers follow them.
        update: Takes a step of the learner.
        order: The order of the examples.
        batch_size: Examples of a step.
        saver: Writes checkpoints.
        total_steps: Steps of the whole run.
        evaluation: What is evaluated during training, if anything is.
    """

    task: SupervisedTask
    console: RunConsole
    recorder: Recorder
    update: Update
    order: ProblemOrder
    batch_size: int
    saver: Saver
    total_steps: int
    evaluation: TrainingEvaluation | None


def train_on_examples(run: SupervisedRun, state: LoopState, max_steps: int | None = None) -> Path:
    """Train from `state` to the end of the run, or to `max_steps`; returns the last checkpoint.

    Raises:
        TrainingError: Training cannot go on; the message says why.
        RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
    """
    last, first = run.total_steps if max_steps is None else min(run.total_steps, max_steps), state.step
    outcomes: set[str] = set()
    trained: LoopState | None = None
    try:
        with (
            run.saver.settled(),
            _stopping(run.evaluation) as stop,
            run.console.phase(run.task.title, last, first) as phase,
        ):

            def take_step(state: LoopState) -> LoopState:
                indices, cursor = run.order.take(state.cursor, run.batch_size)
                report = run.update(indices, state.step)
                outcomes.add(report.outcome)
                # The losses of training rank checkpoints only where no evaluation does.
                state = state.after_step(cursor, None if run.evaluation else finite(-report.loss))
                own = {name: finite(value) for name, value in run.task.metrics(report).items()}
                run.recorder.step(state.step, step_metrics(report) | own)
                phase.advance(loss=report.loss)
                return state

            # The engine of its evaluations computes in this process.
            trained = run_steps(run.saver, run.evaluation, state, last, stop, take_step, lambda: None)
    except RunInterruptedError as stopped:
        if trained is None:
            raise
        # It came behind the last step, while the sampler of its evaluations was closed.
        raise interrupted(stopped, run.saver.save(trained)) from None
    state = trained
    if best := run.saver.best_note(state):
        run.recorder.loggers.note(best)
    if state.step > first and "stepped" not in outcomes:
        run.recorder.loggers.note(
            "no optimizer step changed the weights: every loss or gradient was not finite (see metrics.jsonl); lower "
            "learner.optimizer.rate or check the data"
        )
    saved = run.saver.save(state)
    write_run_page(run.recorder.folder.root, run.console.note)
    return saved


@contextmanager
def _stopping(evaluation: TrainingEvaluation | None) -> Iterator[StopOnSignal]:
    """Stop on signals while the block runs; with an evaluation, serve its sampler and close it at the end."""
    if evaluation is None:
        with StopOnSignal() as stop:
            yield stop
    else:
        with sampling(evaluation.sampler, lambda: evaluation.sampler) as session:
            yield session.stop


def step_metrics(report: UpdateReport) -> dict[str, float | None]:
    """Return the metrics that every kind of example has; None where a value is not finite."""
    return {
        "loss": finite(report.loss),
        "grad_norm": finite(report.grad_norm),
        "lr_factor": report.lr_factor,
        "tokens/written": float(report.num_written),
        "tokens/unique": float(report.num_tokens - report.num_repeated),
    }


def sft_task(rows: RowRenderer, demonstrations: Sequence[RenderedExample]) -> SupervisedTask:
    """Return the task of learning from demonstrations: a tree with one leaf each."""

    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            trees = [
                rows.trees(demonstrations[index], TreeKey(step, slot)) for slot, index in enumerate(indices)
            ]
            return learner.update([demonstrated(tree) for (tree,) in trees])

        return update

    return SupervisedTask(
        title="SFT",
        num_examples=len(demonstrations),
        objective=Objective(NegativeLogLikelihood(), weighting=SUPERVISED),
        make_update=make_update,
        metrics=lambda _: {},
    )


def dpo_task(loss: PreferenceLoss, rows: RowRenderer, pairs: Sequence[RenderedExample]) -> SupervisedTask:
    """Return the task of learning from preference pairs: a tree with two leaves each."""
    with_reference = isinstance(loss, DpoLoss)

    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            sides = [rows.trees(pairs[index], TreeKey(step, slot)) for slot, index in enumerate(indices)]
            trees = [pair(chosen, rejected) for chosen, rejected in sides]
            return prefer(learner, trees, with_reference)

        return update

    return SupervisedTask(
        title="DPO",
        num_examples=len(pairs),
        objective=Objective(loss),
        make_update=make_update,
        metrics=lambda report: report.metrics,
        # The reference is the recipe's model, not the checkpoint that a resumed run starts from.
        with_reference=with_reference,
    )


def prefer(learner: Learner, trees: Sequence[Tree], with_reference: bool = True) -> UpdateReport:
    """Take one optimizer step on the mean loss of the pairs, after one pass of the reference model if the loss needs it."""
    scored = [ScoredTree(tree, PREFERENCE) for tree in trees]
    pairs = annotate(learner, scored, AnnotationRequest(ref_logprobs=with_reference), temperature=1.0)
    return learner.update([preferred(pair) for pair in pairs])
