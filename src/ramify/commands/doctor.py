"""`ramify doctor [RECIPE.toml]`: what this machine has, and whether a recipe can run on it."""

import argparse
import asyncio
import importlib
import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.recipe_arguments import add_override
from ramify.core.errors import MachineError

if TYPE_CHECKING:
    from ramify.config.schema_reward import RewardSection
    from ramify.config.schema_tools import SandboxSection, ToolsSection

_KEYS = ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
_PACKAGES = ("ramify", "torch", "transformers", "tokenizers", "tantivy")
_MIB, _GIB = 1 << 20, 1 << 30
_BYTES_PER_TRAINED_PARAMETER = 16
"""Weight, gradient and two moments of AdamW in float32."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What the trees of a recipe are grown and scored with."""

    tools: "ToolsSection"
    sandbox: "SandboxSection"
    reward: "RewardSection"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a recipe asks of the machine; `task` is None where no tree is grown."""

    command: str
    model: Path
    task: _Task | None = None

    @property
    def min_level(self) -> int | None:
        """Of the sandbox; None where no code of the model runs."""
        return None if self.task is None or self.task.tools.python is None else self.task.sandbox.min_level


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE.toml", help="can it run here?")
    add_override(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe is wrong or cannot run on this machine.
    """
    from ramify.obs.console import RunConsole
    from ramify.sandbox.levels import detect_level

    console = RunConsole()
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


def _machine() -> Iterator[str]:
    yield _row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
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
    from ramify.sandbox.levels import shortfall

    plan = _load(path, overrides)
    yield _row("recipe", f"{path} is for ramify {plan.command}")
    yield _row("model", _weights(plan.model, plan.command))
    if plan.min_level is not None:
        met = level >= plan.min_level
        yield _row("", f"sandbox.min_level {plan.min_level}: {'met' if met else 'not met'}")
        if not met:
            raise MachineError(f"{path}: {shortfall(plan.min_level, level)}")
    if plan.task is not None:
        yield _row("tools", "opening them and the reward; an index that is not there yet is built")
        asyncio.run(_open(plan.task))
    yield _row("", "can run here")


async def _open(task: _Task) -> None:
    """Open the tools and the reward as a run does, and close them again; a cache that is not there is not made.

    Raises:
        UserError: One cannot be opened.
    """
    from ramify.config.build_reward import build_reward
    from ramify.config.build_tools import build_tools
    from ramify.config.schema_reward import LengthRewardSection

    tools, reward = task.tools, task.reward
    cache = tools.cache
    if cache is not None and cache.mode != "replay_or_fail" and not cache.path.exists():
        tools = tools.model_copy(update={"cache": None})
    judge = None if isinstance(reward, LengthRewardSection) else reward.judge
    if judge is not None and judge.cache is not None and not judge.cache.exists():
        reward = reward.model_copy(update={"judge": judge.model_copy(update={"cache": None})})
    scoring = build_reward(reward)
    try:
        await build_tools(tools, task.sandbox).close()
    finally:
        await scoring.close()


def _load(path: Path, overrides: list[str]) -> _Plan:
    """Check a recipe of any kind and look for its files and its engine's key."""
    from ramify.commands import check_files
    from ramify.config.load import load_recipe, read_toml
    from ramify.config.schema_dpo import DpoRecipe
    from ramify.config.schema_eval import EvalRecipe, OpenAIEngineSection
    from ramify.config.schema_sft import SftRecipe
    from ramify.config.schema_train import TrainRecipe
    from ramify.net.secrets import read_key

    tables = read_toml(path)
    if "sampling" in tables:
        evaluation = load_recipe(EvalRecipe, path, overrides)
        check_files.check_eval_files(evaluation)
        engine = evaluation.engine
        if isinstance(engine, OpenAIEngineSection) and engine.key_variable is not None:
            read_key(engine.key_variable)
        task = _Task(evaluation.tools, evaluation.sandbox, evaluation.reward)
        return _Plan("eval", evaluation.model.path, task)
    if "rollout" in tables:
        training = load_recipe(TrainRecipe, path, overrides)
        check_files.check_train_files(training)
        task = _Task(training.tools, training.sandbox, training.reward)
        return _Plan("train", training.model.path, task)
    if "beta" in tables.get("learner", {}):
        preference = load_recipe(DpoRecipe, path, overrides)
        check_files.check_example_files(preference)
        return _Plan("dpo", preference.model.path)
    supervised = load_recipe(SftRecipe, path, overrides)
    check_files.check_example_files(supervised)
    return _Plan("sft", supervised.model.path)


def _weights(folder: Path, command: str) -> str:
    from ramify.modeling.weight_files import read_head

    files = folder.glob("*.safetensors")
    parameters = sum(math.prod(tensor.shape) for file in files for tensor in read_head(file).values())
    size = f"{parameters:,} parameters"
    if command == "eval":
        return size
    need = parameters * _BYTES_PER_TRAINED_PARAMETER / _MIB
    return f"{size}; weights, gradients and AdamW's state take {need:,.0f} MiB in float32, beside activations"


def num_cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _row(name: str, text: str) -> str:
    return f"{name:14}{text}"
