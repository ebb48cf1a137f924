"""Sizes that follow from a recipe of any kind: the work that it asks for, the longest sequence, the largest row; checks against them.

Of the data only the number of rows is read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.core.errors import ConfigError, DataError
from ramify.data.sources import Data, Split, data_files, is_on_hub, sources, weighted
from ramify.learner.configs import OptimizerConfig
from ramify.runs.configs import TrainingRunConfig

AnyRecipe: TypeAlias = TrainRecipe | SftRecipe | DpoRecipe | EvalRecipe | SynthRecipe

_MOST_COUNTED = 1 << 28
"""Bytes of a file of lines that are read to count them."""


def num_steps(run: TrainingRunConfig, epochs: int, examples: int, per_step: int) -> int:
    """Number of steps of a whole run: `run.steps`, or else as many as `epochs` over all `examples` need."""
    return run.steps or math.ceil(examples * epochs / per_step)


def refuse_large_steps(key: str, per_step: int, available: int) -> None:
    """Refuse steps with more examples than there are, because a step uses no example twice.

    Args:
        key: Key of the recipe that sets the examples per step.
        per_step: Its value.
        available: Number of examples in `data.train`, without dropped ones.

    Raises:
        ConfigError: There are too few examples for one step.
    """
    if per_step > available:
        raise ConfigError(
            f"{key}: expected at most {available}, the number of usable rows of data.train, got {per_step}"
        )


def note_long_warmup(optimizer: OptimizerConfig, total_steps: int) -> tuple[str, ...]:
    """Return a note if the learning rate does not reach its peak within the run's `total_steps` optimizer steps."""
    if optimizer.warmup(total_steps) <= total_steps:
        return ()
    return (
        f"note: the run ends within the warm-up (learner.optimizer.warmup_steps = {optimizer.warmup_steps}, optimizer steps "
        f"of the whole run {total_steps}): the rate reaches {total_steps / optimizer.warmup_steps:.2g} of its peak",
    )


def note_idle_turn_limit(turn: int | None, whole: int) -> tuple[str, ...]:
    """Return a note if the limit of a turn (`max_turn_tokens`) is not below that of its trajectory (`max_tokens`)."""
    if turn is None or turn < whole:
        return ()
    return (
        f"max_turn_tokens = {turn} has no effect, because max_tokens = {whole} limits the whole trajectory",
    )


def longest_sequence(recipe: TrainRecipe | SftRecipe | EvalRecipe | SynthRecipe) -> int:
    """Return the most tokens of a prompt and all that follows it, in evaluations too; of a self-critic run, in its RL."""
    if isinstance(recipe, SftRecipe):
        own = recipe.data.max_tokens
        return own if recipe.evaluation is None else max(own, longest_sequence(recipe.evaluation))
    limits = recipe.rollout if isinstance(recipe, TrainRecipe) else recipe.sampling
    return recipe.data.max_prompt_tokens + limits.max_tokens


def largest_row(recipe: TrainRecipe | SftRecipe) -> int:
    """Unique tokens of a row between its forward and backward pass, at most.

    A tree of more than `learner.token_budget` tokens is cut at its branch points into stages (`learner/forward.py`): the path
    above a stage is kept while the stage, of at most the budget, is computed. A trajectory alone is never cut.
    """
    budget = recipe.learner.token_budget
    if isinstance(recipe, TrainRecipe):
        leaves, longest = recipe.rollout.n, longest_sequence(recipe)
        tree = recipe.data.max_prompt_tokens + leaves * recipe.rollout.max_tokens
    else:
        leaves, longest = 2 if isinstance(recipe, DpoRecipe) else 1, recipe.data.max_tokens
        tree = leaves * longest
    if tree <= budget or leaves == 1:
        return max(budget, longest)
    return min(budget + longest, tree)


@dataclass(frozen=True, slots=True)
class Work:
    """Steps, and what each of them takes at most.

    Attributes:
        steps: Of the whole run; None where the data do not tell before they are read.
        unit: What a step takes, in words.
        per_step: Trajectories, demonstrations or sides of pairs in a step.
        tokens: The most that one of them may have; of a trajectory, what follows the prompt.
        writes: The model writes these tokens itself.
        rows: Of the data, as the file's head or its lines tell; None where they do not. Some may be dropped.
    """

    steps: int | None
    unit: str
    per_step: int
    tokens: int
    writes: bool
    rows: int | None = None

    @property
    def in_words(self) -> Iterator[str]:
        """Yield lines for a user."""
        what, behind = ("trajectories", " after the prompts") if self.writes else ("sequences", "")
        each = f"{self.per_step:,} {what} a step, at most {self.per_step * self.tokens:,} tokens{behind}"
        if self.steps is None:
            yield f"as many steps as the data give of {self.unit}"
            yield each
            return
        total = self.steps * self.per_step
        yield f"{self.steps:,} step{'s' * (self.steps != 1)} of {self.unit}"
        yield f"{each}; {total:,} {what}, at most {total * self.tokens:,} tokens in the whole run"


