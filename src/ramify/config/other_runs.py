"""What a recipe has to do with the folder of another run: that of an interrupted run to resume, a rate, training data."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ramify.algos.paired_run import PairedRun, PairedTree
from ramify.config.load import resolved
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Problem
from ramify.engines.configs import SERVER_KEYS
from ramify.modeling.configs import ModelConfig
from ramify.runs.manifest import MANIFEST, RecipeRecord

MAY_CHANGE = frozenset(
    {
        "run.dir",
        "run.steps",
        "run.save_every",
        "run.keep_last",
        "run.keep_best",
        "run.threads",
        "data.epochs",
        "eval.every",
        "eval.at_start",
        "eval.patience",
        "engine.slots",
        "engine.weights",
        *(f"engine.{key}" for key in SERVER_KEYS),
        "learner.token_budget",
        "learner.copies",
        "model.device",
        "preflight.enabled",
        "preflight.problems",
        "preflight.allow_zero_variance",
        "log",
        "log.to",
        "log.trees_every",
    }
)
"""The length of the run, which checkpoints are kept, when it is evaluated, how the work is placed on the machine, and who logs it."""

_ROUNDS = frozenset({"run.threads", "engine.slots", "learner.token_budget", "learner.copies", "model.device"})
"""Keys of these that change the last bits of results, so a deterministic run must keep them."""

_MAX_PARENTS = 3
"""Depth of a model inside the folder of its run, at most: RUN/checkpoints/step-000010/."""


def record_of(recipe: BaseModel) -> RecipeRecord:
    """Return the recipe as the folder of its run records it."""
    table = recipe.model_dump(mode="json")
    fixed = json.dumps(_lasting(table), sort_keys=True)
    deterministic = table.get("run", {}).get("deterministic")
    return RecipeRecord(
        text=resolved(recipe),
        fingerprint=hashlib.sha256(fixed.encode()).hexdigest()[:16],
        may_change=MAY_CHANGE - _ROUNDS if deterministic else MAY_CHANGE,
    )


def _lasting(table: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's table without `[run]`, `[log]`, the keys that may change, and those that are not set.

    So a key that a later version adds changes nothing, as long as it is not set.
    """
    fixed = {name: value for name, value in _set_keys(table).items() if name not in ("run", "log")}
    for key in MAY_CHANGE:
        section, _, name = key.partition(".")
        if isinstance(fixed.get(section), dict):
            fixed[section] = {inner: value for inner, value in fixed[section].items() if inner != name}
    return fixed


