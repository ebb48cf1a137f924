"""Builds training on files of examples from recipes and runs it: SFT and DPO."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ramify.assemble.dev_evaluation import DevTask, open_dev_task
from ramify.assemble.model import build_tokenizer, head_rows
from ramify.assemble.tools import show_tools
from ramify.assemble.training import training_setup
from ramify.assemble.worker import WorkerPlan
from ramify.chat.renderers import renderer_for
from ramify.config.other_runs import dialect_notes
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.sizes import largest_row, longest_sequence, note_long_warmup, num_steps, refuse_large_steps
from ramify.data.order import ProblemOrder
from ramify.data.prompts import instructions_place, read_prompt_texts
from ramify.data.sources import data_files, named
from ramify.learner.parallel import Ranks
from ramify.learner.update import Learner
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.runs.manifest import data_sha256
from ramify.runs.recorder import open_recorder
from ramify.runs.resume import Start, begin_run, make_manifest, restore, starting_point
from ramify.runs.run_folder import RunFolder, claim_run_folder
from ramify.runs.state import LoopState
from ramify.runs.trained_prompts import TrainingStage, prompt_notes, training_stage
from ramify.sampler.task import ShownTools
from ramify.train.examples import ExampleReader, RenderedExample, RowRenderer
from ramify.train.row_memory import prepare_rows
from ramify.train.supervised import SupervisedRun, SupervisedTask, dpo_task, sft_task, train_on_examples

_LARGE_FILE = 10_000_000
"""Bytes of a file that takes seconds to read."""


def run_sft(
    recipe: SftRecipe,
    console: RunConsole,
    ranks: Ranks,
    *,
    layout: Layout = GATHERED_ONCE,
    resume: bool = False,
    max_steps: int | None = None,
) -> Path:
    """Train on demonstrations to the end of the recipe, or to `max_steps`; returns the last checkpoint.

    Args:
        recipe: What to run.
        console: Shows the progress.
        ranks: The processes that compute.
        layout: How weights lie that are split over them.
        resume: Continue from the last checkpoint.
        max_steps: Stop after this many steps of the run.

    Raises:
        UserError: The data are wrong, the model does not fit the recipe, or the run cannot be resumed.
        RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
    """
    return run_examples(recipe, console, sft_task, ranks, layout, resume=resume, max_steps=max_steps)


def run_dpo(
    recipe: DpoRecipe,
    console: RunConsole,
    ranks: Ranks,
    *,
    layout: Layout = GATHERED_ONCE,
    resume: bool = False,
    max_steps: int | None = None,
) -> Path:
    """Train on preference pairs; arguments and errors as for `run_sft`."""
    task = partial(dpo_task, recipe.learner.preference_loss)
    return run_examples(recipe, console, task, ranks, layout, resume=resume, max_steps=max_steps)


def open_examples(
    recipe: SftRecipe | DpoRecipe, tools: ShownTools, note: Callable[[str], None]
) -> tuple[RowRenderer, ExampleReader]:
    """Read the tokenizer; returns the renderer of the examples and the reader that goes over them.

    Raises:
        UserError: The tokenizer or its chat template cannot be used.
    """
    tokenizer = build_tokenizer(recipe.model.folder, note)
    renderer = renderer_for(recipe.model.dialect, tokenizer)
    renderer.check_tools(tools.specs)
    rows = RowRenderer(renderer, tools.specs)
    texts = read_prompt_texts("data.instructions", recipe.data.instructions, renderer, recipe.model.dialect)
    reader = ExampleReader(
        recipe.data,
        rows,
        note,
        texts=texts,
        pairs=isinstance(recipe, DpoRecipe),
        may_end_in_call=recipe.environment is not None,
        num_ids=head_rows(recipe.model.folder) or tokenizer.vocab_size,
    )
    return rows, reader


def run_examples(
    recipe: SftRecipe | DpoRecipe,
    console: RunConsole,
    make_task: Callable[[RowRenderer, Sequence[RenderedExample]], SupervisedTask],
    ranks: Ranks,
    layout: Layout = GATHERED_ONCE,
    *,
    resume: bool = False,
    max_steps: int | None = None,
) -> Path:
    """Train on the task that `make_task` makes of the examples; other arguments and errors as for `run_sft`."""
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    tools = show_tools(recipe.tools, recipe.environment)
    setup = training_setup(recipe)
    with claim_run_folder(recipe.run.dir, setup.recipe, resume) as folder:
        start = starting_point(folder, setup, console)
        own: dict[str, Any] = {"tools": dict(tools.identities)}
        if (text_file := instructions_place(recipe.data.instructions)) is not None:
            own["instructions"] = data_sha256(text_file)
        dev = open_dev_task(recipe, console)
        if dev is not None:
            own |= dev.made_from
        # Who opens the tools notes the same.
        for note in (*tools.notes, *dialect_notes(recipe.model)) if dev is None else ():
            console.note(note)
        manifest = make_manifest(recipe.model, recipe.data.train, start.tokenizer, own)
        folder.check_manifest(setup.recipe, manifest, console.note)
        rows, reader = open_examples(recipe, tools, console.note)
        size = sum(path.stat().st_size for path in data_files(recipe.data.train))
        if size >= _LARGE_FILE:
            console.note(f"reading {named(recipe.data.train)}, {size / 1e6:,.0f} MB")
        examples = tuple(reader)
        reader.require_usable()
        model, problems = recipe.model, [example.problem for example in examples]
        names = [spec.name for spec in tools.specs]
        for note in (*reader.notes, *prompt_notes(model.path, model.folder, problems, names)):
            console.note(note)
        stage = training_stage(recipe.command, model.dialect, names, problems, model.folder)
        task = make_task(rows, examples)
        run, state = _build(recipe, console, folder, start, manifest, task, stage, dev, ranks, layout)
        with run.recorder.loggers:
            return train_on_examples(run, state, max_steps)


def _build(
    recipe: SftRecipe | DpoRecipe,
    console: RunConsole,
    folder: RunFolder,
    start: Start,
    manifest: Mapping[str, Any],
    task: SupervisedTask,
    stage: TrainingStage,
    dev: DevTask | None,
    ranks: Ranks,
    layout: Layout,
) -> tuple[SupervisedRun, LoopState]:
    batch = recipe.learner.batch_size
    refuse_large_steps("learner.batch_size", batch, task.num_examples)
    total = num_steps(recipe.run, recipe.data.epochs, task.num_examples, batch)
    for note in note_long_warmup(recipe.learner.optimizer, total):
        console.note(note)

    optimizer = recipe.learner.optimizer
    plan = WorkerPlan(
        model=recipe.model,
        source=start.source,
        context_tokens=longest_sequence(recipe),
        seed=recipe.run.seed,
        optimizer=optimizer,
        with_reference=task.with_reference,
        copies=recipe.learner.copies,
        layout=layout,
        threads=recipe.run.threads,
        deterministic=recipe.run.deterministic,
    )

    def make_learner() -> Learner:
        ranks.build(plan)
        return Learner(
            ranks,
            schedule=optimizer,
            total_steps=total,
            objective=task.objective,
            temperature=1.0,
            max_grad_norm=optimizer.max_grad_norm,
            token_budget=recipe.learner.token_budget,
        )

    learner, state = restore(start, make_learner)
    update = task.make_update(learner)
    setup = training_setup(recipe)
    saver = begin_run(folder, setup, start, state, learner, total, manifest, stage)
    recorder = open_recorder(saver, setup.recipe, recipe.log, console.note)
    evaluation = None if dev is None else dev.build(learner, plan, total, recorder, console)
    # Now that an engine's slots and a reference model have their memory.
    prepare_rows(learner, largest_row(recipe), recipe.data.max_tokens, console)
    run = SupervisedRun(
        task=task,
        console=console,
        recorder=recorder,
        update=update,
        order=ProblemOrder(task.num_examples, recipe.run.seed),
        batch_size=batch,
        saver=saver,
        total_steps=total,
        evaluation=evaluation,
    )
    return run, state
