"""Settings of rewards, apart from their code, which imports much."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from ramify.core.config import (
    Attempts,
    Config,
    InputFile,
    Name,
    PositiveInt,
    Reserved,
    Seconds,
    SignedWeight,
    Switch,
    Tokens,
    UserPath,
    Weight,
)
from ramify.net.configs import ChatConfig, HttpConfig

ScoreName: TypeAlias = Literal["answer", "lenient", "em", "f1", "acc", "math_equal", "unread", "timeout"]
"""See docs/scoring.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig(ChatConfig):
    """A model that decides whether an answer is right (docs/judge.md).

    Attributes:
        weight: Weight of the verdict in the reward; with 0 it is only reported.
        max_tokens: Most tokens of a reply, including its thinking.
        attempts: Most requests for one verdict, if replies do not have the required form.
        in_flight: Most answers that are judged at the same time.
        timeout_seconds: Time limit for one verdict with all its attempts, not counting the wait for a free slot.
        failures_to_stop: After so many failures in a row, the run ends.
        pause_seconds: Longest pause between two requests while the service is down; the first is one second, each later one twice
            as long.
        skip_equal: Accept an answer that equals an accepted one, but for case and blanks, without asking the model.
        cache: A file that stores verdicts.
    """

    http: HttpConfig = HttpConfig(timeout_seconds=30.0)
    weight: SignedWeight = 0.0
    max_tokens: Tokens = 4096
    attempts: Attempts = 3
    in_flight: Reserved = 16
    timeout_seconds: Seconds = 120.0
    failures_to_stop: PositiveInt = 32
    pause_seconds: Seconds = 30.0
    skip_equal: Switch = False
    cache: UserPath | None = None

    def __post_init__(self) -> None:
        if self.http.in_flight < self.in_flight:
            raise ValueError(
                f"http.in_flight: expected at least in_flight = {self.in_flight}: waiting would count against timeout_seconds"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPartConfig(Config):
    """A function of the user's own, `reward(completions, answer, **columns) -> list[float | None]`, as a part."""

    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)
    name: Name | None = None
    weight: SignedWeight = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig(Config):
    """Parts that any reward but `length` can have."""

    tells_right: ClassVar[bool] = True
    """True if the reward tells right from wrong."""
    reads_tags_only: ClassVar[bool] = False

    judge: JudgeConfig | None = None
    own: tuple[OwnPartConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchicalRewardConfig(RewardConfig):
    """The papers' reward: -1 unless well formed, else the score `answer`, plus `bonus` for using search and Python."""

    name: Literal["hierarchical"] = "hierarchical"
    bonus: Weight = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRewardConfig(RewardConfig):
    """Weighted parts: the `score` of the answer, its form, a bonus for using search and Python.

    A malformed trajectory gets `malformed`, or with `needs_form = false` the score of the answer that can be extracted.
    Scores in `reported` do not count.
    """

    name: Literal["answer"] = "answer"
    score: ScoreName = "answer"
    reported: tuple[ScoreName, ...] = ()
    correct_weight: Weight = 1.0
    format_weight: Weight = 0.0
    bonus: Weight = 0.1
    needs_form: Switch = True
    malformed: SignedWeight = -1.0

    def __post_init__(self) -> None:
        if not self.needs_form and self.is_changed("malformed"):
            raise ValueError("malformed: has no effect without needs_form = true. Remove it")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatRewardConfig(RewardConfig):
    """The reward of ARPO's or Tool-Star's released code, including its defects: for comparison."""

    reads_tags_only = True

    name: Literal["compat"] = "compat"
    system: Literal["arpo", "toolstar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsRewardConfig(RewardConfig):
    """Only parts of the user's own, or a judge."""

    tells_right = False

    name: Literal["parts"] = "parts"

    def __post_init__(self) -> None:
        if self.judge is None and not self.own:
            raise ValueError("expected [[reward.own]] or [reward.judge], got no part")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRewardConfig(RewardConfig):
    """The reward of the environment; a trajectory is right if it is at least `right_at`."""

    name: Literal["environment"] = "environment"
    right_at: SignedWeight = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRewardConfig(Config):
    """For smoke tests: rewards length and teaches nothing."""

    tells_right: ClassVar[bool] = False
    reads_tags_only: ClassVar[bool] = False
    judge: ClassVar[None] = None

    name: Literal["length"] = "length"
