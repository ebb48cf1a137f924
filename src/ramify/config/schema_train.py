"""The schema of a reinforcement-learning recipe (`ramify train`, `ramify rollout`)."""

from pydantic import model_validator

from ramify.config.schema_algorithm import AlgorithmSection, check_against_rollout
from ramify.config.schema_guard import GuardSection
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
    guard: GuardSection | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TrainRecipe":
        check_against_rollout(
            self.algorithm,
            is_flat=not self.rollout.shares_tokens,
            n=self.rollout.n,
            max_tokens=self.rollout.max_tokens,
            has_exact_entropy=self.engine.name == "local",
        )
        self._rewards_act()
        refuse_clocks(self.run, self.rollout, "rollout")
        return self

    def _rewards_act(self) -> None:
        if self.rollout.dynamic_sampling is not None and self.reward.name == "length":
            raise ValueError(
                'rollout.dynamic_sampling: needs a reward that tells right from wrong, "length" does not; leave it out'
            )
        if self.reward.name != "hierarchical":
            return
        has_both = self.tools.search is not None and self.tools.python is not None
        if not has_both and self.reward.bonus and "bonus" in self.reward.model_fields_set:
            raise ValueError(
                "reward.bonus: is given for using search and python, and one of them is not there; leave it out"
            )
