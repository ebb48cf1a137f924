"""The schema of an evaluation recipe (`ramify eval`)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

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
from ramify.core.config import PositiveInt, Reserved, Tokens
from ramify.data.configs import Columns, Datasets, Instructions
from ramify.engines.configs import (
    EngineConfig,
    LocalEngineConfig,
    OpenAIEngineConfig,
    ScriptedEngineConfig,
    VllmEngineConfig,
)
from ramify.modeling.configs import ModelConfig
from ramify.obs.token_counts import PriceConfig
from ramify.rewards.configs import JudgeConfig
from ramify.rollout.configs import DecodingConfig
from ramify.runs.configs import RunConfig
from ramify.sampler.configs import RepairConfig
from ramify.train.configs import EvaluationConfig


class EvalDataSection(Section):
    """Problems to evaluate on; `limit` uses the first rows only.

    `test` is a problem file, or a benchmark: "NAME=PLACE", where the place is a file, a folder or "hf:org/name"; a
    folder called NAME or a file NAME/test.jsonl needs no "NAME="; or a list of these, of each of which `limit` uses the first rows. `instructions`
    is as in training, the fixed text in front of each problem that has no system message; without the key it is true for benchmarks. `columns` says which
    columns of a file of your own ours are.
    """

    test: Datasets
    columns: Columns = Field(default_factory=dict)
    instructions: Instructions | None = None
    limit: PositiveInt | None = None
    max_prompt_tokens: Tokens


def dev_data(
    config: EvaluationConfig, max_prompt_tokens: int, instructions: Instructions | None
) -> EvalDataSection:
    """Return the problems of evaluations during training; the other two hold where [eval] does not say them.

    `instructions` are those of training, and hold if they are a text of the user's.
    """
    trained = instructions if isinstance(instructions, str) else None
    return EvalDataSection(
        test=config.test,
        columns=config.columns,
        instructions=trained if config.instructions is None else config.instructions,
        limit=config.limit,
        max_prompt_tokens=config.max_prompt_tokens or max_prompt_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSection(DecodingConfig):
    """Independent attempts at each problem; the report gives pass@k for each of `k`.

    `right_by` says what makes an attempt right: the reward's own `score`, or the verdict
    of `[reward.judge]`; then an attempt without a verdict is not right. `rewriters` are as in `[rollout]`.
    """

    attempts: Reserved = 1
    k: Annotated[tuple[Reserved, ...], Field(min_length=1)] = (1,)
    right_by: Literal["score", "judge"] = "score"
    rewriters: Rewriters = ()

    def __post_init__(self) -> None:
        if len(set(self.k)) < len(self.k):
            raise ValueError(f"k: expected each value once, got {list(self.k)}")
        if max(self.k) > self.attempts:
            raise ValueError(f"k: expected at most attempts = {self.attempts}, got {max(self.k)}")


EvalEngineSection = Annotated[
    LocalEngineConfig | ScriptedEngineConfig | OpenAIEngineConfig | VllmEngineConfig,
    Field(discriminator="name"),
]


def refuse_rewriting_chats(
    engine: EngineConfig, rewriters: Rewriters, repair: RepairConfig | None, *, hints: bool = False
) -> None:
    """Refuse what goes on inside a turn, with an endpoint that writes whole turns (ValueError)."""
    if engine.continues_turns:
        return
    keys = ["sampling.rewriters"] if rewriters else []
    keys += [
        f"repair.{name}" for name in ("backtracer", "refiner") if getattr(repair, name, None) is not None
    ]
    keys += ["hints"] if hints else []
    if keys:
        raise ValueError(
            f'{", ".join(keys)}: expected none with engine.api = "chat", a chat endpoint cannot go on inside a turn; '
            'set engine.api = "completions"'
        )


class EvalRecipe(Section):
    """A whole evaluation."""

    command: ClassVar[str] = "eval"

    model: ModelConfig
    data: EvalDataSection
    run: RunConfig
    sampling: SamplingSection
    engine: EvalEngineSection
    tools: ToolsSection = ToolsSection()
    environment: EnvironmentSection | None = None
    sandbox: SandboxSection = SandboxSection()
    repair: RepairConfig | None = None
    reward: RewardSection
    price: PriceConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "EvalRecipe":
        self.refuse_inconsistent()
        return self

    def refuse_inconsistent(self) -> None:
        """Refuse sections that do not fit each other (ValueError)."""
        refuse_all(
            self._has_verdict,
            lambda: refuse_unrepeatable(self.run, self.engine.repeats),
            lambda: refuse_learner_keys(self.engine),
            lambda: refuse_rewriting_chats(self.engine, self.sampling.rewriters, self.repair),
            lambda: refuse_compat_reward(self.model, self.reward),
            lambda: refuse_tools_beside(self.tools, self.environment),
            lambda: refuse_absent_environment(self.reward, self.environment),
            lambda: refuse_idle_sandbox(self.tools, self.sandbox),
            self._repairs,
            lambda: refuse_clocks(self.run, self.sampling, "sampling"),
        )

    def _has_verdict(self) -> None:
        if self.sampling.right_by == "judge":
            if self.reward.judge is None:
                raise ValueError('sampling.right_by: "judge" takes [reward.judge], which is missing')
        elif not self.reward.tells_right:
            raise ValueError(
                f'reward.name: expected a reward that tells right from wrong, "{self.reward.name}" does not'
            )

    def _repairs(self) -> None:
        names = tuple(own.name or own.function for own in self.sampling.rewriters)
        refuse_idle_repairs(self.repair, self.tools, names, has_environment=self.environment is not None)


class JudgingSection(Section):
    """The settings of `ramify judge`: a judge, as in `[reward.judge]`."""

    judge: JudgeConfig
