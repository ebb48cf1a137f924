"""The schemas of recipes that learn from examples: demonstrations (`ramify sft`) and pairs (`ramify dpo`)."""

from typing import ClassVar

from pydantic import model_validator

from ramify.config.schema_parts import Section, refuse_idle_rates
from ramify.config.schema_tools import EnvironmentSection, ToolsSection, refuse_tools_beside
from ramify.core.config import PositiveInt, PositiveWeight, Tokens
from ramify.data.configs import ExampleDataConfig
from ramify.learner.configs import OptimizerConfig
from ramify.modeling.configs import TrainedModelConfig
from ramify.runs.configs import LogConfig, TrainingRunConfig


class SftLearnerSection(Section):
    """Examples per optimiser step; rows of about `token_budget` tokens; `copies` of weights that are split, as in RL."""

    batch_size: PositiveInt
    token_budget: Tokens = 8192
    copies: PositiveInt = 1
    optimizer: OptimizerConfig


class DpoLearnerSection(SftLearnerSection):
    """Pairs per optimiser step; `beta` keeps the policy near its start."""

    beta: PositiveWeight


class SftRecipe(Section):
    """A whole supervised run."""

    command: ClassVar[str] = "sft"

    model: TrainedModelConfig
    data: ExampleDataConfig
    run: TrainingRunConfig
    log: LogConfig = LogConfig()
    learner: SftLearnerSection
    tools: ToolsSection = ToolsSection()
    environment: EnvironmentSection | None = None

    @model_validator(mode="after")
    def _acting(self) -> "SftRecipe":
        refuse_tools_beside(self.tools, self.environment)
        refuse_idle_rates(self.learner.optimizer, self.model.lora is not None)
        return self


class DpoRecipe(SftRecipe):
    """A whole run on preference pairs; the reference is the model that the run starts from."""

    command: ClassVar[str] = "dpo"

    learner: DpoLearnerSection
