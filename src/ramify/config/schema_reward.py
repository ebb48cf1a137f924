"""Schemas of rewards: what counts for a trajectory, and what is only reported."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ramify.config.schema_parts import ModelSection, Section, is_changed
from ramify.config.schema_tools import HttpSection, Name, ServiceUrl, ToolsSection, Variable
from ramify.core.config import (
    Attempts,
    PositiveInt,
    Reserved,
    Seconds,
    SignedWeight,
    Tokens,
    UserPath,
    Weight,
)

ScoreName = Literal["answer", "lenient", "em", "f1", "acc", "math_equal", "unread", "timeout"]
"""See docs/scoring.md."""


class JudgeSection(Section):
    """A model that decides whether an answer is right (docs/judge.md); with `weight` 0 its verdict is only reported.

    `cache` is a file that stores verdicts. If the judge's reply has no verdict, it is asked up to `attempts` times.
    """

    url: ServiceUrl
    model: Name
    key_variable: Variable | None = None
    weight: SignedWeight = 0.0
    max_tokens: Tokens = 4096
    attempts: Attempts = 3
    in_flight: Reserved = 16
    timeout_seconds: Seconds = 120.0
    failures_to_stop: PositiveInt = 32
    skip_equal: bool = False
    cache: UserPath | None = None
    http: HttpSection = HttpSection(timeout_seconds=30.0)

    @model_validator(mode="after")
    def _acting(self) -> "JudgeSection":
        if self.http.in_flight < self.in_flight:
            raise ValueError(
                f"http.in_flight: expected at least in_flight = {self.in_flight}: waiting would count against timeout_seconds"
            )
        return self


class OwnPartSection(Section):
    """A function of the user's own, `reward(completions, answer, **columns) -> list[float | None]`, as a part."""

    path: UserPath
    function: Name
    args: dict[str, Any] = Field(default_factory=dict)
    name: Name | None = None
    weight: SignedWeight = 1.0


class _RewardSection(Section):
    tells_right: ClassVar[bool] = True
    """Whether the reward tells right from wrong."""
    judge: JudgeSection | None = None
    own: tuple[OwnPartSection, ...] = ()


class HierarchicalRewardSection(_RewardSection):
    """The papers' reward: -1 unless well formed, else the score `answer`, plus `bonus` for using search and Python."""

    name: Literal["hierarchical"]
    bonus: Weight = 0.1


class AnswerRewardSection(_RewardSection):
    """Weighted parts: the `score` of the answer, its form, a bonus for using search and Python.

    A malformed trajectory gets `malformed`, or with `needs_form = false` the score of the answer that can be extracted.
    Scores in `reported` do not count.
    """

    name: Literal["answer"]
    score: ScoreName = "answer"
    reported: tuple[ScoreName, ...] = ()
    correct_weight: Weight = 1.0
    format_weight: Weight = 0.0
    bonus: Weight = 0.1
    needs_form: bool = True
    malformed: SignedWeight = -1.0

    @model_validator(mode="after")
    def _acting(self) -> "AnswerRewardSection":
        if not self.needs_form and is_changed(self, "malformed"):
            raise ValueError("malformed: acts with needs_form only; leave it out")
        return self


class CompatRewardSection(_RewardSection):
    """The reward of ARPO's or Tool-Star's released code, including its defects: for comparison."""

    name: Literal["compat"]
    system: Literal["arpo", "toolstar"]


class PartsRewardSection(_RewardSection):
    """Only parts of the user's own, or a judge."""

    tells_right = False
    name: Literal["parts"]

    @model_validator(mode="after")
    def _acting(self) -> "PartsRewardSection":
        if self.judge is None and not self.own:
            raise ValueError("expected [[reward.own]] or [reward.judge], found no part")
        return self


class LengthRewardSection(Section):
    """For smoke tests: rewards length and teaches nothing."""

    tells_right: ClassVar[bool] = False
    judge: ClassVar[None] = None
    name: Literal["length"]


RewardSection = Annotated[
    HierarchicalRewardSection
    | AnswerRewardSection
    | CompatRewardSection
    | PartsRewardSection
    | LengthRewardSection,
    Field(discriminator="name"),
]


def refuse_compat_reward(model: ModelSection, reward: RewardSection) -> None:
    """Refuse the reward of the papers' code for a dialect that it cannot read.

    Raises:
        ValueError: It would find no answer in any trajectory.
    """
    if reward.name == "compat" and model.dialect != "tags":
        raise ValueError(
            f'reward.name: "compat" reads tags only, expected another reward with model.dialect = "{model.dialect}"'
        )


def refuse_idle_bonus(reward: RewardSection, tools: ToolsSection) -> None:
    """Refuse a bonus for using search and Python where a tool of the two is missing.

    Raises:
        ValueError: It could never be given.
    """
    has_both = tools.search is not None and tools.python is not None
    if not has_both and getattr(reward, "bonus", None) and is_changed(reward, "bonus"):
        raise ValueError(
            "reward.bonus: is given for using search and python, and one of them is not there; leave it out"
        )
