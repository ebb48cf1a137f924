"""`Trainer`, `SFT` and `DPO`: a recipe as an object. Each prints the TOML that the command line runs, and runs the same code."""

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from ramify.api.data import write_rows
from ramify.api.runs import Run, open_run
from ramify.api.session import in_thread
from ramify.api.tables import (
    Learner,
    Rollout,
    Table,
    algorithm_table,
    as_table,
    base_recipe,
    environment_table,
    function_table,
    merged,
    paper_recipe,
    require,
    reward_table,
    short,
    tool_tables,
)
from ramify.commands.parser import recipe_file
from ramify.config import shipped_recipes
from ramify.config.load import check_recipe, read_toml, resolved
from ramify.config.other_runs import trained_dialect
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError, RamifyError, RunInterruptedError
from ramify.files.durable import make_folder
from ramify.files.user_code import needs_process
from ramify.sandbox.kernel import forbid_inspection

Recipe: TypeAlias = TrainRecipe | SftRecipe


class _Training:
    """A recipe as an object.

    Attributes:
        table: The recipe as a table.
        config: The checked recipe.
    """

    schema: ClassVar[type[Recipe]]

    def __init__(self, table: Table, log: Sequence[str]) -> None:
        require(
            log, list | tuple, f'{type(self).__name__}: log: expected a list, such as ["console", "wandb"]'
        )
        loggers = [name for name in log if name != "console"]
        self.is_shown = "console" in log
        self.table = {**table, "log": {**table.get("log", {}), "to": loggers}} if loggers else table
        self.config = check_recipe(self.schema, deepcopy(self.table), type(self).__name__)

    @classmethod
    def from_recipe(cls, recipe: str | Path, **tables: Any) -> Self:  # noqa: ANN401 - tables of a recipe
        """Return the trainer of a recipe file, or of a shipped recipe by its name, with other keys in its tables.

        Raises:
            ConfigError: The recipe cannot be read, or a value is wrong.
        """
        trainer = cls.__new__(cls)
        _Training.__init__(trainer, overlay(read_toml(recipe_file(str(recipe))), tables), ("console",))
        return trainer

    @property
    def recipe(self) -> str:
        """The recipe as TOML, with every default; the command line runs it."""
        return resolved(self.config)

    @property
    def dir(self) -> Path:
        """The run's folder."""
        return self.config.run.dir

    def check(self, rows: bool = False) -> str:
        """Return what `--dry-run` prints: the recipe, and what it asks for.

        Args:
            rows: Read the data and all other files too, and refuse what the run would refuse.

        Raises:
            UserError: The run would refuse it.
        """
        from ramify.commands.check_files import check_files, dry_run_notes

        check_files(self.config, fetch=False)
        notes = dry_run_notes(self.config, rows=rows)
        return resolved(self.config) + "\n" + "".join(f"# {line}\n" for line in notes)

    def estimate(self, gpu_memory: float = 80, gpus: int = 8) -> str:
        """Return the memory that the run takes on so many GPUs of so many GB, as `ramify doctor` tells it.

        Raises:
            UserError: It does not fit; says what to change.
        """
        from ramify.commands.memory import on_gpus

        for key, value in (("gpu_memory", gpu_memory), ("gpus", gpus)):
            require(value, int | float, f"estimate: {key}: expected a number")
            if value < 1:
                raise ConfigError(f"estimate: {key}: expected a number from 1, got {value}")
        # The first line says which command the recipe is for.
        return "\n".join(list(on_gpus(Path(type(self).__name__), self.config, gpus, gpu_memory))[1:])

    def train(self, steps: int | None = None, resume: bool = False) -> Run:
        """Train to the end, as the command line does; returns the run. Under torchrun the other ranks never return.

        Args:
            steps: Steps of the whole run; None: as the recipe says.
            resume: Go on from the last checkpoint in the run's folder.

        Raises:
            UserError: The data, the machine or the run's folder is wrong.
            TrainingError: Training cannot go on; the message says why.
            KeyboardInterrupt: Ctrl-C; the state was saved.
        """
        from ramify.commands.check_files import check_files, check_positions
        from ramify.commands.train import train_here
        from ramify.obs.console import RunConsole

        table = deepcopy(self.table)
        if steps is not None:
            table["run"]["steps"] = steps
        recipe = check_recipe(self.schema, table, type(self).__name__)
        check_files(recipe)
        check_positions(recipe)
        # As on the command line: no other program of the user may read a process that holds keys and computes rewards.
        forbid_inspection()
        with Path(os.devnull).open("w") as nowhere:
            console = RunConsole(None if self.is_shown else nowhere)
            if lost := sorted(_session_functions(table)):
                console.note(
                    f"{', '.join(lost)}: no file has these functions at its top, so only Python can go on with this run"
                )
            try:
                train_here(lambda: recipe, console, resume=resume)
            except RunInterruptedError as stopped:
                raise KeyboardInterrupt(_in_python(str(stopped))) from None
            except RamifyError as error:
                error.args = tuple(_in_python(str(each)) for each in error.args)
                raise
        return open_run(recipe.run.dir)

    async def train_async(self, steps: int | None = None, resume: bool = False) -> Run:
        """As `train`, in a thread."""
        run: Run = await in_thread(self.train, steps, resume)
        return run

    def __repr__(self) -> str:
        return short(f"{type(self).__name__}({str(self.config.model.path)!r}, dir={str(self.dir)!r})")


