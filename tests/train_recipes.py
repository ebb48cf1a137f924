"""A small training recipe, and what loading it gives."""

import pytest

from ramify.config.load import load_recipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError

RECIPE = """\
[model]
path = "models/tiny"
[data]
train = "train.jsonl"
max_prompt_tokens = 512
[run]
dir = "runs/a"
[rollout]
problems_per_step = 4
n = 8
m = 3
max_tokens = 256
max_calls = 3
branching = "threshold"
[engine]
name = "local"
[tools.search]
corpus = "passages.jsonl"
[tools.python]
[reward]
name = "hierarchical"
[algorithm]
estimator = { name = "group" }
loss = { name = "clip" }
[learner]
problems_per_minibatch = 2
optimizer = { rate = 1e-3 }
"""


def load(recipe, *overrides):
    return load_recipe(TrainRecipe, recipe, overrides)


def refusal(recipe, *overrides, text=None):
    """The one line that a wrong recipe gives, without the file's name in front."""
    if text is not None:
        recipe.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(recipe, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    front = f"{recipe}: "
    assert message.startswith(front)
    return message.removeprefix(front)
