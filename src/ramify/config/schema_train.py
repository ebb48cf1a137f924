"""The schema of a reinforcement-learning recipe (`ramify train`, `ramify rollout`)."""

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ramify.config.bounds import PositiveInt, Tokens
from ramify.config.inert import (
    refuse_compat_reward,
    refuse_inert_algorithm,
    refuse_inert_guard,
    refuse_inert_rates,
    refuse_inert_rewards,
    refuse_inert_rollout,
)
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_guard import DEFAULT_GUARD, GuardSection
from ramify.config.schema_parts import (
    EngineSection,
    OptimizerSection,
    Section,
    TrainedModelSection,
    TrainingRunSection,
    UserPath,
    refuse_all,
    refuse_clocks,
)
from ramify.config.schema_preflight import PreflightSection
from ramify.config.schema_reward import RewardSection
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_tools import SandboxSection, ToolsSection, refuse_idle_sandbox


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
            lambda: refuse_inert_rollout(rollout),
            lambda: refuse_inert_algorithm(self.algorithm, rollout, self.engine.name == "local"),
            lambda: refuse_compat_reward(self.model, self.reward),
            lambda: refuse_inert_rewards(self.reward, rollout, self.tools),
            lambda: refuse_inert_rates(self.learner.optimizer, self.model.lora is not None),
            lambda: refuse_inert_guard(self.guard, rollout),
            lambda: refuse_idle_sandbox(self.tools, self.sandbox),
            lambda: refuse_clocks(self.run, rollout, "rollout"),
        )
        return self