class Trainer(_Training):
    """Reinforcement learning with branching rollouts. What is left out is as in the recipe that ships for one GPU.

    Args:
        model: A model's folder, a run's folder, or an id of the hub.
        train: A file, a folder or "hf:org/name"; or rows: a list, a `datasets.Dataset`, a pandas frame. These are written beside
            the run's folder, so that the recipe can name them.
        reward: A name, an object of `ramify.rewards`, a function, a pair (function, weight), or a list of these.
        tools: Functions, classes, and objects of `ramify.tools`.
        environment: A class or an object of `ramify.tools`, in place of tools.
        rollout: Keys of `[rollout]`.
        algorithm: A name or an object of `ramify.algorithms`.
        learner: Keys of `[learner]` and its optimizer.
        engine: A name, or a table or an object of `[engine]`.
        lora: Train an adapter.
        eval: Evaluations during training (`ramify.Eval`).
        log: "console", and loggers: "tensorboard", "wandb", "trackio", "mlflow".
        guard: Keys of `[guard]`.
        dir: The run's folder.
        seed: Of all draws.
        tables: More tables of a recipe, such as run={"deterministic": True} or data={"max_prompt_tokens": 512}.
    """

    schema = TrainRecipe

    def __init__(
        self,
        model: str | Path,
        *,
        train: Any,  # noqa: ANN401 - a place or rows
        reward: Any,  # noqa: ANN401 - whatever stands for a reward
        tools: Any = (),  # noqa: ANN401 - one tool or several
        environment: Any = None,  # noqa: ANN401 - a class or a Config
        rollout: Rollout | None = None,
        algorithm: Any = "arpo",  # noqa: ANN401 - a name, an object or a table
        learner: Learner | None = None,
        engine: Any = "local",  # noqa: ANN401 - a name, an object or a table
        lora: Any = None,  # noqa: ANN401 - an object or a table
        eval: Any = None,  # noqa: ANN401 - an object or a table
        log: Sequence[str] = ("console",),
        guard: Any = None,  # noqa: ANN401 - an object or a table
        dir: str | Path | None = None,
        seed: int = 0,
        **tables: Any,  # noqa: ANN401 - tables of a recipe
    ) -> None:
        """Check the recipe.

        Raises:
            ConfigError: A value is wrong; names its key.
        """
        table = _with_algorithm(base_recipe(), algorithm)
        for key in ("tools", "sandbox", "preflight"):
            table.pop(key, None)
        # The length of a run is that of its data, or what `train` says.
        table["run"].pop("steps", None)
        if as_table(tables.get("run") or {}).get("deterministic"):
            table["rollout"].pop("trajectory_seconds", None)
        own = {
            "model": {"lora": lora},
            "run": {"seed": seed},
            "rollout": rollout or Rollout(),
            "learner": learner or Learner(),
            "engine": {**table["engine"], "name": "local"} if engine == "local" else engine,
            "tools": tools,
            "environment": environment,
            "reward": reward,
            "eval": eval,
            "guard": guard,
        }
        table = overlay(table, {key: value for key, value in own.items() if value is not None})
        super().__init__(_placed(table, model, train, dir, tables), log)


class SFT(_Training):
    """Supervised training on demonstrations; arguments as for `Trainer`, and the rest from the recipe that ships for one GPU."""

    schema: ClassVar[type[SftRecipe]] = SftRecipe
    below: ClassVar[str] = "sft_qwen2.5_0.5b_24gb"

    def __init__(
        self,
        model: str | Path,
        *,
        train: Any,  # noqa: ANN401 - a place or rows
        tools: Any = None,  # noqa: ANN401 - one tool or several
        learner: Learner | None = None,
        lora: Any = None,  # noqa: ANN401 - an object or a table
        log: Sequence[str] = ("console",),
        dir: str | Path | None = None,
        seed: int = 0,
        **tables: Any,  # noqa: ANN401 - tables of a recipe
    ) -> None:
        """Check the recipe.

        Raises:
            ConfigError: A value is wrong; names its key.
        """
        table = read_toml(shipped_recipes() / f"{self.below}.toml")
        table.pop("tools", None)
        own = {
            "model": {"lora": lora},
            "run": {"seed": seed},
            "learner": learner or Learner(),
            "tools": tools,
        }
        table = overlay(table, {key: value for key, value in own.items() if value is not None})
        super().__init__(_placed(table, model, train, dir, tables), log)


