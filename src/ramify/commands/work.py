"""How much work a recipe asks for: steps, sequences and tokens, without looking into its data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_selfcritic import SelfCriticRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import num_steps

AnyRecipe: TypeAlias = TrainRecipe | SftRecipe | DpoRecipe | EvalRecipe | SynthRecipe

_MOST_COUNTED = 1 << 28
"""Bytes of a file of lines that are read to count them."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do.

    Attributes:
        steps: Of the whole run; None where the data do not tell before they are read.
        unit: What a step takes, in words.
        per_step: Trajectories, demonstrations or sides of pairs in a step.
        tokens: The most that one of them may have; of a trajectory, what follows the prompt.
        context: The longest sequence.
        writes: The model writes these tokens itself.
        trains: The step ends with an update.
        rows: Of the data, as the file's head or its lines tell; None where they do not. Some may be dropped.
    """

    steps: int | None
    unit: str
    per_step: int
    tokens: int
    context: int
    writes: bool
    trains: bool
    rows: int | None = None

    @property
    def in_words(self) -> Iterator[str]:
        """Lines for a user."""
        steps = (
            "as many steps as the data give"
            if self.steps is None
            else f"{self.steps:,} step{'s' * (self.steps != 1)}"
        )
        yield f"{steps} of {self.unit}"
        what = "trajectories" if self.writes else "sequences"
        each = f"{self.per_step:,} {what} a step, at most {self.per_step * self.tokens:,} tokens"
        behind = " after the prompts" if self.writes else ""
        if self.steps is None:
            yield each + behind
        else:
            total = self.steps * self.per_step
            yield f"{each}{behind}; {total:,} {what}, at most {total * self.tokens:,} tokens in the whole run"


def work_of(recipe: AnyRecipe, problems: int | None = None) -> Work:
    """How much a recipe asks for; `problems`: its trees are grown for so many and nothing is trained."""
    if isinstance(recipe, SynthRecipe):
        answers = recipe.sampling.direct + recipe.sampling.tools
        hinted = 0 if recipe.hints is None else recipe.hints.per_question
        count = min(filter(None, (_rows(recipe.data.train), recipe.data.limit)), default=None)
        return Work(
            None if count is None else 1,
            f"{'each question' if count is None else f'{count:,} questions'} x {answers} answers, and at most {hinted} after hints",
            (count or 1) * (answers + hinted),
            recipe.sampling.max_tokens,
            recipe.data.max_prompt_tokens + recipe.sampling.max_tokens,
            writes=True,
            trains=False,
        )
    if isinstance(recipe, EvalRecipe):
        sampling, rows = recipe.sampling, _rows(Path(recipe.data.test))
        known = [count for count in (rows, recipe.data.limit) if count is not None]
        count = min(known) if rows is not None and known else None
        return Work(
            None if count is None else 1,
            f"{'each problem' if count is None else f'{count:,} problems'} x {sampling.attempts} attempts",
            (count or 1) * sampling.attempts,
            sampling.max_tokens,
            recipe.data.max_prompt_tokens + sampling.max_tokens,
            writes=True,
            trains=False,
        )
    rows, epochs = _rows(recipe.data.train), recipe.data.epochs
    if isinstance(recipe, TrainRecipe):
        rollout = recipe.rollout
        size = problems or rollout.problems_per_step
        context = recipe.data.max_prompt_tokens + rollout.max_tokens
        unit = f"{size:,} problems x {rollout.n} trajectories"
        shape = (size * rollout.n, rollout.max_tokens, context)
    else:
        size = recipe.learner.batch_size
        sides = 2 if isinstance(recipe, DpoRecipe) else 1
        unit = f"{size:,} {'pairs' if sides == 2 else 'demonstrations'}"
        shape = (size * sides, recipe.data.max_tokens, recipe.data.max_tokens)
    if problems is not None:
        return Work(1, unit, *shape, writes=True, trains=False)
    steps = recipe.run.steps
    if isinstance(recipe, SelfCriticRecipe):
        steps = recipe.selfcritic.cycles * recipe.selfcritic.steps
    if steps is None and rows is not None:
        steps = num_steps(recipe.run, epochs, rows, size)
        unit += f" ({rows:,} rows, {epochs} epoch{'s' * (epochs > 1)})"
    return Work(steps, unit, *shape, writes=isinstance(recipe, TrainRecipe), trains=True, rows=rows)


def _rows(path: Path | None) -> int | None:
    """Rows of a data file, without looking into them; None where it is no single file of a known kind."""
    if path is None:
        return None
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
