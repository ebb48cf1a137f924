"""Whether a recipe can run on this machine: its files, memory, sandbox, keys, tools and reward."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ramify.assemble.reward import build_reward
from ramify.assemble.tools import build_tools
from ramify.commands import check_files
from ramify.commands.check_rows import check_rows
from ramify.commands.estimate import device_of, job_here
from ramify.commands.fit import memory_fit
from ramify.commands.this_machine import memory_of_device, row
from ramify.commands.work import AnyRecipe, loads_weights, work_of
from ramify.config.other_runs import record_of
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import MachineError
from ramify.eval.results import check_eval_folder
from ramify.modeling.hub import is_fetched
from ramify.net.secrets import read_key
from ramify.rewards.configs import RewardConfig
from ramify.runs.run_folder import check_run_folder
from ramify.sandbox.levels import shortfall
from ramify.synth.folder import check_synth_folder


def on_this_machine(path: Path, recipe: AnyRecipe, level: int) -> Iterator[str]:
    """Yield lines about a recipe on this machine.

    Args:
        path: Of the recipe, for messages.
        recipe: Of any kind.
        level: That the sandbox reaches.

    Raises:
        UserError: It cannot run here.
    """
    _check_files(recipe)
    yield row("recipe", f"{path} is for ramify {recipe.command}")
    yield from (row("", note) for note in check_rows(recipe))
    yield from (row("work", line) for line in work_of(recipe).in_words)
    yield from _memory(path, recipe)
    if not isinstance(recipe, SftRecipe):
        if recipe.engine.service_key is not None:
            read_key(recipe.engine.service_key)
        if recipe.tools.python is not None:
            min_level = recipe.sandbox.min_level
            yield row("", f"sandbox.min_level {min_level}: {'met' if level >= min_level else 'not met'}")
            if level < min_level:
                raise MachineError(f"{path}: {shortfall(min_level, level)}")
        yield row("tools", "opening them and the reward; an index that is not there yet is built")
        asyncio.run(_open(recipe))
    missing = "all but the model is here; with it, ask again about the memory"
    yield row("", "can run here" if is_fetched(recipe.model.path) else missing)


def _check_files(recipe: AnyRecipe) -> None:
    """Check a recipe's files, and `run.dir` as a run with --resume would: doctor is often asked while the run is there.

    Raises:
        UserError: A file is missing or wrong, or the folder holds something else, or a run of another recipe.
    """
    if isinstance(recipe, EvalRecipe):
        check_files.check_eval_files(recipe, fetch=False)
        check_eval_folder(recipe.run.dir, resume=True)
    elif isinstance(recipe, SynthRecipe):
        check_files.check_synth_files(recipe, fetch=False)
        check_synth_folder(recipe.run.dir, resume=True)
    else:
        if isinstance(recipe, SftRecipe):
            check_files.check_example_files(recipe, fetch=False)
        else:
            check_files.check_train_files(recipe, fetch=False)
        check_run_folder(recipe.run.dir, record_of(recipe), resume=True)


def _memory(path: Path, recipe: AnyRecipe) -> Iterator[str]:
    """Yield lines about the device and the memory.

    Raises:
        MachineError: The memory is not there.
    """
    device, why = device_of(recipe.model)
    job = job_here(recipe, device)
    if job is not None:
        yield row("model", f"on {device} ({why})")
        yield from (row("", line) for line in memory_fit(path, recipe, job, memory_of_device(device)))
    elif loads_weights(recipe):
        later = "is fetched from the hub when the run starts; --gpu-memory needs its sizes only"
        yield row("model", f"{recipe.model.path} {later}")
    else:
        yield row("model", "runs at a service")


async def _open(recipe: TrainRecipe | EvalRecipe | SynthRecipe) -> None:
    """Open the tools and the reward as a run does, and close them again; a cache that is not there is not made.

    Raises:
        UserError: One cannot be opened.
    """
    tools, reward = recipe.tools, recipe.reward
    environments = recipe.environments if isinstance(recipe, TrainRecipe) else {}
    cache = tools.cache
    if cache is not None and cache.mode != "replay_or_fail" and not cache.path.exists():
        tools = tools.model_copy(update={"cache": None})
    judge = reward.judge
    has_new_cache = judge is not None and judge.cache is not None and not judge.cache.exists()
    if isinstance(reward, RewardConfig) and judge is not None and has_new_cache:
        reward = replace(reward, judge=replace(judge, cache=None))
    scoring = build_reward(reward)
    try:
        await build_tools(tools, recipe.sandbox, recipe.environment, environments=environments).close()
    finally:
        await scoring.close()
