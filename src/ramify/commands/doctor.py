"""`ramify doctor [RECIPE.toml]`: what this machine has, and whether a recipe can run on it or on other GPUs."""

import argparse
import importlib
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ramify import __version__
from ramify.commands.parser import add_output, add_override, at_least_one, open_console, recipe_file
from ramify.core.errors import ConfigError, MachineError, UserError
from ramify.runtime.machine_memory import memory_limit

if TYPE_CHECKING:
    from ramify.config.schema_eval import EvalRecipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.config.sizes import AnyRecipe
    from ramify.obs.console import RunConsole

Row: TypeAlias = tuple[str, str]
"""The name before a line, which may be "", and the line."""

_SCHEMA = 1
"""Version of the JSON object."""
_WIDTH = 14
_NO_LEVEL = -1
"""Below the levels of a sandbox, where none works."""
_GIB = 1 << 30
_KEYS = ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
_PACKAGES = ("torch", "transformers", "tokenizers", "tantivy")
_NO_COMPILER = "Triton, which compiles kernels for GPUs, needs one. Install gcc, or set CC."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
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
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe is wrong or cannot run on this machine, or not on the GPUs.
    """
    console = open_console(options)
    path = options.recipe
    if path is None and options.overrides:
        raise ConfigError(
            "-s: has no effect without a recipe. Name one: ramify doctor RECIPE.toml -s KEY=VALUE"
        )
    if options.gpu_memory is None and options.gpus is not None:
        raise ConfigError(f"--gpus: expected the memory of each too: --gpus {options.gpus} --gpu-memory 80")
    if options.gpu_memory is not None:
        from ramify.commands.memory import on_gpus

        if path is None:
            raise ConfigError(
                "--gpu-memory: expected a recipe too: ramify doctor RECIPE.toml --gpu-memory 24"
            )
        recipe = _load(path, options.overrides)
        lines = on_gpus(path, recipe, options.gpus or 1, options.gpu_memory)
        _check(console, {}, path, (("", line) for line in lines), "")
        return
    from ramify.sandbox.levels import detect_level

    failed: MachineError | None = None
    try:
        level = detect_level()
    except MachineError as error:
        level, failed = _NO_LEVEL, error
    machine = _this_machine(level)
    for name, line in _in_words(machine):
        console.result(f"{name:{_WIDTH}}{line}")
    if failed is not None:
        raise failed
    if path is None:
        console.record({"schema": _SCHEMA, "machine": machine})
        return
    recipe = _load(path, options.overrides)
    _check(console, {"machine": machine}, path, _on_this_machine(path, recipe, level), f"{{:{_WIDTH}}}")


def _check(
    console: "RunConsole", known: Mapping[str, Any], path: Path, rows: Iterable[Row], form: str
) -> None:
    """Print rows about a recipe until one cannot be met; the JSON object has those before it, and the reason."""
    lines: list[str] = []

    def record(reason: str | None) -> None:
        checked = {"path": str(path), "can_run": reason is None, "lines": lines, "reason": reason}
        console.record({"schema": _SCHEMA, **known, "recipe": checked})

    try:
        for name, line in rows:
            console.result(form.format(name) + line)
            lines.append(line)
    except UserError as error:
        record(str(error))
        raise
    record(None)


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
    from ramify.config.schema_synth import SynthRecipe
    from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe

    kinds: tuple[type[AnyRecipe], ...] = (EvalRecipe, SynthRecipe, SelfCriticRecipe, TrainRecipe, DpoRecipe)
    schemas = {kind.command: kind for kind in kinds}
    return load_recipe(schemas.get(command_of(read_toml(path)) or "", SftRecipe), path, overrides)


def _this_machine(level: int) -> dict[str, Any]:
    """Return facts about it; `level`: that the sandbox reaches."""
    from importlib import metadata

    from ramify.sandbox.levels import MAX_LEVEL, why_not

    packages: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": platform.machine(),
        "ramify": __version__,
        "packages": packages,
        "cpus": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "memory_bytes": memory_limit(),
        "sandbox": {
            "level": level,
            "max_level": MAX_LEVEL,
            "not_reached": {str(higher): why_not(higher) for higher in range(level + 1, MAX_LEVEL + 1)},
        },
        "gpus": _gpus(),
        "c_compiler": _c_compiler(),
        "keys": {name: bool(os.environ.get(name, "").strip()) for name in _KEYS},
    }


def _in_words(machine: Mapping[str, Any]) -> Iterator[Row]:
    yield "python", f"{machine['python']} on {machine['system']} {machine['processor']}"
    yield "ramify", machine["ramify"]
    for name, version in machine["packages"].items():
        yield name, version or "not installed"
    yield "cpus", str(machine["cpus"])
    yield "memory", f"{machine['memory_bytes'] / _GIB:.1f} GiB"
    sandbox = machine["sandbox"]
    untested = "" if machine["system"] == "Linux" else ", which is untested on this system"
    reached = "no level" if sandbox["level"] == _NO_LEVEL else f"level {sandbox['level']}"
    yield "sandbox", f"{reached} of {sandbox['max_level']}{untested}"
    for higher, why in sandbox["not_reached"].items():
        yield "", f"not level {higher}: {why}"
    if machine["gpus"] is None:
        yield "gpu", "unknown, torch is not installed"
    elif not machine["gpus"]:
        yield "gpu", "none, models run on the CPU in float32"
    for gpu in machine["gpus"] or ():
        yield "gpu", f"{gpu['name']}, {gpu['memory_bytes'] / _GIB:.1f} GiB"
    if machine["gpus"]:
        yield "compiler", machine["c_compiler"] or f"none; {_NO_COMPILER}"
    is_set = machine["keys"]
    keys = {word: [name for name in is_set if is_set[name] == (word == "set")] for word in ("set", "not set")}
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
    if device == "cuda" and loads_weights(recipe) and _c_compiler() is None:
        raise MachineError(f"{path}: this machine has no C compiler; {_NO_COMPILER}")
    if (job := job_here(recipe, device)) is not None:
        yield "model", f"on {device} ({why})"
        yield from (("", line) for line in memory_fit(path, recipe, job, _memory_of(device)))
    elif loads_weights(recipe):
        later = "is fetched from the hub when the run starts; --gpu-memory needs its sizes only"
        yield "model", f"{recipe.model.path} {later}"
    else:
        starts = recipe.engine is not None and recipe.engine.starts_servers
        yield "model", "runs in vLLM servers that ramify starts" if starts else "runs at a service"


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


def _c_compiler() -> str | None:
    """Return the C compiler that Triton would take to build its driver, if there is one."""
    chosen = os.environ.get("CC")
    return shutil.which(chosen) if chosen else shutil.which("gcc") or shutil.which("clang")


def _gpus() -> list[dict[str, Any]] | None:
    """Return the GPUs that torch finds; None without torch."""
    if find_spec("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": gpu.name, "memory_bytes": int(gpu.total_memory)} for gpu in properties]


def _memory_of(device: str) -> int:
    """Return the memory of "cpu" or "cuda", in bytes.

    Raises:
        MachineError: There is no GPU.
    """
    if device == "cpu":
        return memory_limit()
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise MachineError('model.device: expected a GPU, torch finds none; set it to "cpu"')
    return int(torch.cuda.get_device_properties(0).total_memory)
