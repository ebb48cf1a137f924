"""`ramify doctor [RECIPE.toml]`: what this machine has, and whether a recipe can run on it."""

import argparse
import asyncio
import importlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify import __version__
from ramify.commands.parser import add_override, recipe_file
from ramify.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from ramify.commands.estimate import AnyRecipe
    from ramify.config.schema_reward import RewardSection
    from ramify.config.schema_tools import EnvironmentSection, SandboxSection, ToolsSection
    from ramify.obs.console import RunConsole

_GIB = 1 << 30
_KEYS = ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
_PACKAGES = ("torch", "transformers", "tokenizers", "tantivy")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class _Task:
    """What the trees of a recipe are grown and scored with."""

    tools: "ToolsSection"
    environment: "EnvironmentSection | None"
    sandbox: "SandboxSection"
    reward: "RewardSection"


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
        help="instead: what the recipe takes on one GPU with so much memory, which need not be here",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe is wrong or cannot run on this machine.
    """
    from ramify.obs.console import RunConsole
    from ramify.sandbox.levels import detect_level

    console = RunConsole()
    if options.gpu_memory is not None:
        _tell_card(console, options)
        return
    for line in _machine():
        console.result(line)
    level = detect_level()
    for line in _sandbox(level):
        console.result(line)
    for line in _devices():
        console.result(line)
    console.result(_keys())
    if options.recipe is None:
        return
    for line in _recipe(options.recipe, options.overrides, level):
        console.result(line)


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


def _tell_card(console: "RunConsole", options: argparse.Namespace) -> None:
    from ramify.commands.pace import on_card

    if options.recipe is None:
        raise ConfigError("--gpu-memory: expected a recipe too: ramify doctor RECIPE.toml --gpu-memory 24")
    command, recipe = _read(options.recipe, options.overrides)
    console.result(f"{options.recipe} is for ramify {command}")
    for line in on_card(options.recipe, recipe, options.gpu_memory):
        console.result(line)


def _machine() -> Iterator[str]:
    yield _row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _row("ramify", __version__)
    for name in _PACKAGES:
        try:
            yield _row(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield _row(name, "not installed")
    yield _row("cpus", str(num_cpus()))
    yield _row("memory", f"{memory_bytes() / _GIB:.1f} GiB")


def _sandbox(level: int) -> Iterator[str]:
    from ramify.sandbox.levels import MAX_LEVEL, why_not

    untested = "" if platform.system() == "Linux" else ", which is untested on this system"
    yield _row("sandbox", f"level {level} of {MAX_LEVEL}{untested}")
    for higher in range(level + 1, MAX_LEVEL + 1):
        yield _row("", f"not level {higher}: {why_not(higher)}")


def _keys() -> str:
    found = [name for name in _KEYS if os.environ.get(name, "").strip()]
    missing = [name for name in _KEYS if name not in found]
    return _row(
        "keys",
        "; ".join(
            f"{', '.join(names)} {word}" for names, word in ((found, "set"), (missing, "not set")) if names
        ),
    )


def _devices() -> Iterator[str]:
    if find_spec("torch") is None:
        yield _row("gpu", "unknown, torch is not installed")
        return
    torch: Any = importlib.import_module("torch")
    count = torch.cuda.device_count()
    if not count:
        yield _row("gpu", "none, models run on the CPU in float32")
    for index in range(count):
        found = torch.cuda.get_device_properties(index)
        yield _row("gpu", f"{found.name}, {found.total_memory / _GIB:.1f} GiB")


def _recipe(path: Path, overrides: list[str], level: int) -> Iterator[str]:
    """Lines about a recipe.

    Raises:
        UserError: It is wrong or cannot run here.
    """
    from ramify.modeling.hub import is_fetched
    from ramify.sandbox.levels import shortfall

    plan = _load(path, overrides)
    yield _row("recipe", f"{path} is for ramify {plan.command}")
    yield from _needs(path, plan.recipe)
    if plan.min_level is not None:
        met = level >= plan.min_level
        yield _row("", f"sandbox.min_level {plan.min_level}: {'met' if met else 'not met'}")
        if not met:
            raise MachineError(f"{path}: {shortfall(plan.min_level, level)}")
    if plan.task is not None:
        yield _row("tools", "opening them and the reward; an index that is not there yet is built")
        asyncio.run(_open(plan.task))
    here = is_fetched(plan.recipe.model.path)
    yield _row(
        "", "can run here" if here else "all but the model is here; with it, ask again about the memory"
    )


async def _open(task: _Task) -> None:
    """Open the tools and the reward as a run does, and close them again; a cache that is not there is not made.

    Raises:
        UserError: One cannot be opened.
    """
    from ramify.config.build_reward import build_reward
    from ramify.config.build_tools import build_tools
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
        await build_tools(tools, task.sandbox, task.environment).close()
    finally:
        await scoring.close()


def _read(path: Path, overrides: list[str]) -> "tuple[str, AnyRecipe]":
    """A recipe of any kind, and the command that it is for."""
    from ramify.config.load import command_of, load_recipe, read_toml
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_examples import DpoRecipe, SftRecipe
    from ramify.config.schema_train import TrainRecipe

    kinds: tuple[type[AnyRecipe], ...] = (EvalRecipe, TrainRecipe, DpoRecipe, SftRecipe)
    schemas = {schema.command: schema for schema in kinds}
    command = command_of(read_toml(path)) or SftRecipe.command
    return command, load_recipe(schemas[command], path, overrides)


def _load(path: Path, overrides: list[str]) -> _Plan:
    """Check a recipe of any kind and look for its files and its engine's key."""
    from ramify.commands import check_files
    from ramify.config.schema_eval import EvalRecipe, OpenAIEngineSection
    from ramify.config.schema_train import TrainRecipe
    from ramify.net.secrets import read_key

    command, recipe = _read(path, overrides)
    if isinstance(recipe, EvalRecipe):
        check_files.check_eval_files(recipe, fetch=False)
        engine = recipe.engine
        if isinstance(engine, OpenAIEngineSection) and engine.key_variable is not None:
            read_key(engine.key_variable)
    elif isinstance(recipe, TrainRecipe):
        check_files.check_train_files(recipe, fetch=False)
    else:
        check_files.check_example_files(recipe, fetch=False)
        return _Plan(command, recipe)
    return _Plan(command, recipe, _Task(recipe.tools, recipe.environment, recipe.sandbox, recipe.reward))


