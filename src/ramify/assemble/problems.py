"""Builds the problems of a checked recipe: from a file of the user's own, or a benchmark by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.config.other_runs import dialect_notes, training_overlap_notes
from ramify.config.schema_eval import EvalDataSection
from ramify.config.schema_synth import SynthDataSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import DataError
from ramify.core.messages import Problem, ToolSpec
from ramify.data.configs import DataFiles
from ramify.data.problems import control_notes
from ramify.data.sources import Data, named, sources
from ramify.modeling.configs import ModelConfig
from ramify.rewards.configs import EnvironmentRewardConfig

if TYPE_CHECKING:
    from ramify.chat.renderer import ChatRenderer


_NUMBERED = 10_000
"""Problems that an environment brings before they come again; one that comes again is drawn anew. The number does not depend on
`run.steps`, so that a run can be made longer."""


def build_problems(
    recipe: TrainRecipe, renderer: "ChatRenderer", shown: Mapping[str, Sequence[ToolSpec]]
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Read problems and drop those whose prompt is too long; returns the problems and one-line notes.

    Args:
        recipe: The recipe.
        renderer: Renders the prompts and counts their tokens.
        shown: By the name of an environment the tools that its prompts show; "" if the recipe does not name any.

    Raises:
        DataError: Something cannot be read, a row names no environment of the recipe, or no problem is left.
    """
    from ramify.data.problems import ENVIRONMENT, numbered_problems
    from ramify.data.prompts import read_prompt_texts

    notes: list[str] = []
    problems: Sequence[Problem]
    source = "environment" if recipe.data.train is None else named(recipe.data.train)
    if recipe.data.train is None:
        problems = numbered_problems(_NUMBERED, tuple(recipe.environments))
    else:
        problems = _read_rows(recipe, recipe.data.train, notes)
    texts = read_prompt_texts("data.instructions", recipe.data.instructions, renderer, recipe.model.dialect)
    notes += texts.notes
    usable: dict[str, Problem] = {}
    for name, tools in shown.items():
        own = [problem for problem in problems if not name or problem.info.get(ENVIRONMENT) == name]
        if own:
            own = list(texts.in_front(own, _names(tools)))
            fitting, too_long = _fitting(source, own, renderer, tools, recipe.data.max_prompt_tokens)
            usable |= {problem.id: problem for problem in fitting}
            notes += too_long
    return tuple(usable[problem.id] for problem in problems if problem.id in usable), tuple(notes)


