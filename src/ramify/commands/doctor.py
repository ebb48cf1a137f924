"""`ramify doctor [RECIPE.toml]`: what this machine has, and whether a recipe can run on it."""

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import add_override, recipe_file
from ramify.commands.this_machine import memory_of_device, row, this_machine
from ramify.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from ramify.commands.work import AnyRecipe
    from ramify.config.schema_reward import RewardSection
    from ramify.config.schema_tools import EnvironmentSection, SandboxSection, ToolsSection
    from ramify.obs.console import RunConsole

_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class _Task:
    """What the trees of a recipe are grown and scored with."""

    tools: "ToolsSection"
    environment: "EnvironmentSection | None"
    sandbox: "SandboxSection"
    reward: "RewardSection"
    environments: "Mapping[str, EnvironmentSection]"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a recipe asks of the machine; `task` is None where no tree is grown."""

    command: str
    recipe: "AnyRecipe"
    task: _Task | None = None

    @property
    def min_level(self) -> int | None:
        """Of the sandbox; None where no code of the model runs."""
        return None if self.task is None or self.task.tools.python is None else self.task.sandbox.min_level


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("recipe", type=recipe_file, nargs="?", metavar="RECIPE.toml", help="can it run here?")
    add_override(parser)
    parser.add_argument(
        "--gpu-memory",
        type=_gigabytes,
        metavar="GB",
        help="instead: what the recipe takes on a GPU with so much memory, which need not be here",
    )
    parser.add_argument(
        "--gpus", type=_count, metavar="N", help="with --gpu-memory: on so many of them, under torchrun"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe is wrong or cannot run on this machine.
    """
    from ramify.obs.console import RunConsole
    from ramify.sandbox.levels import detect_level

    console = RunConsole()
    if options.gpu_memory is not None or options.gpus is not None:
        _tell_gpus(console, options)
        return
    level = detect_level()
    for line in this_machine(level):
        console.result(line)
    if options.recipe is None:
        return
    for line in _recipe(options.recipe, options.overrides, level):
        console.result(line)


def _count(text: str) -> int:
    """Read a number of GPUs.

    Raises:
        argparse.ArgumentTypeError: It is no such number.
    """
    value = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= value <= _MOST_GPUS:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {_MOST_GPUS}, got {text!r}")
    return value


