"""The schema of a synthesis recipe (`ramify synth`): Tool-Star's data (arXiv 2505.16410, section 3)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from ramify.config.schema_eval import EvalEngineSection, refuse_rewriting_chats
from ramify.config.schema_parts import (
    EnvironmentSection,
    RewardSection,
    Rewriters,
    SandboxSection,
    Section,
    ToolsSection,
    refuse_absent_environment,
    refuse_all,
    refuse_clocks,
    refuse_compat_reward,
    refuse_idle_repairs,
    refuse_idle_sandbox,
    refuse_learner_keys,
    refuse_tools_beside,
    refuse_unrepeatable,
)
from ramify.core.config import PositiveInt, Tokens, Within
from ramify.data.configs import Columns, DataFiles, Instructions
from ramify.modeling.configs import ModelConfig
from ramify.obs.token_counts import PriceConfig
from ramify.rollout.configs import DecodingConfig
from ramify.runs.configs import LogConfig, RunConfig
from ramify.sampler.configs import RepairConfig
from ramify.synth.configs import HintsConfig, QualityConfig

Samples = Annotated[int, Within(ge=4, le=4096)]
"""Samples of a question under one prompt: with fewer than four its difficulty cannot be told."""


class SynthDataSection(Section):
    """Questions with their answers, in the files that RL reads, with `columns` as there; `limit` uses the first rows only.

    `instructions` is as in training. With it, a system message of ramify's about answering without tools stands before the
    question when there are none to call. Without it the questions stand as they are, both times.
    """

    train: DataFiles
    columns: Columns = Field(default_factory=dict)
    instructions: Instructions = False
    limit: PositiveInt | None = None
    max_prompt_tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthSamplingSection(DecodingConfig):
    """How often each question is answered: `direct` times without tools, and `tools` times with them.

    `rewriters` are as in `[rollout]`; they act where tools do.
    """

    direct: Samples = 4
    tools: Samples = 4
    rewriters: Rewriters = ()


class SynthRecipe(Section):
    """A whole synthesis."""

    command: ClassVar[str] = "synth"

    model: ModelConfig
    data: SynthDataSection
    run: RunConfig
    log: LogConfig = LogConfig()
    sampling: SynthSamplingSection
    hints: HintsConfig | None = None
    quality: QualityConfig = QualityConfig()
    engine: EvalEngineSection
    tools: ToolsSection = ToolsSection()
    environment: EnvironmentSection | None = None
    sandbox: SandboxSection = SandboxSection()
    repair: RepairConfig | None = None
    reward: RewardSection
    price: PriceConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "SynthRecipe":
        refuse_all(
            self._tells_right,
            lambda: refuse_unrepeatable(self.run, self.engine.repeats),
            lambda: refuse_learner_keys(self.engine),
            lambda: refuse_rewriting_chats(
                self.engine, self.sampling.rewriters, self.repair, hints=self.hints is not None
            ),
            lambda: refuse_compat_reward(self.model, self.reward),
            lambda: refuse_tools_beside(self.tools, self.environment),
            lambda: refuse_absent_environment(self.reward, self.environment),
            lambda: refuse_idle_sandbox(self.tools, self.sandbox),
            lambda: refuse_clocks(self.run, self.sampling, "sampling"),
            lambda: refuse_idle_repairs(
                self.repair,
                self.tools,
                tuple(own.name or own.function for own in self.sampling.rewriters),
                has_environment=self.environment is not None,
            ),
        )
        return self

    def _tells_right(self) -> None:
        if not self.reward.tells_right:
            raise ValueError(
                f'reward.name: expected a reward that tells right from wrong, "{self.reward.name}" does not'
            )