class DPO(SFT):
    """Training on preference pairs; as `SFT`, and `learner` may have `beta`."""

    schema = DpoRecipe
    below = "dpo_toolstar_7b"


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """Return a recipe with other keys in its tables; objects and functions stand for tables.

    `tools`, `environment`, `reward`, `algorithm` and `engine` take the place of the table below; of the others single keys do, and
    a key that is None is removed.
    """
    table: Table = {key: dict(each) if isinstance(each, Mapping) else each for key, each in below.items()}
    for key, value in above.items():
        if key == "tools":
            table.pop("tools", None)
            table |= tool_tables(value)
        elif key == "environment":
            table[key] = environment_table(value)
        elif key == "reward":
            table[key] = reward_table(value)
        elif key == "algorithm":
            table[key] = algorithm_table(value)
        elif key == "engine":
            table[key] = {"name": value} if isinstance(value, str) else as_table(value)
        elif isinstance(value, Learner):
            optimizer = merged(table[key].get("optimizer", {}), value.optimizer)
            table[key] = {**merged(table[key], value.others), "optimizer": optimizer}
        elif key == "rollout":
            table[key] = _rollout(table.get(key, {}), as_table(value))
        elif value is None or not isinstance(as_table(value), Mapping):
            table[key] = as_table(value)
        else:
            table[key] = merged(table.get(key, {}), as_table(value))
    return {key: value for key, value in table.items() if value is not None}


def _rollout(below: Table, above: Table) -> Table:
    """Return `[rollout]` with other keys: m is half of another n, and goes where the rule computes it."""
    require(above, Mapping, "rollout: expected a ramify.Rollout or a table")
    if callable(above.get("branching")):
        above = {**above, "branching": function_table(above["branching"])}
    table = merged(below, above)
    if "m" in above:
        return table
    rule = table.get("branching")
    name = rule.get("name") if isinstance(rule, Mapping) else rule
    if name in ("none", "balanced") or str(name).startswith("seed_compat_aepo"):
        table.pop("m", None)
    elif "n" in above or "branching" in above:
        table["m"] = max(table["n"] // 2, 1)
    return table


def _with_algorithm(base: Table, algorithm: Any) -> Table:  # noqa: ANN401 - a name, an object or a table
    """Return the recipe below a trainer with an algorithm, and of a named one also what its trees need."""
    if not isinstance(algorithm, str):
        return {**base, "algorithm": algorithm_table(algorithm)}
    if algorithm == "arpo":
        return base
    paper = paper_recipe(algorithm)
    keys = {key: paper["rollout"].get(key) for key in ("branching", "branch_at", "dynamic_sampling")}
    return {**base, "algorithm": paper["algorithm"], "rollout": _rollout(base["rollout"], keys)}


def _placed(
    table: Table,
    model: str | Path,
    train: Any,  # noqa: ANN401 - a place or rows
    folder: str | Path | None,
    tables: Mapping[str, Any],
) -> Table:
    """Return a recipe with its model, data and folder, and with further tables over it."""
    require(model, str | Path, "model: expected a folder or the id of a model")
    require(folder, str | Path | None, "dir: expected the run's folder")
    path = Path(model)
    run_dir = Path(folder) if folder is not None else Path("runs") / f"python-{path.name}"
    dialect = {"dialect": known} if (known := trained_dialect(path)) else {}
    places = {
        "model": {"path": str(path), **dialect},
        "run": {"dir": str(run_dir)},
        "data": {"train": None if train is None else _data(train, run_dir)},
    }
    return overlay(overlay(table, places), tables)


def _data(train: Any, run_dir: Path) -> Any:  # noqa: ANN401 - a place or rows
    """Return what `data.train` names; rows are written into a file beside the run's folder, named by its content."""
    is_place = isinstance(train, str | Path)
    if is_place or (
        isinstance(train, tuple | list) and train and all(isinstance(each, str | Path) for each in train)
    ):
        return as_table(train)
    if not run_dir.name:
        raise ConfigError(f"dir: expected a folder of the run's own, got {str(run_dir)!r}. Name a new one")
    folder = run_dir.with_name(f"{run_dir.name}.rows")
    make_folder("dir", folder)
    # In a folder of its own until it is whole: under torchrun all ranks write it at the same time.
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = write_rows(train, Path(own), "train")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        return str(path.replace(folder / f"train-{digest}.jsonl"))


def _in_python(message: str) -> str:
    """Return a message of the training loop in words of this interface."""
    return message.replace("--resume", "resume=True")


def _session_functions(table: Any) -> set[str]:  # noqa: ANN401 - any value of a recipe
    """Return the names of the functions of a recipe that no other process can find."""
    if isinstance(table, Mapping):
        if {"path", "function"} <= table.keys():
            name = str(table["function"])
            return {name.partition(":")[0]} if needs_process(Path(table["path"]), name) else set()
        return set().union(*map(_session_functions, table.values()))
    return set().union(*map(_session_functions, table)) if isinstance(table, list) else set()
