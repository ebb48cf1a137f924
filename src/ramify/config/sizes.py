"""Sizes that follow from a recipe: steps of a run, the longest sequence, the largest row; and checks of settings against them."""

import math

from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError
from ramify.learner.configs import OptimizerConfig
from ramify.runs.configs import TrainingRunConfig


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
    """A note if the learning rate does not reach its peak within the run's `total_steps` optimizer steps."""
    if optimizer.warmup_steps <= total_steps:
        return ()
    return (
        f"note: the run ends within the warm-up (learner.optimizer.warmup_steps = {optimizer.warmup_steps}, optimizer steps "
        f"of the whole run {total_steps}): the rate reaches {total_steps / optimizer.warmup_steps:.2g} of its peak",
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