def _names(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(spec.name for spec in tools)


def tool_names(shown: Mapping[str, Sequence[ToolSpec]]) -> frozenset[str]:
    """Return the names of the tools that the prompts of any environment show."""
    return frozenset(spec.name for tools in shown.values() for spec in tools)


def _read_rows(recipe: TrainRecipe, data: DataFiles, notes: list[str]) -> Sequence[Problem]:
    """Return the problems of a file, and add to `notes`.

    Raises:
        DataError: The file cannot be read, a row names no environment of the recipe, or no problem is left.
    """
    from ramify.data.overlap import duplicate_notes
    from ramify.data.problems import ENVIRONMENT, load_problems

    reward = recipe.reward
    is_paid = isinstance(reward, EnvironmentRewardConfig) and reward.judge is None
    path = named(data)
    section = recipe.data
    loaded = load_problems(
        data, bare=is_paid, columns=section.columns, weights=section.weights, limit=section.limit
    )
    problems = loaded.problems
    # The environments' own problems have no text that could be there twice.
    unique = [] if recipe.data.weights else [problem for problem in problems if problem.answer]
    duplicates = duplicate_notes(unique)
    notes += _about(data, (*loaded.notes, *duplicates))
    names = recipe.environments
    for problem in problems:
        name = problem.info.get(ENVIRONMENT)
        if names and name not in names:
            raise DataError(
                f"{path}: problem {problem.id!r}: expected its environment, one of {', '.join(names)}, in the column "
                f"{ENVIRONMENT!r}, got {name!r:.60}"
            )
    if recipe.data.exclude:
        problems, dropped = _without(path, problems, recipe.data.exclude)
        notes.append(f"{path}: {dropped}")
    return problems


def _about(data: Data, notes: Sequence[str]) -> list[str]:
    """Return notes about data, each with their name; a note about one of several files has that file's already."""
    names = tuple(f"{source}: " for source in sources(data))
    return [note if note.startswith(names) else f"{named(data)}: {note}" for note in notes]


def build_eval_problems(
    section: EvalDataSection, renderer: "ChatRenderer", tools: Sequence[ToolSpec], model: ModelConfig
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Read the problems, with instructions in front if the recipe asks for them; returns them and one-line notes.

    Args:
        section: The recipe's data section.
        renderer: Renders the prompts and counts their tokens.
        tools: The agent's tools.
        model: The recipe's model section; if a run made the model, the problems are compared with that run's training data.

    Raises:
        DataError: Something cannot be read, or no problem is left.
    """
    from ramify.data.prompts import read_prompt_texts

    datasets = sources(section.test)
    every: dict[str, Problem] = {}
    notes: list[str] = []
    for dataset in datasets:
        problems, source_notes, is_benchmark = _read_dataset(section, dataset)
        if len(datasets) > 1:
            problems = [_of_benchmark(problem, Path(dataset)) for problem in problems]
        value = is_benchmark if section.instructions is None else section.instructions
        texts = read_prompt_texts("data.instructions", value, renderer, model.dialect)
        shown = texts.in_front(problems, _names(tools))
        fitting, dropped = _fitting(dataset, shown, renderer, tools, section.max_prompt_tokens)
        notes += [*texts.notes, *_about(dataset, source_notes), *dropped]
        if twice := every.keys() & {problem.id for problem in fitting}:
            raise DataError(
                f"{dataset}: problem {min(twice)!r} is in another data set of data.test too. Name each of them once, and rename one of "
                "two files that have the same name"
            )
        every |= {problem.id: problem for problem in fitting}
    fitting = tuple(every.values())
    # A note about the instructions is the same for all of them.
    notes = list(dict.fromkeys(notes))
    return fitting, (*notes, *dialect_notes(model), *training_overlap_notes(model.folder, fitting))


def _read_dataset(section: EvalDataSection, dataset: str) -> tuple[Sequence[Problem], Sequence[str], bool]:
    """Return the problems of one data set, notes about it, and True if it is a benchmark."""
    from ramify.data.benchmarks import load_benchmark, parse_dataset
    from ramify.data.overlap import duplicate_notes
    from ramify.data.problems import load_problems

    benchmark = parse_dataset(dataset)
    if benchmark is not None:
        loaded = load_benchmark(*benchmark, limit=section.limit)
        return loaded.problems, loaded.notes, True
    loaded = load_problems(dataset, columns=section.columns, split="test", limit=section.limit)
    return loaded.problems, (*loaded.notes, *duplicate_notes(loaded.problems)), False


def _of_benchmark(problem: Problem, path: Path) -> Problem:
    """Return a problem that has a benchmark, and an id that begins with it: of a file of one's own, the file's name."""
    if "benchmark" in problem.info:
        return problem
    identifier = problem.id if problem.id.startswith(path.stem) else f"{path.stem}/{problem.id}"
    return replace(problem, id=identifier, info={**problem.info, "benchmark": path.stem})


@dataclass(frozen=True, slots=True)
class Questions:
    """The questions of a synthesis, under the prompt with tools and under the one without, in the same order."""

    with_tools: tuple[Problem, ...]
    direct: tuple[Problem, ...]
    notes: tuple[str, ...]


def build_questions(
    section: SynthDataSection,
    renderer: "ChatRenderer",
    tools: Sequence[ToolSpec],
    dialect: str,
) -> Questions:
    """Read the questions of a synthesis; those that are too long under either prompt are dropped.

    Args:
        section: The recipe's data section.
        renderer: Renders the prompts and counts their tokens.
        tools: The agent's tools; direct questions are rendered without any.
        dialect: The recipe's `model.dialect`.

    Raises:
        DataError: Something cannot be read, or no question is left.
    """
    from ramify.data.overlap import duplicate_notes
    from ramify.data.problems import load_problems
    from ramify.data.prompts import PromptTexts, read_prompt_texts

    loaded = load_problems(section.train, columns=section.columns, limit=section.limit)
    source = named(section.train)
    questions = loaded.problems
    notes = _about(section.train, (*loaded.notes, *duplicate_notes(questions)))
    texts = read_prompt_texts("data.instructions", section.instructions, renderer, dialect)
    notes += texts.notes
    direct = questions
    if section.instructions:
        bare = [
            replace(problem, messages=tuple(each for each in problem.messages if each.role != "system"))
            for problem in questions
        ]
        direct = PromptTexts(dialect, own=True).in_front(bare, ())
    questions = texts.in_front(questions, _names(tools))
    fitting, dropped = _fitting(source, questions, renderer, tools, section.max_prompt_tokens)
    short = {problem.id for problem in fitting}
    direct = tuple(problem for problem in direct if problem.id in short)
    kept_direct, dropped_direct = _fitting(source, direct, renderer, (), section.max_prompt_tokens)
    short = {problem.id for problem in kept_direct}
    both = tuple(problem for problem in fitting if problem.id in short)
    return Questions(both, kept_direct, tuple(dict.fromkeys((*notes, *dropped, *dropped_direct))))


def _fitting(
    source: str,
    problems: Sequence[Problem],
    renderer: "ChatRenderer",
    tools: Sequence[ToolSpec],
    max_prompt_tokens: int,
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return the problems whose prompt is short enough, and notes on those dropped; `source` is named in messages.

    Raises:
        DataError: No prompt is short enough.
    """
    fits = renderer.fitting(problems, tools, max_prompt_tokens)
    fitting = tuple(problem for problem, short in zip(problems, fits, strict=True) if short)
    if not fitting:
        texts = (renderer.prompt_text(problem, tools) for problem in problems)
        least = min(map(renderer.tokenizer.fewest_tokens, texts))
        raise DataError(
            f"{source}: no problem is left, all prompts have more than max_prompt_tokens = {max_prompt_tokens} tokens "
            f"(the shortest has at least {max(least, max_prompt_tokens + 1)}"
            + (
                ", with the descriptions of the tools: in_prompt = false leaves out a tool's)"
                if tools
                else ")"
            )
            + ". Raise data.max_prompt_tokens."
        )
    notes = []
    if len(fitting) < len(problems):
        notes.append(
            f"{source}: dropped {len(problems) - len(fitting)} of {len(problems)} problems whose prompt has more than "
            f"{max_prompt_tokens} tokens"
        )
    notes += control_notes(source, [renderer.foreign_control(problem, tools) for problem in fitting])
    return fitting, tuple(notes)


def _without(
    path: str, problems: tuple[Problem, ...], exclude: Sequence[str]
) -> tuple[tuple[Problem, ...], str]:
    from ramify.data.overlap import read_questions, without_questions

    remaining = without_questions(problems, read_questions(exclude))
    places = ", ".join(exclude)
    if not remaining:
        raise DataError(
            f"{path}: no problem is left, all of them are in data.exclude ({places}). Name other problems, or exclude fewer."
        )
    return (
        remaining,
        f"dropped {len(problems) - len(remaining)} of {len(problems)} problems that are in {places}",
    )
