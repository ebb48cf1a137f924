"""`ramify doctor [RECIPE.toml]`: what this machine has, and whether a recipe can run on it or on other GPUs."""

import argparse
import importlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ramify import __version__
from ramify.commands.parser import add_override, at_least_one, recipe_file
from ramify.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.config.sizes import AnyRecipe

Row: TypeAlias = tuple[str, str]
"""The name before a line, which may be "", and the line."""

_GIB = 1 << 30
_KEYS = ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
_PACKAGES = ("torch", "transformers", "tokenizers", "tantivy")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


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
        "--gpus", type=at_least_one, metavar="N", help="with --gpu-memory: on so many of them, under torchrun"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe is wrong or cannot run on this machine, or not on the GPUs.
    """
    from ramify.obs.console import RunConsole

    console = RunConsole()
    path = options.recipe
    if options.gpu_memory is None and options.gpus is not None:
        raise ConfigError(f"--gpus: expected the memory of each too: --gpus {options.gpus} --gpu-memory 80")
    if options.gpu_memory is not None:
        from ramify.commands.memory import on_gpus

        if path is None:
            raise ConfigError(
                "--gpu-memory: expected a recipe too: ramify doctor RECIPE.toml --gpu-memory 24"
            )
        recipe = _load(path, options.overrides)
        for line in on_gpus(path, recipe, options.gpus or 1, options.gpu_memory):
            console.result(line)
        return
    from ramify.sandbox.levels import detect_level

    level = detect_level()
    for name, line in _this_machine(level):
        console.result(f"{name:14}{line}")
    if path is not None:
        for name, line in _on_this_machine(path, _load(path, options.overrides), level):
            console.result(f"{name:14}{line}")


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


def _load(path: Path, overrides: Sequence[str]) -> "AnyRecipe":
    """Return a recipe of the kind that its keys tell.

    Raises:
        ConfigError: It is wrong.
    """
    from ramify.config.load import command_of, load_recipe, read_toml
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_examples import DpoRecipe, SftRecipe
    from ramify.config.schema_selfcritic import SelfCriticRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.schema_train import TrainRecipe

    kinds: tuple[type[AnyRecipe], ...] = (EvalRecipe, SynthRecipe, SelfCriticRecipe, TrainRecipe, DpoRecipe)
    schemas = {kind.command: kind for kind in kinds}
    return load_recipe(schemas.get(command_of(read_toml(path)) or "", SftRecipe), path, overrides)


def _this_machine(level: int) -> Iterator[Row]:
    """Yield rows about it; `level`: that the sandbox reaches."""
    from importlib import metadata

    from ramify.sandbox.levels import MAX_LEVEL, why_not

    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "ramify", __version__
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"
    has_affinity = hasattr(os, "sched_getaffinity")
    yield "cpus", str(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1)
    yield "memory", f"{_memory() / _GIB:.1f} GiB"
    untested = "" if platform.system() == "Linux" else ", which is untested on this system"
    yield "sandbox", f"level {level} of {MAX_LEVEL}{untested}"
    for higher in range(level + 1, MAX_LEVEL + 1):
        yield "", f"not level {higher}: {why_not(higher)}"
    yield from (("gpu", gpu) for gpu in _gpus())
    is_set = {name: bool(os.environ.get(name, "").strip()) for name in _KEYS}
    keys = {word: [name for name in _KEYS if is_set[name] == (word == "set")] for word in ("set", "not set")}
    yield "keys", "; ".join(f"{', '.join(names)} {word}" for word, names in keys.items() if names)


def _on_this_machine(path: Path, recipe: "AnyRecipe", level: int) -> Iterator[Row]:
    """Yield rows about a recipe on this machine.

    Args:
        path: Of the recipe, for messages.
        recipe: Of any kind.
        level: That the sandbox reaches.

    Raises:
        UserError: It cannot run here.
    """
    import asyncio

    from ramify.commands.check_files import check_files
    from ramify.commands.check_rows import check_rows
    from ramify.config.other_runs import record_of
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_examples import SftRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.sizes import work_of
    from ramify.modeling.model_path import is_fetched
    from ramify.net.secrets import read_key
    from ramify.runs.run_folder import EVALUATION, SYNTHESIS, TRAINING
    from ramify.sandbox.levels import shortfall

    check_files(recipe, fetch=False)
    # As a run with --resume: doctor is often asked while the run is there.
    match recipe:
        case EvalRecipe():
            EVALUATION.check(recipe.run.dir, resume=True)
        case SynthRecipe():
            SYNTHESIS.check(recipe.run.dir, resume=True)
        case _:
            TRAINING.check(recipe.run.dir, resume=True, recipe=record_of(recipe))
    yield "recipe", f"{path} is for ramify {recipe.command}"
    notes: list[str] = []
    unchecked = list(check_rows(recipe, notes.append))
    yield from (("", note) for note in (*notes, *unchecked))
    yield from (("work", line) for line in work_of(recipe).in_words)
    yield from _model_rows(path, recipe)
    acting = recipe.evaluation if isinstance(recipe, SftRecipe) else recipe
    if acting is not None:
        if acting.engine.service_key is not None:
            read_key(acting.engine.service_key)
        if acting.tools.python is not None:
            min_level = acting.sandbox.min_level
            yield "", f"sandbox.min_level {min_level}: {'met' if level >= min_level else 'not met'}"
            if level < min_level:
                raise MachineError(f"{path}: {shortfall(min_level, level)}")
        yield "tools", "opening them and the reward; an index that is not there yet is built"
        asyncio.run(_open(acting))
    missing = "all but the model is here; with it, ask again about the memory"
    yield "", "can run here" if is_fetched(recipe.model.path) else missing


def _model_rows(path: Path, recipe: "AnyRecipe") -> Iterator[Row]:
    """Yield rows about the model: its device, and the memory that the recipe takes there.

    Raises:
        MachineError: It does not fit.
    """
    from ramify.commands.memory import device_of, job_here, memory_fit
    from ramify.config.sizes import loads_weights

    device, why = device_of(recipe.model)
    if (job := job_here(recipe, device)) is not None:
        yield "model", f"on {device} ({why})"
        yield from (("", line) for line in memory_fit(path, recipe, job, _memory_of(device)))
    elif loads_weights(recipe):
        later = "is fetched from the hub when the run starts; --gpu-memory needs its sizes only"
        yield "model", f"{recipe.model.path} {later}"
    else:
        yield "model", "runs at a service"


async def _open(recipe: "TrainRecipe | EvalRecipe | SynthRecipe") -> None:
    """Open the tools and the reward as a run does, and close them again; a cache that is not there is not made.

    Raises:
        UserError: One cannot be opened.
    """
    from ramify.assemble.reward import build_reward
    from ramify.assemble.tools import build_tools
    from ramify.config.schema_train import TrainRecipe
    from ramify.rewards.configs import RewardConfig

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


def _gpus() -> Iterator[str]:
    if find_spec("torch") is None:
        yield "unknown, torch is not installed"
        return
    torch: Any = importlib.import_module("torch")
    if torch.cuda.device_count() == 0:
        yield "none, models run on the CPU in float32"
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        yield f"{gpu.name}, {gpu.total_memory / _GIB:.1f} GiB"


def _memory_of(device: str) -> int:
    """Return the memory of "cpu" or "cuda", in bytes.

    Raises:
        MachineError: There is no GPU.
    """
    if device == "cpu":
        return _memory()
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise MachineError('model.device: expected a GPU, torch finds none; set it to "cpu"')
    return int(torch.cuda.get_device_properties(0).total_memory)


def _memory() -> int:
    """Return the memory that this process may have: the machine's, or its control group's (a container) where that is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # not Linux, another version of control groups, or "max"
        return whole
