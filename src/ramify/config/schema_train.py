"""The schema of a reinforcement-learning recipe (`ramify train`, `ramify rollout`)."""

from pydantic import model_validator

from ramify.config.schema_algorithm import AlgorithmSection, check_against_rollout
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
        check_against_rollout(
            self.algorithm,
            is_flat=self.rollout.branching.name == "none",
            n=self.rollout.n,
            has_exact_entropy=self.engine.name == "local",
        )
        refuse_clocks(self.run, self.rollout, "rollout")
        if self.run.deterministic and getattr(self.rollout.branching, "baseline_never_reset", False):
            raise ValueError(
                "rollout.branching.baseline_never_reset: expected false with run.deterministic; those baselines are "
                "not kept over a resume"
            )
        return self
