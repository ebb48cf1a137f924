"""How many tokens the largest row of a recipe has in memory at once."""

from ramify.config.schema_dpo import DpoRecipe
from ramify.config.schema_sft import SftRecipe
from ramify.config.schema_train import TrainRecipe


def largest_row(recipe: TrainRecipe | SftRecipe | DpoRecipe) -> int:
    """Unique tokens of a row between its forward and backward pass, at most.

    A tree of more than `learner.token_budget` tokens is cut at its branch points into stages (`learner/stages.py`): the path
    above a stage is kept while the stage, of at most the budget, is computed. A trajectory alone is never cut.
    """
    budget = recipe.learner.token_budget
    if isinstance(recipe, TrainRecipe):
        prompt, rollout = recipe.data.max_prompt_tokens, recipe.rollout
        longest, leaves = prompt + rollout.max_tokens, rollout.n
        tree = prompt + leaves * rollout.max_tokens
    else:
        longest, leaves = recipe.data.max_tokens, 2 if isinstance(recipe, DpoRecipe) else 1
        tree = leaves * longest
    if tree <= budget or leaves == 1:
        return max(budget, longest)
    return min(budget + longest, tree)
