"""The schema of a preference recipe (`ramify dpo`)."""

from pydantic import model_validator

from ramify.config.bounds import PositiveInt, PositiveWeight, Tokens
from ramify.config.inert import refuse_inert_rates
from ramify.config.schema_parts import (
    OptimizerSection,
    Section,
    TrainedModelSection,
    TrainingRunSection,
    UserPath,
)
from ramify.config.schema_tools import ToolsSection


class DpoDataSection(Section):
    """Pairs: JSONL rows with `prompt`, `chosen` and `rejected` in the papers' tags.

    `max_tokens` limits the prompt together with either side.
    """

    train: UserPath
    epochs: PositiveInt = 1
    max_tokens: Tokens


class DpoLearnerSection(Section):
    """Pairs per optimiser step; rows of about `token_budget` tokens; `beta` keeps the policy near its start."""

    beta: PositiveWeight
    batch_size: PositiveInt
    token_budget: Tokens = 8192
    optimizer: OptimizerSection


class DpoRecipe(Section):
    """A whole run on preference pairs; the reference is the model that the run starts from."""

    model: TrainedModelSection
    data: DpoDataSection
    run: TrainingRunSection
    learner: DpoLearnerSection
    tools: ToolsSection = ToolsSection()

    @model_validator(mode="after")
    def _acting(self) -> "DpoRecipe":
        refuse_inert_rates(self.learner.optimizer, self.model.lora is not None)
        return self