def _set_keys(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value without the keys of its objects that are null."""
    if isinstance(value, dict):
        return {key: _set_keys(each) for key, each in value.items() if each is not None}
    return [_set_keys(each) for each in value] if isinstance(value, list) else value


def read_rate(run_dir: Path) -> float:
    """Return the rate at which `random` branches as often as the rule of a training run did.

    Raises:
        ConfigError: The folder is not that of a run.
        DataError: The run's metrics cannot be read, or hold no rate.
    """
    from ramify.obs.branch_metrics import rate_of_control
    from ramify.obs.metrics import read_metrics

    path = run_dir / "metrics.jsonl"
    if not path.is_file():
        raise ConfigError(f"rollout.branching.rate_from: expected a run's folder, {path} is missing")
    rate = rate_of_control(read_metrics(path))
    if rate is None:
        raise DataError(
            f"{path}: expected branch/matched_rate and branch/decisions, found no step with decisions"
        )
    return rate


def paired_traces(run_dir: Path) -> tuple[Path, ...]:
    """Return the traces of a training run, in the order of its steps.

    Raises:
        ConfigError: The folder is not that of a run with traces.
    """
    from ramify.obs.trace_index import trace_files

    traces = trace_files(run_dir / "trees")
    if not traces:
        raise ConfigError(
            f"rollout.branching.of: expected a training run's folder, {run_dir / 'trees'} has no traces"
        )
    return traces


def read_paired_run(run_dir: Path) -> PairedRun:
    """Return the branching decisions of a training run.

    Raises:
        ConfigError: The folder is not that of a run with traces.
        DataError: A trace cannot be read.
    """
    from ramify.obs.trace import each_decided

    trees = (tree for path in paired_traces(run_dir) for tree in each_decided(path))
    return PairedRun(run_dir, tuple(PairedTree(*tree) for tree in trees))


def training_overlap_notes(model: Path, problems: Sequence[Problem]) -> tuple[str, ...]:
    """Notes if some of the problems are in the training data of the runs that made `model`, one after the other.

    No note if the model is not from a run, or trained on none of the problems.
    """
    from ramify.data.overlap import SAME_PROBLEM, read_questions, subtract, without_questions
    from ramify.data.sources import data_files
    from ramify.runs.trained_prompts import read_stages

    notes: list[str] = []
    counts: list[str] = []
    unseen = tuple(problems)
    ancestors = tuple(_ancestors(model))
    for recipe in ancestors:
        if (data := _training_data(recipe)) is None:
            continue
        train, exclude = data
        try:
            trained = read_questions(map(str, data_files(tuple(map(Path, train)))))
            questions = subtract(trained, read_questions(exclude))
        except DataError as error:
            notes.append(f"not checked whether {model} was trained on these problems: {error}")
            continue
        if overlap := len(problems) - len(without_questions(problems, questions)):
            counts.append(f"{overlap} in {', '.join(train)}")
            unseen = without_questions(unseen, questions)
    stages = len(read_stages(model)) if model.is_dir() else 0
    if stages > len(ancestors):
        notes.append(
            f"not checked whether {stages - len(ancestors)} of the {stages} trainings of {model} were on these problems: their "
            "run folders are not here"
        )
    if counts:
        notes.append(
            f"{len(problems) - len(unseen)} of {len(problems)} problems are in the data that {model} was trained on "
            f"({'; '.join(counts)}); their scores measure memory too. {SAME_PROBLEM}"
        )
    return tuple(notes)


def _ancestors(model: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the recipes of the runs that made the weights, the latest first."""
    visited: list[Mapping[str, Any]] = []
    recipe = _recipe_of_run(model)
    while recipe and recipe not in visited:
        yield recipe
        visited.append(recipe)
        section = recipe.get("model")
        path = section.get("path") if isinstance(section, dict) else None
        recipe = _recipe_of_run(Path(path)) if isinstance(path, str) else {}


def trained_dialect(model: Path) -> str | None:
    """`model.dialect` of the run that made `model`; None if no run made it, or neither its recipe nor a record in it can be read."""
    from ramify.runs.trained_prompts import read_stages

    section = _recipe_of_run(model).get("model")
    dialect = section.get("dialect") if isinstance(section, dict) else None
    if isinstance(dialect, str):
        return dialect
    stages = read_stages(model) if model.is_dir() else ()
    return stages[-1].dialect if stages else None


def dialect_notes(model: ModelConfig) -> tuple[str, ...]:
    """Return a note if the run that made the model taught it another dialect than the recipe's."""
    trained = trained_dialect(model.folder)
    if trained in (None, model.dialect):
        return ()
    return (
        f'model.dialect = "{model.dialect}", but the run that made {model.path} taught it "{trained}": it may not know how '
        "to call or to answer",
    )


def _training_data(recipe: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """`data.train` and `data.exclude` of a run's recipe; None if it has no data."""
    try:
        data = recipe["data"]
        train = data["train"]
        every = tuple(map(str, train)) if isinstance(train, list) else (str(train),)
        return every, tuple(map(str, data.get("exclude", ())))
    except (KeyError, TypeError, AttributeError):
        return None


def _recipe_of_run(model: Path) -> Mapping[str, Any]:
    """Return the recipe of the run whose folder `model` is in, as a table; empty if it is in none, or the file is damaged."""
    for folder in (model, *model.parents[:_MAX_PARENTS]):
        recipe = folder / "recipe.toml"
        # A recipe without a manifest beside it is the user's own file, not a run's.
        if recipe.is_file() and (folder / MANIFEST).is_file():
            try:
                return tomllib.loads(recipe.read_text(encoding="utf-8"))
            except ValueError:
                return {}
    return {}
