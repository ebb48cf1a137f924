"""What the content of a recipe's files decides, read as its run reads them, and nothing opened: no server, sandbox, key or GPU.

A run refuses the same with the same line when it builds its parts. `--dry-run --rows` and `ramify doctor` ask here. Only the
values of weights are left to the run, which reads them when it loads the model.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.algos.file_parts import FileLoss
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import AnyRecipe, loads_weights, refuse_large_steps
from ramify.core.messages import Problem
from ramify.data.benchmarks import parse_dataset
from ramify.data.sources import is_on_hub, sources
from ramify.data.tables import HUB_PREFIX
from ramify.files.user_code import load_function
from ramify.modeling.model_path import is_fetched
from ramify.rewards.configs import LengthRewardConfig
from ramify.rollout.configs import OwnHelperConfig
from ramify.tools.configs import DenseSearchConfig, LocalSearchConfig, OwnEnvironmentConfig

if TYPE_CHECKING:
    from ramify.assemble.task import ProblemReader
    from ramify.config.schema_parts import RewardSection
    from ramify.rewards.parts import FunctionPart


def check_rows(recipe: AnyRecipe, note: Callable[[str], None], *, trains: bool = True) -> Iterator[str]:
    """Check the content of all files; yields a line about each thing that could not be checked.

    Args:
        recipe: The recipe.
        note: Gets the run's notes about the data, such as what is repaired or left out.
        trains: False for `ramify rollout`, which takes as many problems as there are.

    Raises:
        UserError: The run would refuse, with the same message.
    """
    if not isinstance(recipe, EvalRecipe) and recipe.data.train is not None and is_on_hub(recipe.data.train):
        yield "rows were not read: those of data.train are fetched from the hub when the run starts"
        return
    if not is_fetched(recipe.model.path, weights=False):
        yield f"rows were not read: {recipe.model.path} is fetched from the hub when the run starts"
        return
    notes: list[str] = []
    loads = loads_weights(recipe, trains=trains) and is_fetched(recipe.model.path)
    # In the order of a run, which tells the first mistake only.
    if loads:
        from ramify.commands.check_files import check_positions
        from ramify.runs.checkpoint_files import check_model_folder

        check_positions(recipe)
        check_model_folder(recipe.model.folder)
    if isinstance(recipe, SftRecipe | DpoRecipe):
        if recipe.evaluation is not None:
            _read_problems(recipe.evaluation, note, notes)
        refuse_large_steps("learner.batch_size", recipe.learner.batch_size, _count_examples(recipe, note))
    else:
        problems = _read_problems(recipe, note, notes)
        if trains and isinstance(recipe, TrainRecipe):
            refuse_large_steps("rollout.problems_per_step", recipe.rollout.problems_per_step, len(problems))
    if loads:
        from ramify.modeling.load import check_weights

        check_weights(recipe.model.folder)
    yield from notes


def _count_examples(recipe: SftRecipe | DpoRecipe, note: Callable[[str], None]) -> int:
    from ramify.assemble.examples import open_examples
    from ramify.assemble.tools import show_tools

    _, reader = open_examples(recipe, show_tools(recipe.tools, recipe.environment), lambda _: None)
    count = sum(1 for _ in reader)
    reader.require_usable()
    for line in reader.notes:
        note(line)
    return count


def _check_reward(section: "RewardSection") -> "list[FunctionPart]":
    """Check the files that a reward names; returns the functions of the user's own."""
    from ramify.assemble.reward import build_own_parts

    own_parts = [part for _, part, _ in build_own_parts(section)]
    judge = None if isinstance(section, LengthRewardConfig) else section.judge
    if judge is not None and judge.cache is not None:
        _check_cache(judge.cache)
    return own_parts


