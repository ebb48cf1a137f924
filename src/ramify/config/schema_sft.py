"""The schema of a supervised recipe (`ramify sft`)."""

from pydantic import model_validator

from ramify.config.bounds import PositiveInt, Tokens
from ramify.config.inert import refuse_inert_rates
from ramify.config.schema_parts import (
    OptimizerSection,
    Section,
    TrainedModelSection,
    TrainingRunSection,
    UserPath,
)
from ramify.config.schema_tools import ToolsSection


class SftDataSection(Section):
    """Demonstrations: JSONL rows with `prompt` and `completion` in the papers' tags."""

    train: UserPath
    epochs: PositiveInt = 1
    max_tokens: Tokens


class SftLearnerSection(Section):
    """Demonstrations per optimiser step; rows of about `token_budget` tokens."""

    batch_size: PositiveInt
    token_budget: Tokens = 8192
    optimizer: OptimizerSection


class SftRecipe(Section):
    """A whole supervised run."""

    model: TrainedModelSection
    data: SftDataSection
    run: TrainingRunSection
    learner: SftLearnerSection
    tools: ToolsSection = ToolsSection()

    @model_validator(mode="after")
    def _acting(self) -> "SftRecipe":
        refuse_inert_rates(self.learner.optimizer, self.model.lora is not None)
        return self
