"""The training loop for files of examples (demonstrations, preference pairs), shuffled anew each epoch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.algos.losses import Objective
from ramify.assemble.algorithm import build_optimizer
from ramify.assemble.tools import show_tools
from ramify.assemble.worker import WorkerPlan
from ramify.config.other_runs import dialect_notes
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.sizes import largest_row, note_long_warmup, num_steps, refuse_large_steps
from ramify.core.errors import Interrupted
from ramify.data.order import ProblemOrder
from ramify.learner.parallel import Ranks
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.memory_plan import Layout
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.metrics import finite
from ramify.runtime.agent_loop import StopOnSignal
from ramify.train.examples import Rendered, RowRenderers, open_examples
from ramify.train.manifest import make_manifest
from ramify.train.resume import Start, begin_run, restore, starting_point
from ramify.train.row_memory import prepare_rows
from ramify.train.run_folder import RunFolder, claim_run_folder

_LARGE_FILE = 10_000_000
"""Bytes of a file that takes seconds to read."""

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
        with_reference: Whether the loss needs a reference model.
    """

    title: str
    num_examples: int
    objective: Objective
    make_update: Callable[[Learner], Update]
    metrics: Callable[[UpdateReport], Mapping[str, float]]
    with_reference: bool = False


def train_on_examples(
    recipe: SftRecipe | DpoRecipe,
    console: RunConsole,
    make_task: Callable[[RowRenderers, Sequence[Rendered]], SupervisedTask],
    ranks: Ranks,
    layout: Layout,
    *,
    resume: bool,
    max_steps: int | None,
) -> Path:
    """Train to the end of the recipe, or to `max_steps`; returns the last checkpoint.

    Args:
        recipe: What to run.
        console: Shows the progress.
        make_task: Makes the task from the examples and their renderers.
        ranks: The processes that compute.
        layout: How weights lie that are split over them.
        resume: Continue from the last checkpoint.
        max_steps: Stop after this many steps of the run.

    Raises:
        UserError: The data are wrong, the model does not fit the recipe, or the run cannot be resumed.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    tools = show_tools(recipe.tools, recipe.environment)
    for note in (*tools.notes, *dialect_notes(recipe.model)):
        console.note(note)
    with claim_run_folder(recipe.run.dir, recipe, resume) as folder:
        start = starting_point(folder, recipe, console)
        own = {"tools": dict(tools.identities)}
        manifest = make_manifest(recipe.model, recipe.data.train, start.tokenizer, own)
        folder.take_up(recipe, manifest, console.note)
        renderers, reader = open_examples(recipe, tools, console.note)
        size = recipe.data.train.stat().st_size
        if size >= _LARGE_FILE:
            console.note(f"reading {recipe.data.train}, {size / 1e6:,.0f} MB")
        examples = tuple(reader)
        reader.require_usable()
        for note in reader.notes:
            console.note(note)
        task = make_task(renderers, examples)
        return _train(recipe, console, folder, start, manifest, task, ranks, layout, max_steps)


def _train(
    recipe: SftRecipe | DpoRecipe,
    console: RunConsole,
    folder: RunFolder,
    start: Start,
    manifest: Mapping[str, Any],
    task: SupervisedTask,
    ranks: Ranks,
    layout: Layout,
    max_steps: int | None,
) -> Path:
    order = ProblemOrder(task.num_examples, recipe.run.seed)
    batch = recipe.learner.batch_size
    refuse_large_steps("learner.batch_size", batch, task.num_examples)
    total = num_steps(recipe.run, recipe.data.epochs, task.num_examples, batch)
    for note in note_long_warmup(recipe.learner.optimizer, total):
        console.note(note)

    def make_learner() -> Learner:
        optimizer, schedule = build_optimizer(recipe.learner.optimizer)
        ranks.build(
            WorkerPlan(
                model=recipe.model,
                source=start.source,
                context_tokens=recipe.data.max_tokens,
                seed=recipe.run.seed,
                optimizer=optimizer,
                with_reference=task.with_reference,
                copies=recipe.learner.copies,
                layout=layout,
                threads=recipe.run.threads,
                deterministic=recipe.run.deterministic,
            )
        )
        return Learner(
            ranks,
            schedule=schedule,
            total_steps=total,
            objective=task.objective,
            temperature=1.0,
            max_grad_norm=recipe.learner.optimizer.max_grad_norm,
            token_budget=recipe.learner.token_budget,
        )

    learner, state = restore(start, make_learner)
    update = task.make_update(learner)
    # Now that a reference model has its memory.
    prepare_rows(learner, largest_row(recipe), recipe.data.max_tokens, console)
    saver = begin_run(folder, recipe, start, state, learner, total, manifest)
    metrics = folder.metrics
    last = total if max_steps is None else min(total, max_steps)
    stepped = state.step >= last
    with StopOnSignal() as stop, console.phase(task.title, last, state.step) as phase:
        try:
            while state.step < last:
                stop.check()
                indices, cursor = order.take(state.cursor, batch)
                report = update(indices, state.step)
                stepped = stepped or report.outcome == "stepped"
                state = state.after_step(cursor, finite(-report.loss))
                own = {name: finite(value) for name, value in task.metrics(report).items()}
                saver.settle()
                metrics.append(state.step, step_metrics(report) | own)
                phase.advance(loss=report.loss)
                state = saver.keep(state)
        except Interrupted as stopped:
            saved = saver.save(state)
            raise Interrupted(stopped.number, f"state saved in {saved}, go on with --resume") from None
    if best := saver.best_note(state):
        console.note(best)
    if not stepped:
        console.note(
            "no optimizer step changed the weights: every loss or gradient was not finite (see metrics.jsonl); lower "
            "learner.optimizer.rate or check the data"
        )
    return saver.save(state)


def step_metrics(report: UpdateReport) -> dict[str, float | None]:
    """The metrics that every kind of example has; None where a value is not finite."""
    return {
        "loss": finite(report.loss),
        "grad_norm": finite(report.grad_norm),
        "lr_factor": report.lr_factor,
        "tokens/written": float(report.num_written),
        "tokens/unique": float(report.num_tokens - report.num_repeated),
    }
