"""A recipe of any kind, and the work that it asks for: steps, sequences and tokens, without looking into its data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ramify.config.load import command_of, load_recipe, read_toml
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_selfcritic import SelfCriticRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import num_steps
from ramify.data.configs import DataFiles
from ramify.data.sources import sources

AnyRecipe: TypeAlias = TrainRecipe | SftRecipe | DpoRecipe | EvalRecipe | SynthRecipe

_MOST_COUNTED = 1 << 28
"""Bytes of a file of lines that are read to count them."""


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


def load_any(path: Path, overrides: Sequence[str]) -> AnyRecipe:
    """Return a recipe of the kind that its keys tell.

    Raises:
        ConfigError: It is wrong.
    """
    kinds: tuple[type[AnyRecipe], ...] = (EvalRecipe, SynthRecipe, SelfCriticRecipe, TrainRecipe, DpoRecipe)
    schemas = {kind.command: kind for kind in kinds}
    return load_recipe(schemas.get(command_of(read_toml(path)) or "", SftRecipe), path, overrides)


def loads_weights(recipe: AnyRecipe, *, trains: bool = True) -> bool:
    """Return True if a model is in this process; it may be at a service. `ramify rollout` does not train."""
    engine = recipe.engine
    return engine is None or engine.computes_here or (trains and isinstance(recipe, TrainRecipe))


def work_of(recipe: AnyRecipe, problems: int | None = None) -> Work:
    """Return the work of a recipe; `problems`: its trees are grown for so many and nothing is trained."""
    if isinstance(recipe, EvalRecipe):
        attempts = recipe.sampling.attempts
        return _attempts(recipe, Path(recipe.data.test), "problem", f"{attempts} attempts", attempts)
    if isinstance(recipe, SynthRecipe):
        each = recipe.sampling.direct + recipe.sampling.tools
        hinted = 0 if recipe.hints is None else recipe.hints.per_question
        tries = f"{each} answers, and at most {hinted} after hints"
        return _attempts(recipe, recipe.data.train, "question", tries, each + hinted)
    rows, epochs, steps = _rows(recipe.data.train), recipe.data.epochs, recipe.run.steps
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
        unit += f" ({rows:,} rows, {epochs} epoch{'s' * (epochs > 1)})"
    return Work(steps, unit, per_step, tokens, writes=isinstance(recipe, TrainRecipe), rows=rows)


def _attempts(recipe: EvalRecipe | SynthRecipe, file: DataFiles, what: str, tries: str, each: int) -> Work:
    """Return the attempts at all problems or questions as one step, `each` at one."""
    known = [count for count in (_rows(file), recipe.data.limit) if count is not None]
    count = min(known, default=None)
    unit = f"each {what} x {tries}" if count is None else f"{count:,} {what}s x {tries}"
    steps = None if count is None else 1
    return Work(steps, unit, (1 if count is None else count) * each, recipe.sampling.max_tokens, writes=True)


def _rows(data: DataFiles | None) -> int | None:
    """Count the rows of data files, without looking into them; None where one is no file of a known kind."""
    counts = [] if data is None else [_rows_of(Path(source)) for source in sources(data)]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


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
