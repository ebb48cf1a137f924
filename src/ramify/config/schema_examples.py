"""The schemas of recipes that learn from examples: demonstrations (`ramify sft`) and pairs (`ramify dpo`)."""

from typing import ClassVar, Literal

from pydantic import model_validator

from ramify.config.schema_parts import (
    OptimizerSection,
    Section,
    TrainedModelSection,
    TrainingRunSection,
    refuse_idle_rates,
)
from ramify.config.schema_tools import EnvironmentSection, ToolsSection, refuse_tools_beside
from ramify.core.config import PositiveInt, PositiveWeight, Tokens, UserPath


class ExampleDataSection(Section):
    """A file of examples in one of the formats of `data/example_formats.py`, or in several.

    `max_tokens` limits the prompt together with what follows it; of a pair, with either side. Longer examples are left out. Rows
    that cannot be used end the run, or are left out, too.
    """

    train: UserPath
    epochs: PositiveInt = 1
    max_tokens: Tokens
    malformed: Literal["refuse", "drop"] = "refuse"


class SftLearnerSection(Section):
    """Examples per optimiser step; rows of about `token_budget` tokens; `copies` of weights that are split, as in RL."""

    batch_size: PositiveInt
    token_budget: Tokens = 8192
    copies: PositiveInt = 1
    optimizer: OptimizerSection


class DpoLearnerSection(SftLearnerSection):
    """Pairs per optimiser step; `beta` keeps the policy near its start."""

    beta: PositiveWeight


class SftRecipe(Section):
    """A whole supervised run."""

    command: ClassVar[str] = "sft"

    model: TrainedModelSection
    data: ExampleDataSection
    run: TrainingRunSection
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
