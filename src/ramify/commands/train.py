"""`ramify train`, `ramify sft` and `ramify dpo RECIPE.toml`: reinforcement learning, supervised training, pairs (DPO).

Like every command they import heavy modules only when they run, so that `--help` is quick. Under torchrun rank 0 runs the
command, and the other ranks compute what it tells them to.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import add_output, add_recipe, at_least_one, notes_of, open_console
from ramify.core.errors import ConfigError, MachineError, RunInterruptedError
from ramify.core.rank import Rank, launched
from ramify.files.user_code import load_object

if TYPE_CHECKING:
    from ramify.config.schema_examples import SftRecipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.learner.parallel import Ranks
    from ramify.modeling.memory_plan import Layout
    from ramify.obs.console import RunConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands' arguments."""
    add_recipe(parser)
    parser.add_argument("--max-steps", type=at_least_one, metavar="N", help="stop after step N of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in run.dir")
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import dry_run, require_dry_run
    from ramify.config.other_runs import record_of
    from ramify.runs.run_folder import TRAINING

    require_dry_run(options)
    if options.dry_run:
        if not launched(os.environ).number:
            recipe = _read(options)
            TRAINING.check(recipe.run.dir, options.resume, record_of(recipe))
            dry_run(recipe, options)
        return
    train_here(
        lambda: _read(options),
        open_console(options),
        resume=options.resume,
        max_steps=options.max_steps,
        secret=options.secret,
    )


def train_here(
    read: "Callable[[], TrainRecipe | SftRecipe]",
    console: "RunConsole",
    *,
    resume: bool,
    max_steps: int | None = None,
    secret: str | None = None,
) -> None:
    """Train a recipe, or under torchrun this rank's part of it.

    Args:
        read: Returns the checked recipe.
        console: Shows the progress.
        resume: Go on from the last checkpoint in run.dir.
        max_steps: Stop after this step of the run.
        secret: The run's secret, for ranks on several machines.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong.
        RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
        TrainingError: Training cannot go on; the message says why.
    """
    from ramify.commands.run_listing import record_run
    from ramify.config.other_runs import record_of
    from ramify.runs.run_folder import TRAINING

    rank = launched(os.environ)
    if rank.size > 1:
        # Torch's own log of waits that time out, which are ordinary here; it reads this when it is imported.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if rank.number:
        from ramify.assemble.worker import WorkerPlan
        from ramify.learner.parallel import serve

        sys.exit(serve(rank, lambda: _alike(read()), WorkerPlan.read, secret))
    recipe = read()
    if not rank.is_supervised:
        TRAINING.check(recipe.run.dir, resume, record_of(recipe))
    from ramify.learner.parallel import connect_ranks

    try:
        with connect_ranks(rank, _alike(recipe) if rank.size > 1 else {}, secret) as ranks:
            # Processes that torchrun started again go on with what those before them saved.
            resumes = resume or ranks.has_begun
            TRAINING.check(recipe.run.dir, resumes, record_of(recipe))
            path = _train(recipe, console, ranks, _layout(recipe, rank, console), resumes, max_steps)
    except RunInterruptedError as stopped:
        if not rank.is_supervised:
            raise
        # Any other status would have torchrun start the run again.
        console.note(f"{stopped}")
        return
    console.result(f"model written to {path}")
    record_run(console, recipe.run.dir, model=str(path))


def _read(options: argparse.Namespace) -> "TrainRecipe | SftRecipe":
    from ramify.commands.check_files import check_files, check_positions
    from ramify.config.load import load_recipe, override_recipe
    from ramify.config.schema_examples import DpoRecipe, SftRecipe
    from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe

    schemas: dict[str, type[TrainRecipe | SftRecipe]] = {
        "train": TrainRecipe,
        "sft": SftRecipe,
        "dpo": DpoRecipe,
        "selfcritic": SelfCriticRecipe,
    }
    schema = schemas[options.command]
    file, colon, name = str(options.recipe).rpartition(":")
    if colon and file.endswith(".py"):
        # A trainer of a Python file, by its name there.
        trainer = load_object(Path(file), name)
        table = getattr(trainer, "table", None)
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {name}: expected a ramify.Trainer, got {type(trainer).__name__}")
        recipe = override_recipe(schema, deepcopy(table), options.overrides, str(options.recipe))
    else:
        recipe = load_recipe(schema, options.recipe, options.overrides)
    check_files(
        recipe,
        fetch=not options.dry_run,
        note=(lambda _: None) if launched(os.environ).number else notes_of(options),
    )
    if not options.dry_run:
        check_positions(recipe)
    return recipe


