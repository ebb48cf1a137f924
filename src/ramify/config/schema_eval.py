"""The schema of an evaluation recipe (`ramify eval`)."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ramify.config.schema_parts import (
    EngineSection,
    LimitsSection,
    ModelSection,
    PositiveInt,
    RewardSection,
    RunSection,
    SandboxSection,
    Section,
    ToolsSection,
)


class EvalDataSection(Section):
    """Problems to evaluate on; `limit` takes the first ones only."""

    test: Path
    limit: PositiveInt | None = None
    max_prompt_tokens: PositiveInt


class SamplingSection(LimitsSection):
    """Independent attempts at each problem; the report gives pass@k for each of `k`."""

    attempts: PositiveInt = 1
    k: tuple[Annotated[int, Field(ge=1)], ...] = (1,)


class EvalRecipe(Section):
    """A whole evaluation."""

    model: ModelSection
    data: EvalDataSection
    run: RunSection
    sampling: SamplingSection
    engine: EngineSection
    tools: ToolsSection
    sandbox: SandboxSection = SandboxSection()
    reward: RewardSection
