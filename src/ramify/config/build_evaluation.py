"""The problems of an evaluation: a benchmark by name, or a problem file of the user's own."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.config.schema_eval import EvalDataSection
from ramify.config.schema_parts import ModelSection
from ramify.core.errors import ConfigError
from ramify.core.messages import Problem

if TYPE_CHECKING:
    from ramify.chat.renderer import ChatRenderer


def build_eval_problems(
    section: EvalDataSection, renderer: "ChatRenderer", tools: Collection[str], model: ModelSection
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Read the problems, with instructions in front if the recipe asks for them; returns them and one-line notes.

    Args:
        section: The recipe's data section.
        renderer: Renders the prompts and counts their tokens.
        tools: Names of the agent's tools, for the instructions.
        model: The recipe's model section; if a run made the model, the problems are compared with that run's training data.

    Raises:
        DataError: Something cannot be read, or no problem is left.
    """
    from ramify.config.build import fitting
    from ramify.config.other_runs import training_overlap_notes
    from ramify.data.benchmarks import instructed, load_benchmark, parse_dataset
    from ramify.data.overlap import duplicate_notes
    from ramify.data.problems import load_problems

    named = parse_dataset(section.test)
    if named is None:
        loaded = load_problems(Path(section.test))
        problems = loaded.problems[: section.limit]
        said = (*loaded.notes, *duplicate_notes(problems))
    else:
        loaded = load_benchmark(*named, limit=section.limit)
        problems, said = loaded.problems, loaded.notes
    wants = named is not None if section.instructions is None else section.instructions
    shown = instructed(problems, tools, model.dialect) if wants else problems
    kept, dropped = fitting(section.test, shown, renderer, section.max_prompt_tokens)
    notes = [f"{section.test}: {note}" for note in said]
    return kept, (*notes, *dropped, *training_overlap_notes(model.folder, kept))


def require_dataset(dataset: str) -> None:
    """Check that the file or folder of `data.test` exists; a data set of the hub is not checked.

    Raises:
        ConfigError: It does not exist.
        DataError: A benchmark's name has no place, or no benchmark has that name.
    """
    from ramify.data.benchmark_hub import HUB_PREFIX
    from ramify.data.benchmarks import parse_dataset

    named = parse_dataset(dataset)
    place = dataset if named is None else named[1]
    if place.startswith(HUB_PREFIX):
        return
    if not (Path(place).is_file() or (named is not None and Path(place).is_dir())):
        raise ConfigError(f"data.test: expected a file, or the folder of a benchmark, found none at {place}")
