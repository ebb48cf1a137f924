"""The parts of a quick start, its recipes and its phases: every example takes the same steps from data to report."""

import asyncio
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ramify.assemble.services import build_provider
from ramify.assemble.tools import build_tools
from ramify.config import shipped_recipes
from ramify.config.load import Recipe, check_recipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.messages import Problem, ToolCall
from ramify.obs.console import RunConsole
from ramify.tools.configs import LocalSearchConfig, PythonConfig
from ramify.tools.search import SearchTool

Settings: TypeAlias = Mapping[str, Any]
"""Values by the dotted key of a recipe."""


@dataclass(frozen=True, slots=True)
class ExampleData:
    """The data of an example: training, search and evaluation.

    Attributes:
        base: Folder of the initial model.
        demonstrations: For the cold start.
        train: Problems for RL.
        passages: The corpus of the search tool.
        test: Held-out problems.
        train_entities: Problems about the names and things of training; None where an example has none.
    """

    base: Path
    demonstrations: Path
    train: Path
    passages: Path
    test: Path
    train_entities: Path | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A quick start.

    Attributes:
        name: Its recipes are `recipes/{name}_sft.toml`, `_rl.toml` and `_eval.toml`.
        base: Name of the initial model on the page.
        make_data: Writes the data below a folder; arguments: the folder, the seed, the console.
        shares: Measured shares of the time, by the name of a phase on the console.
        sft: Changes to the first recipe, besides paths and seed.
        rl: Changes to the second.
        evaluation: Changes to the third.
        greedy: True if the trained models are also evaluated at temperature 0.
        options: What `ramify quickstart` needs besides seed and folder to run it again, such as "--lm --smoke".
    """

    name: str
    base: str
    make_data: Callable[[Path, int, RunConsole], ExampleData]
    shares: Mapping[str, float]
    sft: Settings
    rl: Settings
    evaluation: Settings
    greedy: bool
    options: str


def sft_recipe(example: Example, out: Path, seed: int, data: ExampleData) -> SftRecipe:
    """Return the recipe of the cold start."""
    filled = {"model.path": data.base, "data.train": data.demonstrations, "run.dir": out / "sft"}
    return filled_recipe(SftRecipe, f"{example.name}_sft.toml", {**filled, "run.seed": seed, **example.sft})


def rl_recipe(example: Example, out: Path, seed: int, model: Path, data: ExampleData) -> TrainRecipe:
    """Return the recipe of ARPO on `model`."""
    filled = {
        "model.path": model,
        "data.train": data.train,
        "run.dir": out / "rl",
        "run.seed": seed,
        "tools.search.corpus": data.passages,
    }
    return filled_recipe(TrainRecipe, f"{example.name}_rl.toml", {**filled, **example.rl})


def eval_recipe(
    example: Example, folder: Path, seed: int, model: Path, test: Path, passages: Path, temperature: float
) -> EvalRecipe:
    """Return the recipe of an evaluation of `model` on the problems `test`, with results in `folder`."""
    filled = {
        "model.path": model,
        "data.test": test,
        "run.dir": folder,
        "run.seed": seed,
        "tools.search.corpus": passages,
        "sampling.temperature": temperature,
    }
    return filled_recipe(EvalRecipe, f"{example.name}_eval.toml", {**filled, **example.evaluation})


@contextmanager
def search_tool(name: str, passages: Path) -> Iterator[Callable[[str | None, str], str]]:
    """Open the search tool of an example's RL recipe: (collection, query) -> the text that the agent would get."""
    table = _read(f"{name}_rl.toml")["tools"]["search"]
    section = LocalSearchConfig(**{**table, "corpus": passages})
    search = SearchTool(build_provider(section, offline=False), config=section)
    with asyncio.Runner() as runner:
        yield lambda collection, query: runner.run(search.look_up(query, collection)).text


@contextmanager
def python_tool(name: str) -> Iterator[Callable[[str], str]]:
    """Open the Python tool of an example's RL recipe: a program -> the text that the agent would get."""
    table = _read(f"{name}_rl.toml")
    toolbox = build_tools(
        ToolsSection(python=PythonConfig(**table["tools"]["python"])), SandboxSection(**table["sandbox"])
    )
    with asyncio.Runner() as runner:
        try:
            session = runner.run(toolbox.environment.open(Problem("", (), ()), 0))
            yield lambda code: runner.run(session.call(ToolCall("", "python", {"code": code}))).text
        finally:
            runner.run(toolbox.close())


def filled_recipe(schema: type[Recipe], name: str, values: Settings) -> Recipe:
    """Return the recipe that ships under a name, with these values."""
    table = _read(name)
    for key, value in values.items():
        *sections, last = key.split(".")
        below = table
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = value
    return check_recipe(schema, table, name)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((shipped_recipes() / name).read_text(encoding="utf-8"))


class Clock:
    """Wall-clock seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)


@contextmanager
def emptied_on_error(out: Path) -> Iterator[None]:
    """Empty the new folder `out` if the block fails, so that the same command can be run again."""
    try:
        yield
    except BaseException:
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        raise
