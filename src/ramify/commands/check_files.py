"""Checks of a recipe's files by their names, sizes and heads, with which a run, `--dry-run` and `ramify doctor` begin; and `--dry-run`.

They are cheap, and run before anything heavy is loaded. What the content of files decides is in `check_rows`: a dry run with
`--rows` reads the files too, as the run reads them.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from ramify.algos.branch_controls import ShuffledConfig, YokedConfig
from ramify.algos.branch_rules import RandomConfig
from ramify.algos.file_parts import FromFile
from ramify.assemble.model import require_positions
from ramify.commands.gpus import check_gpus
from ramify.commands.parser import open_console, write_as_it_is
from ramify.config.other_runs import paired_traces, read_rate
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.config.sizes import (
    AnyRecipe,
    longest_sequence,
    note_idle_turn_limit,
    refuse_large_steps,
    work_of,
)
from ramify.core.config import Config, InputFile
from ramify.core.errors import ConfigError, DataError, UserError, in_one_line
from ramify.data.configs import FROM
from ramify.data.sources import is_on_hub, require_data, require_readable, sources
from ramify.files.user_code import WITHOUT_FILE
from ramify.modeling.configs import ModelConfig
from ramify.modeling.model_config import check_architecture, read_model_config, read_object_file, whole_folder
from ramify.modeling.model_path import fetch_model, is_fetched
from ramify.modeling.weight_files import stored_tensors
from ramify.runs.loggers import require_loggers
from ramify.tools.configs import CacheConfig

_NOT_READ = (
    "rows were not read: add --rows to find rows that cannot be used, prompts that are too long, and tools, rewards, "
    "templates, weights and positions that do not fit"
)


def check_files(
    recipe: AnyRecipe,
    *,
    fetch: bool = True,
    trains: bool = True,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Check that every file that a recipe names is there; one line tells all that are not.

    Args:
        recipe: Of any kind.
        fetch: Download a model of the hub first; without it one that is not here yet is not checked, nor is the data file
            whose text `data.instructions` takes.
        trains: False where a recipe of training is not trained: its trees are grown, or its examples shown.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    checks = [
        partial(_require_model, recipe.model, weights=_needs_weights(recipe, trains), fetch=fetch, note=note)
    ]
    checks += [partial(_require_data, recipe), partial(_require_instructions, recipe, fetch=fetch)]
    if trains and not isinstance(recipe, EvalRecipe):
        checks.append(partial(require_loggers, recipe.log))
    checks += [partial(require_file, key, path) for key, path in _files_of(recipe, trains)]
    checks.append(partial(check_gpus, recipe, trains=trains and isinstance(recipe, TrainRecipe | SftRecipe)))
    if isinstance(recipe, TrainRecipe):
        checks += [partial(require_excluded, recipe.data.exclude), partial(require_rate, recipe.rollout)]
        checks += [partial(_require_function, part) for part in recipe.functions.values()]
    if isinstance(recipe, TrainRecipe | SftRecipe) and recipe.eval is not None:
        checks.append(partial(require_dataset, "eval.test", recipe.eval.test))
    if (acting := _acting(recipe, trains)) is not None:
        hands_over = trains and isinstance(recipe, TrainRecipe)
        checks += [partial(_require_served, acting, hands_over), partial(_require_tools, acting)]
        checks.append(partial(_require_cassette, "tools.cache", acting.tools.cache))
        if acting.repair is not None:
            checks.append(partial(_require_cassette, "repair.cache", acting.repair.cache))
    mistakes = []
    for check in checks:
        try:
            check()
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError(in_one_line(mistakes))


def _require_data(recipe: AnyRecipe) -> None:
    if isinstance(recipe, EvalRecipe):
        require_dataset("data.test", recipe.data.test)
        _require_searched(recipe)
    elif recipe.data.train is not None:
        require_data("data.train", recipe.data.train)


def _require_instructions(recipe: AnyRecipe, *, fetch: bool) -> None:
    absent = [] if fetch else [key for key, _ in _absent_instructions(recipe)]
    values = [(key, value) for key, value in _written_instructions(recipe) if key not in absent]
    if not values:
        return
    from ramify.data.prompts import require_instructions

    # Without a model, which is a mistake of its own key or is fetched later, no tokenizer is read.
    is_here = is_fetched(recipe.model.path, weights=False)
    for key, value in values:
        require_instructions(key, value, recipe.model.folder / "tokenizer.json" if is_here else None)


def _written_instructions(recipe: AnyRecipe) -> list[tuple[str, str]]:
    """Return the texts, files and data files that a recipe names as instructions, with their keys."""
    values = {"data.instructions": recipe.data.instructions}
    if isinstance(recipe, TrainRecipe | SftRecipe) and recipe.eval is not None:
        values["eval.instructions"] = recipe.eval.instructions
    return [(key, value) for key, value in values.items() if isinstance(value, str)]


def _absent_instructions(recipe: AnyRecipe) -> list[tuple[str, Path]]:
    """Return the data files whose fixed text a recipe takes and that are not here, with their keys."""
    places = {
        key: Path(value.removeprefix(FROM).strip())
        for key, value in _written_instructions(recipe)
        if value.startswith(FROM)
    }
    return [(key, path) for key, path in places.items() if not (is_on_hub(path) or path.exists())]


def _require_searched(recipe: EvalRecipe) -> None:
    """Raise ConfigError if a benchmark of `tools.search_of` is not evaluated: its name may be misspelt."""
    from ramify.data.benchmarks import parse_dataset

    named = {dataset: parse_dataset(dataset) for dataset in sources(recipe.data.test)}
    names = {
        Path(dataset).stem if benchmark is None else benchmark[0] for dataset, benchmark in named.items()
    }
    if unknown := sorted((recipe.tools.search_of or {}).keys() - names):
        raise ConfigError(
            f"tools.search_of: no data set of data.test is called {unknown[0]}. Add it, or remove the table"
        )


def input_files(key: str, settings: object) -> Iterator[tuple[str, Path]]:
    """Yield the keys and paths of all `InputFile`s in settings, tables within tables; `key` is theirs, "" of a recipe."""
    if isinstance(settings, tuple):
        for each in settings:
            yield from input_files(key, each)
    elif isinstance(settings, Mapping):
        for name, each in settings.items():
            yield from input_files(f"{key}.{name}", each)
    elif isinstance(settings, Config | BaseModel):
        kinds = reversed(type(settings).__mro__)
        hints = {name: hint for kind in kinds for name, hint in vars(kind).get("__annotations__", {}).items()}
        for name, value in settings.values().items() if isinstance(settings, Config) else settings:
            path_key = f"{key}.{name}" if key else name
            if isinstance(value, Path) and InputFile in (hints[name], *get_args(hints[name])):
                yield path_key, value
            else:
                yield from input_files(path_key, value)


def _acting(recipe: AnyRecipe, trains: bool) -> TrainRecipe | EvalRecipe | SynthRecipe | None:
    """Return the recipe of the agent that acts in a run; None where examples are only learned from or shown."""
    if isinstance(recipe, SftRecipe):
        return recipe.evaluation if trains else None
    return recipe


def _files_of(recipe: AnyRecipe, trains: bool) -> Iterator[tuple[str, Path]]:
    """Yield the files that a run reads. Examples are only shown the tools, so that no corpus is opened."""
    if _acting(recipe, trains) is not None:
        yield from input_files("", recipe)
        return
    yield from input_files("tools.own", recipe.tools.own)
    yield from input_files("environment", recipe.environment)


def _needs_weights(recipe: AnyRecipe, trains: bool) -> bool:
    """Return True if the tokenizer alone is not enough."""
    if isinstance(recipe, EvalRecipe | SynthRecipe):
        return recipe.engine.loads_weights
    return trains or (isinstance(recipe, TrainRecipe) and recipe.engine.script_file is None)


def check_positions(recipe: AnyRecipe) -> None:
    """Raise ConfigError unless a model that is loaded here has positions for the longest sequence of any phase.

    A plain `--dry-run` leaves this out, since it is also asked of recipes with a small model in the place of theirs.
    """
    longest = longest_sequence(recipe)
    if isinstance(recipe, SelfCriticRecipe):
        longest = max(longest, recipe.dpo.max_tokens)
    limit = read_model_config(recipe.model.folder).get("max_position_embeddings")
    if isinstance(limit, int):
        require_positions(recipe.model.path, limit, longest)


def _require_served(recipe: TrainRecipe | EvalRecipe | SynthRecipe, hands_over: bool) -> None:
    """Raise ConfigError unless the engine can have the model."""
    # What is wrong with the folder itself is a mistake of `model.path` already.
    with suppress(DataError):
        if is_fetched(recipe.model.path, weights=False):
            recipe.engine.refuse_model(recipe.model.folder, hands_over=hands_over)


def _require_tools(recipe: TrainRecipe | EvalRecipe | SynthRecipe) -> None:
    """Raise ConfigError unless there is an environment or a tool, and what programs of the Python tool start with is there."""
    environments = recipe.environments if isinstance(recipe, TrainRecipe) else {}
    tools = recipe.tools
    if not (recipe.environment or environments or tools.search or tools.python or tools.own):
        raise ConfigError(
            "tools: expected [tools.search], [tools.python] or [[tools.own]], found no tool and no [environment]"
        )
    python = tools.python
    if python is None or not (python.preamble or python.packages or python.environment):
        return
    # A file that is not there is a mistake of its key already.
    if not isinstance(python.preamble, Path) or python.preamble.is_file():
        from ramify.tools.python import setup_of

        setup_of(python)


def _require_cassette(key: str, cache: CacheConfig | None) -> None:
    """Raise ConfigError unless a cassette that is only replayed is there."""
    if cache is not None and cache.mode == "replay_or_fail":
        require_file(f"{key}.path", cache.path)


def require_file(key: str, path: Path) -> None:
    """Raise ConfigError unless `path` is a file that can be read, or stands for a function of this process."""
    if path == WITHOUT_FILE:
        return
    if not path.is_file():
        other = "got a folder" if path.is_dir() else "got something else" if path.exists() else "found none"
        raise ConfigError(f"{key}: expected a file, {other} at {path}")
    require_readable(key, path)


def require_dataset(key: str, dataset: str | tuple[str, ...]) -> None:
    """Check that the files and folders of data sets exist; of a data set of the hub only how it is written.

    Raises:
        ConfigError: It does not exist.
        DataError: A benchmark's name has no place, or no benchmark has that name.
    """
    from ramify.data.benchmarks import parse_dataset
    from ramify.data.tables import HUB_PREFIX

    for one_set in sources(dataset):
        named = parse_dataset(one_set)
        source = "" if named is None else named[1]
        if named is None or source.startswith(HUB_PREFIX):
            require_data(key, source or one_set)
        elif not (Path(source).is_file() or Path(source).is_dir()):
            raise ConfigError(f"{key}: expected a file, or the folder of a benchmark, found none at {source}")


def require_excluded(sources: Sequence[str]) -> None:
    """Raise ConfigError unless the files and folders of `data.exclude` exist; data sets of the hub are not checked."""
    for source in sources:
        if not source.startswith("hf:") and not Path(source).exists():
            raise ConfigError(
                f"data.exclude: expected a file, a folder or hf:org/name, found nothing at {source}"
            )


def require_tokenizer(path: Path) -> None:
    """Raise ConfigError unless `path` is a folder with a tokenizer."""
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"model.path: expected a model folder, {path / 'tokenizer.json'} is missing")


def require_model(path: Path) -> None:
    """Raise ConfigError unless `path` is a whole model's or an adapter's folder with weights and a tokenizer.

    Only the headers of the weight files are read.
    """
    try:
        whole = whole_folder(path)
        config = whole / "config.json"
        check_architecture(read_object_file(config), f"{config}")
        require_tokenizer(path)
        for folder in dict.fromkeys((whole, path)):
            stored_tensors(folder)
    except DataError as error:
        raise ConfigError(f"model.path: {error}") from None


def _require_function(part: FromFile) -> None:
    """Raise ConfigError unless the function of a part of the algorithm can be loaded, which runs its file."""
    # A file that is not there is a mistake of its key already.
    if part.path.is_file() or part.path == WITHOUT_FILE:
        part.load()


def require_rate(section: RolloutSection) -> None:
    """Raise ConfigError or DataError unless the run that `rate_from` names has a rate, and that of `of` traces."""
    rule = section.branching
    if isinstance(rule, RandomConfig) and rule.rate_from is not None:
        read_rate(rule.rate_from)
    if isinstance(rule, YokedConfig | ShuffledConfig):
        paired_traces(rule.of)


def _require_model(section: ModelConfig, *, weights: bool, fetch: bool, note: Callable[[str], None]) -> None:
    """Check the model's folder; a hub model is downloaded first, or without `fetch` skipped if it is not here yet.

    Raises:
        ConfigError: It is missing or wrong.
    """
    try:
        if fetch:
            fetch_model(section.path, weights=weights, note=note)
        elif not is_fetched(section.path, weights=weights):
            return
    except UserError as error:
        raise ConfigError(f"model.path: {error}") from None
    (require_model if weights else require_tokenizer)(section.folder)


def require_dry_run(options: argparse.Namespace) -> None:
    """Raise ConfigError if --rows is given without --dry-run."""
    if options.rows and not options.dry_run:
        raise ConfigError("--rows: expected --dry-run too; a run reads all rows by itself")


def dry_run(recipe: AnyRecipe, options: argparse.Namespace, problems: int | None = None) -> None:
    """Print a recipe, and behind it, as comments, what it asks for; with --json both are one object.

    Raises:
        UserError: The run would refuse the recipe.
    """
    from ramify.config.load import resolved

    notes = dry_run_notes(recipe, rows=options.rows, problems=problems)
    if options.json:
        from ramify.commands.run_listing import SCHEMA

        table = recipe.model_dump(mode="json")
        open_console(options).record({"schema": SCHEMA, "recipe": table, "notes": notes})
        return
    write_as_it_is(resolved(recipe) + "\n" + "".join(f"# {line}\n" for line in notes))


def dry_run_notes(recipe: AnyRecipe, *, rows: bool, problems: int | None = None) -> list[str]:
    """Return what a recipe asks for, in lines.

    Args:
        recipe: Of any kind.
        rows: Read the data and all other files too.
        problems: Its trees are grown for so many problems; None: it is trained.

    Raises:
        UserError: The run would refuse it.
    """
    from ramify.commands.memory import device_of, job_here, memory_lines
    from ramify.modeling.memory_plan import plan_of

    work = work_of(recipe, problems)
    if rows:
        from ramify.commands.check_rows import check_rows

        notes: list[str] = []
        unchecked = list(check_rows(recipe, notes.append, trains=problems is None))
        notes += unchecked or ["all files were read, and can be used"]
    else:
        if problems is None:
            _refuse_few_rows(recipe, work.rows)
        notes = [*_idle_limits(recipe), _NOT_READ]
    device, why = device_of(recipe.model)
    job = job_here(recipe, device, trains=problems is None)
    lines = [*work.in_words, f"device: {device} ({why})"]
    if not is_fetched(recipe.model.path):
        lines.append(f"model: {recipe.model.path} is fetched from the hub when the run starts")
    lines += [
        f"{key}: the run takes its text from {path}, which is not here"
        for key, path in _absent_instructions(recipe)
    ]
    if job is not None:
        total, *parts = memory_lines(job, plan_of(job))
        less = ", less where layers are computed again" if job.trains else ""
        lines += [f"memory: {total}{less}", *parts]
    return [*lines, *notes]


def _idle_limits(recipe: AnyRecipe) -> tuple[str, ...]:
    if isinstance(recipe, EvalRecipe | SynthRecipe):
        return note_idle_turn_limit(recipe.sampling.max_turn_tokens, recipe.sampling.max_tokens)
    if isinstance(recipe, TrainRecipe):
        config = recipe.eval
        if config is None:
            return ()
        return note_idle_turn_limit(config.max_turn_tokens, config.max_tokens or recipe.rollout.max_tokens)
    return () if recipe.evaluation is None else _idle_limits(recipe.evaluation)


def _refuse_few_rows(recipe: AnyRecipe, rows: int | None) -> None:
    """Refuse a step with more examples than the data have rows, of which the run may drop some more."""
    if rows is None:
        return
    if rows == 0:
        from ramify.commands.check_rows import check_rows

        # Raises as the run does when it reads the empty file.
        list(check_rows(recipe, lambda _: None))
    if isinstance(recipe, TrainRecipe):
        refuse_large_steps("rollout.problems_per_step", recipe.rollout.problems_per_step, rows)
    elif isinstance(recipe, SftRecipe | DpoRecipe):
        refuse_large_steps("learner.batch_size", recipe.learner.batch_size, rows)
