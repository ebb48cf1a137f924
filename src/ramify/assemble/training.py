"""Builds RL runs from recipes and runs them: `ramify train`, and `ramify rollout`, which grows the trees of the first step."""

import math
from pathlib import Path
from typing import Any

from ramify.assemble.algorithm import build_learning, build_objective
from ramify.assemble.dev_evaluation import read_dev_problems, share_agent
from ramify.assemble.model import build_model
from ramify.assemble.problems import tool_names
from ramify.assemble.task import build_sampler, build_task, group_size, script_identity, task_identity
from ramify.assemble.worker import WorkerPlan, build_engine_model
from ramify.config.other_runs import record_of
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import largest_row, note_long_warmup, num_steps, refuse_large_steps
from ramify.core.messages import Problem
from ramify.data.order import ProblemOrder
from ramify.learner.guard import Guard
from ramify.learner.parallel import Ranks
from ramify.learner.update import MAX_SKIPPED_IN_A_ROW, Learner
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.runs.manifest import problems_sha256
from ramify.runs.recorder import open_recorder
from ramify.runs.resume import Start, TrainingSetup, begin_run, make_manifest, restore, starting_point
from ramify.runs.run_folder import ROLLOUT, RunFolder, claim_run_folder
from ramify.runs.state import LoopState
from ramify.runs.trained_prompts import TrainingStage, training_stage
from ramify.sampler.memory_phases import MemoryPhases
from ramify.sampler.publisher import build_publisher
from ramify.sampler.sampler import closed_on_error
from ramify.sampler.task import Task
from ramify.train.loop import TrainingEvaluation
from ramify.train.rl import run_to_end
from ramify.train.rollout import Place, first_step, grow_rollout, recorded_start
from ramify.train.step import RlRun


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
        UserError: The recipe, the data, the machine or the run folder is wrong, or every problem of a new run's first step
            failed.
        RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot continue; the message says why.
    """
    with claim_run_folder(recipe.run.dir, record_of(recipe), resume) as folder:
        run, state = build_rl(recipe, console, folder, ranks, layout)
        with run.recorder.loggers:
            return run_to_end(run, state, max_steps)


def run_rollout(
    recipe: TrainRecipe, console: RunConsole, num_problems: int | None = None, start: Place | None = None
) -> dict[str, float]:
    """Grow the trees of a run's first step and write `trees/` and `timing/`, without training; returns their metrics.

    If `num_problems` is None, it is `rollout.problems_per_step`. With `start`, a single tree is grown, which continues from
    that recorded node.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong, or every problem failed.
        RunInterruptedError: Ctrl-C or SIGTERM; nothing was written.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    with ROLLOUT.claim(recipe.run.dir, resume=False):
        task = build_task(recipe, console)
        with closed_on_error(task):
            # The requests before the sampler: a mistake in `start` is reported before the engine starts servers.
            if start is None:
                count = num_problems or recipe.rollout.problems_per_step
                requests = first_step(task.problems, recipe.run.seed, count)
            else:
                requests = (recorded_start(start, task.renderer.decode),)
            sampler = build_sampler(
                recipe, task, lambda: build_model(recipe.model, task.context_tokens), console
            )
        return grow_rollout(sampler, requests, RunFolder(recipe.run.dir), record_of(recipe), console)


def training_setup(recipe: TrainRecipe | SftRecipe) -> TrainingSetup:
    """Return the parts of a recipe that decide where its run starts and what it saves."""
    return TrainingSetup(record_of(recipe), recipe.run, recipe.model)


def manifest_of(recipe: TrainRecipe, task: Task, tokenizer: str) -> dict[str, Any]:
    """Return the manifest of a training run; `tokenizer` is the fingerprint of the model's tokenizer.

    Raises:
        ConfigError: A user-defined function cannot be loaded.
        DataError: A file cannot be read.
    """
    tools = dict(task.toolbox.identities)
    # The sandbox level goes into `made_with`, which `--resume` does not compare: a run may continue on another machine.
    level = {"sandbox": tools.pop("python")} if "python" in tools else {}
    own = {
        **task_identity(task),
        "tools": tools,
        "rewards": dict(task.reward.identities),
        "script": script_identity(recipe.engine),
    }
    if recipe.functions:
        own["functions"] = {key: part.load().loaded.sha256 for key, part in recipe.functions.items()}
    manifest = make_manifest(recipe.model, recipe.data.train, tokenizer, own)
    return {**manifest, "made_with": [{**manifest["made_with"][-1], **level}]}


def _stage_of(recipe: TrainRecipe, task: Task) -> TrainingStage:
    """Return what trained_prompts.json will say about this run: the prompts and the tools that the model was trained with."""
    names = tool_names(task.toolbox.shown.environments or {"": task.toolbox.specs})
    return training_stage(recipe.command, recipe.model.dialect, names, task.problems, recipe.model.folder)