def _needs(path: Path, recipe: "AnyRecipe") -> Iterator[str]:
    """Lines about the work of a recipe, the memory that it takes and the time.

    Raises:
        MachineError: The memory is not there.
    """
    from ramify.commands.estimate import device_of, in_bytes, loads_weights, memory_of, work_of
    from ramify.commands.pace import in_time, measure_pace, whole_run

    work = work_of(recipe)
    device, why = device_of(recipe.model)
    yield from (_row("work", line) for line in work.in_words)
    memory = memory_of(recipe, work, device)
    if memory is None:
        later = f"{recipe.model.path} is fetched from the hub when the run starts; --gpu-memory needs its sizes only"
        yield _row("model", later if loads_weights(recipe, work) else "runs at a service")
        return
    yield _row("model", f"on {device} ({why}), takes {memory.in_words}")
    there = _memory_of(device)
    if memory.least > there:
        raise MachineError(
            f"{path}: the model takes at least {in_bytes(memory.least)} of memory, and there are {in_bytes(there)} on "
            f"{device}; take a smaller model, an adapter ([model.lora]) or fewer engine.slots"
        )
    slots = getattr(getattr(recipe, "engine", None), "slots", work.per_step)
    size = 2 if recipe.model.dtype == "bfloat16" else 4
    recomputes = memory.recomputes(there)
    seconds = measure_pace(device).seconds(work, memory, slots, size, recomputes=recomputes)
    yield _row(
        "time",
        f"roughly {in_time(seconds)} a step{whole_run(work, seconds)}, if all tokens are used; tools not counted",
    )


def _memory_of(device: str) -> int:
    if device == "cpu":
        return memory_bytes()
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise MachineError('model.device: expected a GPU, torch finds none; set it to "cpu"')
    return int(torch.cuda.get_device_properties(0).total_memory)


def num_cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory that this process may have: the machine's, or less where its control group (a container) is limited."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # not Linux, another version of control groups, or "max"
        return whole


def _row(name: str, text: str) -> str:
    return f"{name:14}{text}"
