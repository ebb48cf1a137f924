"""Settings of the training loops."""

from dataclasses import dataclass, field

from ramify.core.config import (
    Calls,
    Config,
    Fraction,
    PositiveFraction,
    PositiveInt,
    PositiveWeight,
    Reserved,
    Switch,
    Temperature,
    Tokens,
)
from ramify.data.configs import Columns, Datasets, Instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightConfig(Config):
    """Grow trees for the first `problems` with the untrained model, report on them, and stop if rewards never differ.

    With `allow_zero_variance` the run starts even then. Without the table there is no preflight.
    """

    enabled: Switch = True
    problems: PositiveInt = 8
    allow_zero_variance: Switch = False


DECODING_KEYS = ("max_turn_tokens", "top_p", "top_k", "min_p", "repetition_penalty")
"""Keys of an evaluation that training's own rollouts do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(Config):
    """Evaluate every `every` steps, after the last one, and with `at_start` before the first.

    `test`, `columns`, `instructions` and `limit` are those of `[data]` in a recipe of `ramify eval`; `attempts`, `temperature`,
    `max_turn_tokens`, `top_p`, `top_k`, `min_p` and `repetition_penalty` those of its `[sampling]`. A text that `data.instructions` sets holds
    for `test` too, unless it has its own. In RL the other limits are those of training unless they are set, and at most as many. The share of right
    attempts ranks the checkpoints that `run.keep_best` keeps. With `patience` the run ends after so many evaluations in a row
    without a better score. `null` scores agents that know nothing at the first evaluation.
    """

    test: Datasets = field(kw_only=False)
    columns: Columns = field(default_factory=dict)
    every: PositiveInt
    at_start: Switch = True
    instructions: Instructions | None = None
    limit: PositiveInt | None = None
    attempts: Reserved = 1
    temperature: Temperature = 1.0
    max_turn_tokens: Tokens | None = None
    top_p: PositiveFraction = 1.0
    top_k: PositiveInt | None = None
    min_p: Fraction = 0.0
    repetition_penalty: PositiveWeight = 1.0
    max_prompt_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    max_calls: Calls | None = None
    max_result_chars: PositiveInt | None = None
    patience: PositiveInt | None = None
    null: Switch = False

    def refuse_unsaved(self, save_every: int) -> None:
        """Refuse evaluations of weights that get no checkpoint (ValueError)."""
        if self.every % save_every:
            raise ValueError(
                f"eval.every: expected a multiple of run.save_every = {save_every}, so that what is evaluated has a "
                f"checkpoint, got {self.every}"
            )