def loads_weights(recipe: AnyRecipe, *, trains: bool = True) -> bool:
    """Return True if a model is in this process; it may be at a service. `ramify rollout` does not train."""
    engine = recipe.engine
    return engine is None or engine.computes_here or (trains and isinstance(recipe, TrainRecipe))


def work_of(recipe: AnyRecipe, problems: int | None = None) -> Work:
    """Return the work of a recipe; `problems`: its trees are grown for so many and nothing is trained."""
    if isinstance(recipe, EvalRecipe):
        attempts = recipe.sampling.attempts
        tries = f"{attempts} attempt{'s' * (attempts > 1)}"
        return _attempts(recipe, recipe.data.test, "problem", tries, attempts)
    if isinstance(recipe, SynthRecipe):
        each = recipe.sampling.direct + recipe.sampling.tools
        hinted = 0 if recipe.hints is None else recipe.hints.per_question
        tries = f"{each} answers, and at most {hinted} after hints"
        return _attempts(recipe, recipe.data.train, "question", tries, each + hinted)
    rows, epochs, steps = _rows_of_epoch(recipe), recipe.data.epochs, recipe.run.steps
    if isinstance(recipe, TrainRecipe):
        n, tokens = recipe.rollout.n, recipe.rollout.max_tokens
        size = problems or recipe.rollout.problems_per_step
        unit, per_step = f"{size:,} problems x {n} trajectories", size * n
    else:
        size, sides, tokens = (
            recipe.learner.batch_size,
            1 + isinstance(recipe, DpoRecipe),
            recipe.data.max_tokens,
        )
        unit, per_step = f"{size:,} {'pairs' if sides == 2 else 'demonstrations'}", size * sides
    if isinstance(recipe, SelfCriticRecipe):
        steps = recipe.selfcritic.cycles * recipe.selfcritic.steps
    if problems is not None:
        steps, rows = 1, None
    elif steps is None and rows is not None:
        steps = num_steps(recipe.run, epochs, rows, size)
        unit += f" ({rows:,} row{'s' * (rows != 1)}, {epochs} epoch{'s' * (epochs > 1)})"
    return Work(steps, unit, per_step, tokens, writes=isinstance(recipe, TrainRecipe), rows=rows)


def _attempts(recipe: EvalRecipe | SynthRecipe, file: Data, what: str, tries: str, each: int) -> Work:
    """Return the attempts at all problems or questions as one step, `each` at one."""
    # The limit of an evaluation holds for each of its data sets.
    evaluates, limit = isinstance(recipe, EvalRecipe), recipe.data.limit
    rows = [_row_counts(each, "test") for each in sources(file)] if evaluates else [_row_counts(file)]
    counts = [limit if each is None else min(sum(each), limit or sum(each)) for each in rows]
    count = None if None in counts else sum(filter(None, counts))
    most = "at most " if None in rows else ""
    unit = (
        f"each {what} x {tries}" if count is None else f"{most}{count:,} {what}{'s' * (count != 1)} x {tries}"
    )
    steps = None if count is None else 1
    return Work(steps, unit, (1 if count is None else count) * each, recipe.sampling.max_tokens, writes=True)


def _rows_of_epoch(recipe: TrainRecipe | SftRecipe) -> int | None:
    """Count the rows of an epoch, copies by `data.weights` included, as `data.sources.read_data` yields them."""
    data = recipe.data
    counts = _row_counts(data.train)
    if counts is None:
        return None
    weights = data.weights or (1.0,) * len(counts)
    if data.limit is not None:
        # The limit counts rows before they are copied.
        before = [sum(counts[:index]) for index in range(len(counts))]
        counts = [min(count, max(data.limit - first, 0)) for count, first in zip(counts, before, strict=True)]
    return sum(weighted(count, weight) for count, weight in zip(counts, weights, strict=True))


def _row_counts(data: Data | None, split: Split = "train") -> list[int] | None:
    """Count the rows of each source of data, without looking into them; None where they cannot be counted so."""
    counts = [] if data is None else [_rows_in(source, split) for source in sources(data)]
    known = [count for count in counts if count is not None]
    return known if counts and len(known) == len(counts) else None


def _rows_in(source: str, split: Split) -> int | None:
    """Count the rows of a file, a folder of shards, or a benchmark; None for data of the hub, and where a file is of no known kind."""
    from ramify.data.benchmark_files import find_benchmark
    from ramify.data.benchmarks import parse_dataset

    try:
        benchmark = parse_dataset(source) if split == "test" else None
        if is_on_hub(source if benchmark is None else benchmark[1]):
            return None
        files = data_files(source, split) if benchmark is None else find_benchmark(*benchmark)[0]
    # Told by the one who reads it.
    except (DataError, OSError):
        return None
    counts = [_rows_of(path) for path in files]
    return None if None in counts else sum(filter(None, counts))


def _rows_of(path: Path) -> int | None:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return int(pyarrow.parquet.read_metadata(path).num_rows)
        if path.suffix == ".jsonl" and path.stat().st_size <= _MOST_COUNTED:
            with path.open("rb") as file:
                return sum(not line.isspace() for line in file)
    # A foreign file: what is wrong with it is told by the one who reads it.
    except Exception:  # noqa: BLE001
        return None
    return None