def _alike(recipe: "TrainRecipe | SftRecipe") -> Mapping[str, str]:
    """Return fingerprints of everything that all ranks must have in common."""
    from hashlib import sha256
    from importlib import metadata

    import ramify
    from ramify.config.load import resolved
    from ramify.config.schema_train import TrainRecipe
    from ramify.modeling.lora import checksums
    from ramify.runs.manifest import data_sha256, file_sha256

    code = sha256()
    root = Path(ramify.__file__).parent
    for path in sorted(root.rglob("*.py")):
        code.update(f"{path.relative_to(root)} {file_sha256(path)}\n".encode())
    functions = recipe.functions.values() if isinstance(recipe, TrainRecipe) else ()
    return {
        "version of torch": metadata.version("torch"),
        "version of ramify's code": code.hexdigest()[:16],
        "recipe": sha256(resolved(recipe).encode()).hexdigest()[:16],
        "data": "" if recipe.data.train is None else data_sha256(recipe.data.train)[:16],
        "model": " ".join(checksums(recipe.model.folder).values()),
        "file of functions": " ".join(part.load().loaded.sha256[:16] for part in functions),
    }


def _layout(recipe: "TrainRecipe | SftRecipe", rank: Rank, console: "RunConsole") -> "Layout":
    """Choose the layout of sharded weights on GPUs by the estimate of their memory.

    Raises:
        MachineError: The recipe does not fit these GPUs.
    """
    from ramify.commands.memory import device_of, in_bytes, job_here
    from ramify.modeling.memory_plan import GATHERED_ONCE, choose

    if recipe.engine is not None and recipe.engine.starts_servers:
        from ramify.engines.vllm.folder import end_abandoned_servers

        # torchrun starts a killed rank again at once, and its servers may still have the memory that is asked for below.
        end_abandoned_servers()
    device, _ = device_of(recipe.model)
    job = job_here(recipe, device, rank.size) if device == "cuda" else None
    if job is None:
        return GATHERED_ONCE
    import torch

    from ramify.modeling.numerics import available_bytes

    room = available_bytes(torch.device("cuda", rank.local))
    plan = choose(job, room)
    if plan.total > room:
        raise MachineError(
            f"{in_bytes(plan.total)} are needed on each GPU, and {in_bytes(room)} are free here; "
            f"`ramify doctor RECIPE --gpus {rank.size}` says what to change"
        )
    if plan.layout.gather == "by_layer":
        console.note("the weights do not fit whole: each layer is gathered for itself, which is slower")
    if plan.layout.offload:
        console.note("the weights and the optimizer lie in the machine's memory, which is much slower")
    return plan.layout


def _train(
    recipe: "TrainRecipe | SftRecipe",
    console: "RunConsole",
    ranks: "Ranks",
    layout: "Layout",
    resume: bool,
    max_steps: int | None,
) -> Path:
    from ramify.config.schema_examples import DpoRecipe
    from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe

    if isinstance(recipe, SelfCriticRecipe):
        from ramify.assemble.selfcritic import run_selfcritic

        return run_selfcritic(recipe, console, ranks, layout=layout, resume=resume)
    if isinstance(recipe, TrainRecipe):
        from ramify.assemble.training import run_rl

        return run_rl(recipe, console, ranks, layout=layout, resume=resume, max_steps=max_steps)
    if isinstance(recipe, DpoRecipe):
        from ramify.assemble.examples import run_dpo

        return run_dpo(recipe, console, ranks, layout=layout, resume=resume, max_steps=max_steps)
    from ramify.assemble.examples import run_sft

    return run_sft(recipe, console, ranks, layout=layout, resume=resume, max_steps=max_steps)