def _gigabytes(text: str) -> float:
    """Read the memory of a GPU.

    Raises:
        argparse.ArgumentTypeError: It is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 10000, got {text!r}")
    return value


def _tell_gpus(console: "RunConsole", options: argparse.Namespace) -> None:
    from ramify.commands.cluster import on_gpus

    if options.gpu_memory is None:
        raise ConfigError(f"--gpus: expected the memory of each too: --gpus {options.gpus} --gpu-memory 80")
    if options.recipe is None:
        raise ConfigError("--gpu-memory: expected a recipe too: ramify doctor RECIPE.toml --gpu-memory 24")
    command, recipe = _read(options.recipe, options.overrides)
    console.result(f"{options.recipe} is for ramify {command}")
    for line in on_gpus(options.recipe, recipe, options.gpus or 1, options.gpu_memory):
        console.result(line)


def _recipe(path: Path, overrides: list[str], level: int) -> Iterator[str]:
    """Lines about a recipe.

    Raises:
        UserError: It is wrong or cannot run here.
    """
    from ramify.commands.check_rows import check_rows
    from ramify.modeling.hub import is_fetched
    from ramify.sandbox.levels import shortfall

    plan = _load(path, overrides)
    yield row("recipe", f"{path} is for ramify {plan.command}")
    _check_folder(plan.recipe)
    yield from (row("", note) for note in check_rows(plan.recipe))
    yield from _needs(path, plan.recipe)
    if plan.min_level is not None:
        met = level >= plan.min_level
        yield row("", f"sandbox.min_level {plan.min_level}: {'met' if met else 'not met'}")
        if not met:
            raise MachineError(f"{path}: {shortfall(plan.min_level, level)}")
    if plan.task is not None:
        yield row("tools", "opening them and the reward; an index that is not there yet is built")
        asyncio.run(_open(plan.task))
    here = is_fetched(plan.recipe.model.path)
    yield row(
        "", "can run here" if here else "all but the model is here; with it, ask again about the memory"
    )


def _check_folder(recipe: "AnyRecipe") -> None:
    """Check `run.dir` as a run with --resume would, since doctor is often asked while the run is there.

    Raises:
        ConfigError: It holds something else, or a run of another recipe.
    """
    from ramify.config.other_runs import record_of
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.eval.results import check_eval_folder
    from ramify.runs.run_folder import check_run_folder
    from ramify.synth.folder import check_synth_folder

    if isinstance(recipe, EvalRecipe):
        check_eval_folder(recipe.run.dir, resume=True)
    elif isinstance(recipe, SynthRecipe):
        check_synth_folder(recipe.run.dir, resume=True)
    else:
        check_run_folder(recipe.run.dir, record_of(recipe), resume=True)


async def _open(task: _Task) -> None:
    """Open the tools and the reward as a run does, and close them again; a cache that is not there is not made.

    Raises:
        UserError: One cannot be opened.
    """
    from ramify.assemble.reward import build_reward
    from ramify.assemble.tools import build_tools
    from ramify.rewards.configs import RewardConfig

    tools, reward = task.tools, task.reward
    cache = tools.cache
    if cache is not None and cache.mode != "replay_or_fail" and not cache.path.exists():
        tools = tools.model_copy(update={"cache": None})
    judge = reward.judge
    has_new_cache = judge is not None and judge.cache is not None and not judge.cache.exists()
    if isinstance(reward, RewardConfig) and judge is not None and has_new_cache:
        reward = replace(reward, judge=replace(judge, cache=None))
    scoring = build_reward(reward)
    try:
        await build_tools(tools, task.sandbox, task.environment, environments=task.environments).close()
    finally:
        await scoring.close()


def _read(path: Path, overrides: list[str]) -> "tuple[str, AnyRecipe]":
    """A recipe of any kind, and the command that it is for."""
    from ramify.config.load import command_of, load_recipe, read_toml
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_examples import DpoRecipe, SftRecipe
    from ramify.config.schema_selfcritic import SelfCriticRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.schema_train import TrainRecipe

    kinds: tuple[type[AnyRecipe], ...] = (
        EvalRecipe,
        SynthRecipe,
        SelfCriticRecipe,
        TrainRecipe,
        DpoRecipe,
        SftRecipe,
    )
    schemas = {schema.command: schema for schema in kinds}
    command = command_of(read_toml(path)) or SftRecipe.command
    return command, load_recipe(schemas[command], path, overrides)


def _load(path: Path, overrides: list[str]) -> _Plan:
    """Check a recipe of any kind and look for its files and its engine's key."""
    from ramify.commands import check_files
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.engines.configs import OpenAIEngineConfig
    from ramify.net.secrets import read_key

    command, recipe = _read(path, overrides)
    if isinstance(recipe, EvalRecipe | SynthRecipe):
        if isinstance(recipe, EvalRecipe):
            check_files.check_eval_files(recipe, fetch=False)
        else:
            check_files.check_synth_files(recipe, fetch=False)
        engine = recipe.engine
        if isinstance(engine, OpenAIEngineConfig) and engine.key_variable is not None:
            read_key(engine.key_variable)
    elif isinstance(recipe, TrainRecipe):
        check_files.check_train_files(recipe, fetch=False)
    else:
        check_files.check_example_files(recipe, fetch=False)
        return _Plan(command, recipe)
    several = recipe.environments if isinstance(recipe, TrainRecipe) else {}
    task = _Task(recipe.tools, recipe.environment, recipe.sandbox, recipe.reward, several)
    return _Plan(command, recipe, task)


def _needs(path: Path, recipe: "AnyRecipe") -> Iterator[str]:
    """Lines about the work of a recipe, the memory that it takes and the time.

    Raises:
        MachineError: The memory is not there.
    """
    from ramify.commands.estimate import device_of, in_bytes, loads_weights, memory_of
    from ramify.commands.pace import in_time, measure_pace, whole_run
    from ramify.commands.work import work_of

    work = work_of(recipe)
    device, why = device_of(recipe.model)
    yield from (row("work", line) for line in work.in_words)
    memory = memory_of(recipe, work, device)
    if memory is None:
        later = f"{recipe.model.path} is fetched from the hub when the run starts; --gpu-memory needs its sizes only"
        yield row("model", later if loads_weights(recipe, work) else "runs at a service")
        return
    yield row("model", f"on {device} ({why}), takes {memory.in_words}")
    there = memory_of_device(device)
    if memory.least > there:
        raise MachineError(
            f"{path}: the model takes at least {in_bytes(memory.least)} of memory, and there are {in_bytes(there)} on "
            f"{device}; take a smaller model, an adapter ([model.lora]) or fewer engine.slots"
        )
    slots = getattr(getattr(recipe, "engine", None), "slots", work.per_step)
    seconds = measure_pace(device).seconds(work, memory, slots, recomputes=memory.plan(there).recompute)
    yield row(
        "time",
        f"roughly {in_time(seconds)} a step{whole_run(work, seconds)}, if all tokens are used; tools not counted",
    )
