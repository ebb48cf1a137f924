"""The schema of a reinforcement-learning recipe (`ramify train`, `ramify rollout`)."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_parts import (
    EngineSection,
    OptimizerSection,
    Section,
    TrainedModelSection,
    TrainingRunSection,
    refuse_all,
    refuse_clocks,
    refuse_idle_rates,
)
from ramify.config.schema_reward import RewardSection, refuse_compat_reward, refuse_idle_bonus
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_tools import SandboxSection, ToolsSection, refuse_idle_sandbox
from ramify.core.config import BelowOne, Count, Nats, PositiveInt, Tokens, UserPath


def _usable(place: str) -> str:
    if not place.strip() or "\0" in place:
        raise ValueError("expected a file, a folder or hf:org/name")
    return place


class TrainDataSection(Section):
    """Problems to learn from; problems whose prompt is longer than `max_prompt_tokens` are dropped and counted.

    So are problems whose question is in `exclude`: files, folders of benchmarks, or data sets of the hub
    ("hf:org/name").
    """

    train: UserPath
    exclude: Annotated[tuple[Annotated[str, AfterValidator(_usable)], ...], Field(max_length=100)] = ()
    epochs: PositiveInt = 1
    max_prompt_tokens: Tokens


class LearnerSection(Section):
    """One optimiser step per mini-batch of whole problems; a forward pass has about `token_budget` unique tokens."""

    problems_per_minibatch: PositiveInt
    token_budget: Tokens = 4096
    optimizer: OptimizerSection


class GuardSection(Section):
    """Thresholds that tell when a run has collapsed, and what to do then; a threshold that is left out is not checked.

    `max_repetition`, `max_invalid_calls`, `max_zero_variance`: the metrics `health/repetition`,
    `health/invalid_calls` and `group/zero_variance`. `max_length`: `health/written` as a share of
    `rollout.max_tokens`. `min_entropy`: `health/entropy`, nats. `max_non_finite`: `update/non_finite`. `max_fall`: how far
    the share of right answers (`reward/part/correct`, over about 64 problems) may fall from its best, as a part of it.

    After `patience` consecutive steps that break a threshold, the run goes back to the last good checkpoint; after
    `max_fallbacks` such fallbacks it stops. With `after_passing` a threshold is checked only after the first step
    within it: a model that starts beyond it has not collapsed, it has yet to learn. `keep_good` keeps the last good
    checkpoint (at first that of step 0) in addition to those that `run.keep_last` keeps.
    """

    enabled: bool = True
    after_passing: bool = False
    keep_good: bool = True
    patience: PositiveInt = 3
    max_fallbacks: Count = 2
    max_repetition: BelowOne | None = None
    max_length: BelowOne | None = None
    max_invalid_calls: BelowOne | None = None
    max_zero_variance: BelowOne | None = None
    max_fall: BelowOne | None = None
    min_entropy: Nats | None = None
    max_non_finite: Count | None = None

    @model_validator(mode="after")
    def _looks_at_something(self) -> "GuardSection":
        thresholds = sorted(name for name in GuardSection.model_fields if name.startswith(("max_", "min_")))
        thresholds.remove("max_fallbacks")
        if self.enabled and all(getattr(self, name) is None for name in thresholds):
            raise ValueError(f"expected at least one of {thresholds}, or no such section")
        if self.max_fallbacks and not self.keep_good:
            raise ValueError(
                "max_fallbacks: keep_good = false leaves no checkpoint to go back to; set max_fallbacks = 0"
            )
        return self

    def refuse_idle(self, rollout: RolloutSection) -> None:
        """Refuse thresholds that are always broken, or never.

        Raises:
            ValueError: There is such a threshold.
        """
        if self.max_zero_variance is not None and rollout.n == 1:
            raise ValueError(
                "guard.max_zero_variance: groups of one trajectory never vary, so every step would break it; leave it out"
            )
        if self.max_invalid_calls is not None and not self.after_passing and rollout.max_calls == 0:
            raise ValueError("guard.max_invalid_calls: rollout.max_calls = 0 allows no calls; leave it out")


DEFAULT_GUARD = GuardSection(
    after_passing=True,
    keep_good=False,
    max_fallbacks=0,
    max_repetition=0.6,
    max_length=0.95,
    max_invalid_calls=0.9,
    max_fall=0.9,
)
"""Used if a recipe has no `[guard]`. No healthy run comes near its thresholds, so it stops only runs that are lost."""


class PreflightSection(Section):
    """Grow trees for the first `problems` with the untrained model, report on them, and stop if rewards never differ.

    With `allow_zero_variance` the run starts even then. Without the table there is no preflight.
    """

    enabled: bool = True
    problems: PositiveInt = 8
    allow_zero_variance: bool = False


class TrainRecipe(Section):
    """A whole reinforcement-learning run."""

    model: TrainedModelSection
    data: TrainDataSection
    run: TrainingRunSection
    rollout: RolloutSection
    engine: EngineSection
    tools: ToolsSection
    sandbox: SandboxSection = SandboxSection()
    reward: RewardSection
    algorithm: AlgorithmSection
    learner: LearnerSection
    guard: GuardSection = DEFAULT_GUARD
    preflight: PreflightSection = PreflightSection(enabled=False)

    @model_validator(mode="after")
    def _consistent(self) -> "TrainRecipe":
        rollout = self.rollout
        refuse_all(
            rollout.refuse_idle_rule,
            lambda: self.algorithm.refuse_idle(rollout, self.engine.name == "local"),
            lambda: refuse_compat_reward(self.model, self.reward),
            self._tells_right,
            lambda: refuse_idle_bonus(self.reward, self.tools),
            lambda: refuse_idle_rates(self.learner.optimizer, self.model.lora is not None),
            lambda: self.guard.refuse_idle(rollout),
            lambda: refuse_idle_sandbox(self.tools, self.sandbox),
            lambda: refuse_clocks(self.run, rollout, "rollout"),
        )
        return self

    def _tells_right(self) -> None:
        if self.rollout.dynamic_sampling is not None and not self.reward.tells_right:
            raise ValueError(
                f'rollout.dynamic_sampling: needs a reward that tells right from wrong, "{self.reward.name}" does not; '
                "leave it out"
            )