def build_rl(
    recipe: TrainRecipe,
    console: RunConsole,
    folder: RunFolder,
    ranks: Ranks,
    layout: Layout,
) -> tuple[RlRun, LoopState]:
    """Build every part from the recipe, and the state to start from.

    Raises:
        UserError: The recipe, the data, the machine or the checkpoint is wrong.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    start = starting_point(folder, training_setup(recipe), console)
    task = build_task(recipe, console)
    with closed_on_error(task):
        return _build_run(task, recipe, console, folder, ranks, layout, start)


def _build_run(
    task: Task,
    recipe: TrainRecipe,
    console: RunConsole,
    folder: RunFolder,
    ranks: Ranks,
    layout: Layout,
    start: Start,
) -> tuple[RlRun, LoopState]:
    """Build the rest of the run on its task: checks and notes, learner, engine, saver, publisher, evaluation."""
    setup = training_setup(recipe)
    manifest = manifest_of(recipe, task, start.tokenizer)
    dev: tuple[Problem, ...] = ()
    if recipe.eval is not None:
        dev, notes = read_dev_problems(recipe, recipe.eval, task.renderer, task.toolbox.specs, task.problems)
        for note in notes:
            console.note(note)
        manifest["made_from"]["eval.test"] = problems_sha256(dev)
    folder.check_manifest(setup.recipe, manifest, console.note)
    rollout = recipe.rollout
    refuse_large_steps("rollout.problems_per_step", rollout.problems_per_step, len(task.problems))
    steps = num_steps(recipe.run, recipe.data.epochs, len(task.problems), rollout.problems_per_step)
    guard = Guard(recipe.guard, rollout.max_tokens) if recipe.guard.enabled else None
    guard_counts_non_finite = guard is not None and recipe.guard.max_non_finite is not None
    minibatches = math.ceil(rollout.problems_per_step / recipe.learner.problems_per_minibatch)
    idle_settings = recipe.algorithm.note_idle(
        rollout.problems_per_step,
        recipe.learner.problems_per_minibatch,
        recipe.engine.computes_here,
    )
    functions = tuple(
        f"{key}: {part.function} of {part.path}, sha256 {manifest['made_from']['functions'][key][:16]}"
        for key, part in recipe.functions.items()
    )
    for note in (
        *functions,
        *idle_settings,
        *note_long_warmup(recipe.learner.optimizer, steps * minibatches),
    ):
        console.note(note)

    optimizer = recipe.learner.optimizer
    plan = WorkerPlan(
        model=recipe.model,
        source=start.source,
        context_tokens=task.context_tokens,
        seed=recipe.run.seed,
        optimizer=optimizer,
        with_reference=recipe.algorithm.kl is not None,
        copies=recipe.learner.copies,
        layout=layout,
        threads=recipe.run.threads,
        deterministic=recipe.run.deterministic,
    )

    def make_learner() -> Learner:
        # Every rank loads the model here, and keeps its shard.
        ranks.build(plan)
        return Learner(
            ranks,
            schedule=optimizer,
            total_steps=steps * minibatches,
            objective=build_objective(recipe.algorithm),
            temperature=rollout.temperature,
            max_grad_norm=optimizer.max_grad_norm,
            token_budget=recipe.learner.token_budget,
            # Where the guard counts non-finite steps, it decides when the run ends.
            max_skipped_in_a_row=None if guard_counts_non_finite else MAX_SKIPPED_IN_A_ROW,
        )

    learner, state = restore(start, make_learner)
    # After the learner, whose weights a local engine reads in place.
    engine_model = build_engine_model(recipe.engine, learner.model, plan.engine_model)
    sampler = build_sampler(recipe, task, lambda: engine_model, console, hands_over=True)
    with closed_on_error(sampler.agent.engine):
        if start.record is not None:
            sampler.agent.brancher.restore(state.branching)
        saver = begin_run(folder, setup, start, state, learner, steps, manifest, _stage_of(recipe, task))
        recorder = open_recorder(saver, setup.recipe, recipe.log, console.note)
        dtype = recipe.engine.served_dtype or recipe.model.dtype
        publisher = build_publisher(sampler, learner, engine_model, dtype)
        evaluation = None
        if recipe.eval is not None:
            evaluation = TrainingEvaluation(
                config=recipe.eval,
                sampler=share_agent(recipe, recipe.eval, sampler, dev),
                publisher=publisher,
                group_size=group_size(recipe.run, recipe.engine),
                total_steps=steps,
                folder=folder,
                console=console,
                loggers=recorder.loggers,
            )
        run = RlRun(
            console=console,
            folder=folder,
            recorder=recorder,
            sampler=sampler,
            order=ProblemOrder(len(task.problems), recipe.run.seed),
            publisher=publisher,
            phases=MemoryPhases(sampler.agent.engine, ranks),
            learning=build_learning(recipe, learner, minibatches),
            saver=saver,
            guard=guard,
            total_steps=steps,
            problems_per_step=rollout.problems_per_step,
            row_tokens=largest_row(recipe),
            dynamic_sampling=rollout.dynamic_sampling,
            preflight=recipe.preflight,
            evaluation=evaluation,
            is_new=start.record is None,
        )
    return run, state
