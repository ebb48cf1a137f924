"""The schema of a reinforcement-learning recipe (`ramify train`, `ramify rollout`)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ramify.config.schema_parts import (
    EngineSection,
    OptimizerSection,
    PositiveInt,
    RewardSection,
    RunSection,
    SandboxSection,
    Section,
    ToolsSection,
    TrainedModelSection,
    UserPath,
    refuse_clocks,
)
from ramify.config.schema_rollout import RolloutSection


class TrainDataSection(Section):
    """Problems to learn from; prompts longer than `max_prompt_tokens` are dropped and counted."""

    train: UserPath
    epochs: PositiveInt = 1
    max_prompt_tokens: PositiveInt


class AlgorithmSection(Section):
    """Advantages and loss.

    `shared`: how often a shared token counts (repeat: once for each trajectory; split: once; mass: unbiased).
    `advantage`: soft (each trajectory's own) or hard (their mean on shared tokens).
    """

    name: Literal["arpo", "grpo"]
    shared: Literal["repeat", "split", "mass"] = "repeat"
    advantage: Literal["soft", "hard"] = "soft"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0


class LearnerSection(Section):
    """One optimiser step per mini-batch of whole problems; rows of about `token_budget` unique tokens."""

    problems_per_minibatch: PositiveInt
    token_budget: PositiveInt = 8192
    optimizer: OptimizerSection


class TrainRecipe(Section):
    """A whole reinforcement-learning run."""

    model: TrainedModelSection
    data: TrainDataSection
    run: RunSection
    rollout: RolloutSection
    engine: EngineSection
    tools: ToolsSection
    sandbox: SandboxSection = SandboxSection()
    reward: RewardSection
    algorithm: AlgorithmSection
    learner: LearnerSection

    @model_validator(mode="after")
    def _consistent(self) -> "TrainRecipe":
        if self.algorithm.name == "grpo" and self.rollout.branching.name != "none":
            raise ValueError('algorithm.name: "grpo" is flat, so rollout.branching must be "none"')
        refuse_clocks(self.run, self.rollout, "rollout")
        if self.run.deterministic and getattr(self.rollout.branching, "baseline_never_reset", False):
            raise ValueError(
                "rollout.branching.baseline_never_reset: expected false with run.deterministic; those baselines are "
                "not kept over a resume"
            )
        return self