def _read_problems(
    recipe: TrainRecipe | EvalRecipe | SynthRecipe, note: Callable[[str], None], notes: list[str]
) -> tuple[Problem, ...]:
    from ramify.assemble.dev_evaluation import read_dev_problems
    from ramify.assemble.task import read_task
    from ramify.assemble.tools import show_tools
    from ramify.rewards.parts import check_own_columns
    from ramify.sampler.task import ShownTools

    own_parts = _check_reward(recipe.reward)
    several = recipe.environments if isinstance(recipe, TrainRecipe) else {}
    worlds = [*several.values(), *([] if recipe.environment is None else [recipe.environment])]
    if all(isinstance(world, OwnEnvironmentConfig) for world in worlds):
        shown = show_tools(recipe.tools, recipe.environment, several)
    else:
        notes.append("prompts were measured without tools: those of the environment are asked of its server")
        shown = ShownTools((), (), {}, environments=dict.fromkeys(several, ()))
    _check_tools(recipe)
    computes = isinstance(recipe, TrainRecipe) or recipe.engine.computes_here
    files = read_task(recipe, shown, _reader(recipe, notes), lambda _: None, computes=computes)
    if not worlds:
        check_own_columns(own_parts, files.problems)
    for line in files.problem_notes:
        note(line)
    if isinstance(recipe, TrainRecipe) and isinstance(recipe.algorithm.loss, FileLoss):
        recipe.algorithm.loss.build()
    if isinstance(recipe, TrainRecipe) and recipe.eval is not None:
        if any(HUB_PREFIX in source for source in sources(recipe.eval.test)):
            notes.append("eval.test: the rows of the hub were not read")
        else:
            _, dev_notes = read_dev_problems(recipe, recipe.eval, files.renderer, shown.specs, files.problems)
            for line in dev_notes:
                note(line)
    if isinstance(recipe, SynthRecipe):
        from ramify.assemble.synthesis import read_hints

        read_hints(recipe, [spec.name for spec in shown.specs], shown.opens, lambda _: None)
    if recipe.engine.script_file is not None:
        from ramify.engines.scripted import load_script

        load_script(recipe.engine.script_file, files.renderer.result_end)
    return tuple(files.problems)


def _reader(recipe: TrainRecipe | EvalRecipe | SynthRecipe, notes: list[str]) -> "ProblemReader":
    """Return the reader of the run; what is on the hub is left out, since nothing is fetched here."""
    if isinstance(recipe, TrainRecipe):
        from ramify.assemble.task import training_problems

        here = tuple(source for source in recipe.data.exclude if not source.startswith(HUB_PREFIX))
        if len(here) < len(recipe.data.exclude):
            notes.append("data.exclude: the data sets of the hub were not read")
        return training_problems(
            recipe.model_copy(update={"data": recipe.data.model_copy(update={"exclude": here})})
        )
    if isinstance(recipe, EvalRecipe):
        from ramify.assemble.evaluation import evaluation_problems

        datasets = sources(recipe.data.test)
        here = tuple(each for each in datasets if not is_on_hub(_location(each)))
        notes += [f"{each}: the rows of the hub were not read" for each in datasets if each not in here]
        if not here:
            return lambda *_: ((), ())
        test = here if len(here) > 1 else here[0]
        data = recipe.data.model_copy(update={"test": test})
        return evaluation_problems(recipe.model_copy(update={"data": data}))
    from ramify.assemble.synthesis import synthesis_questions

    return synthesis_questions(recipe, [])


def _location(dataset: str) -> str:
    benchmark = parse_dataset(dataset)
    return dataset if benchmark is None else benchmark[1]


def _check_tools(recipe: TrainRecipe | EvalRecipe | SynthRecipe) -> None:
    """Read the files of tools and repair tools that opening them would read."""
    search, cache, repair = recipe.tools.search, recipe.tools.cache, recipe.repair
    for each in (search, *(recipe.tools.search_of or {}).values()):
        if isinstance(each, LocalSearchConfig | DenseSearchConfig):
            from ramify.tools.index_folder import check_passages

            check_passages(each.corpus, each.index if isinstance(each, LocalSearchConfig) else None)
    if cache is not None:
        _check_cache(cache.path)
    if repair is not None and repair.cache is not None:
        _check_cache(repair.cache.path)
    if repair is not None and isinstance(repair.helper, OwnHelperConfig):
        load_function(repair.helper.path, repair.helper.function)


def _check_cache(path: Path) -> None:
    """Read a cache that is there; none is made."""
    if path.exists():
        from ramify.cache.database import connect_to_read

        connect_to_read(path).close()
