"""The recipes of Tool-Star have the released numbers.

They are copied from the reference page of Tool-Star, design/reference/toolstar.md, whose section stands with each table. It cites
the files of RUC-NLPIR/Tool-Star.
"""

from functools import reduce
from pathlib import Path

import pytest

from ramify.config.load import read_toml

RECIPES = Path(__file__).parents[2] / "recipes"

PYTHON = {  # section 1.3: 5 s; 400 characters; the names that each program starts with
    "tools.python.timeout_seconds": 5,
    "tools.python.max_output_chars": 400,
    "tools.python.preamble": [
        *("import numpy as np", "import sympy", "import math", "from sympy import symbols, Eq, solve"),
        "x, y, z = symbols('x y z')",
    ],
}
SFT = {  # section 3: warm-up ratio 0.1; gradient clip of the Hugging Face trainer
    "data.epochs": 3,
    "data.max_tokens": 15_000,
    "learner.batch_size": 16,
    "learner.optimizer.rate": 7e-6,
    "learner.optimizer.decay": "cosine",
    "learner.optimizer.warmup_ratio": 0.1,
    "learner.optimizer.decay_from": 0.1,
    "learner.optimizer.max_grad_norm": 1.0,
}
GRPO = {  # sections 1 (call budgets) and 4.2
    "rollout.problems_per_step": 128,
    "rollout.n": 8,
    "rollout.max_calls": 3,
    "rollout.max_tokens": 4096,
    "rollout.temperature": 1.0,
    "data.max_prompt_tokens": 1536,
    "learner.problems_per_minibatch": 16,
    "learner.optimizer.rate": 1e-6,
    "learner.optimizer.max_grad_norm": 1.0,
    "algorithm.loss.clip_low": 0.2,
    "algorithm.loss.clip_high": 0.2,
    "algorithm.entropy_bonus": 0.001,
    "reward.bonus": 0.1,
}
DPO = {  # section 5: alpha is twice the rank, LLaMA-Factory's default
    "lora": {"rank": 8, "alpha": 16.0, "targets": "all-linear"},
    "beta": 0.1,
    "batch_size": 16,
    "epochs": 3,
    "max_tokens": 8192,
    "optimizer.rate": 5e-6,
    "optimizer.decay": "cosine",
    "optimizer.decay_from": 0.1,
    "optimizer.warmup_ratio": 0.1,
}
EVALUATION = {"temperature": 0, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}  # section 6.1
CALLS = {"tools.python.max_calls": 3, "tools.search.max_calls": 3, "data.limit": 500}  # sections 1 and 6.1
SECTIONS = {"lora": "model", "epochs": "data", "max_tokens": "data"}
"""Where a recipe of `ramify dpo` has what stands in [dpo] of `ramify selfcritic`; the rest is in [learner]."""

RELEASED = {
    "toolstar_sft": SFT,
    "toolstar_grpo": GRPO | PYTHON | {"data.epochs": 2},
    "toolstar_selfcritic": GRPO | PYTHON | {f"dpo.{key}": value for key, value in DPO.items()},
    "toolstar_synth": PYTHON | {"quality.max_calls": 5},  # section 2.4
    "eval_toolstar": PYTHON | {f"sampling.{key}": value for key, value in EVALUATION.items()} | CALLS,
    "dpo_toolstar_7b": {f"{SECTIONS.get(key, 'learner')}.{key}": value for key, value in DPO.items()},
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_recipe_has_the_released_numbers(name):
    recipe = read_toml(RECIPES / f"{name}.toml")
    values = {key: reduce(lambda table, part: table[part], key.split("."), recipe) for key in RELEASED[name]}
    assert values == RELEASED[name]
