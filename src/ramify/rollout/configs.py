"""Settings of what a rollout can be given besides tools and a rule."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ramify.core.config import (
    Calls,
    Config,
    Deadline,
    Fraction,
    InputFile,
    Name,
    PositiveFraction,
    PositiveInt,
    PositiveWeight,
    Temperature,
    Tokens,
    Trajectories,
)
from ramify.core.records import TokenFilters
from ramify.net.configs import ChatConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig(Config):
    """Limits of one trajectory: tokens after the prompt (results included), tool calls, and time.

    One call more than `max_calls` ends a trajectory (StopReason.CALLS). `temperature` is the only transformation of the
    distribution that training allows. `max_result_chars` truncates a tool result. `trajectory_seconds` and `step_seconds`
    are deadlines for a trajectory (StopReason.DEADLINE), waiting for tools included, and for all trajectories of a step; the
    tools' time to close comes on top.
    """

    max_tokens: Tokens
    max_calls: Calls
    temperature: Temperature = 1.0
    max_result_chars: PositiveInt = 20_000
    trajectory_seconds: Deadline | None = None
    step_seconds: Deadline | None = None

    def of_trees(self, n: int) -> "RolloutLimits":
        """Return the limits of trees with n leaves."""
        own = {field.name for field in fields(self)} - {"n"}
        shared = {field.name for field in fields(RolloutLimits)} & own
        return RolloutLimits(n=n, **{name: getattr(self, name) for name in shared})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingConfig(LimitsConfig):
    """Limits of a trajectory that nothing is trained on, and how its tokens are drawn.

    `max_turn_tokens` limits one turn of the policy, up to a call or the answer; a turn that is longer is cut there and ends
    the trajectory (StopReason.TOKENS). `top_p`, `top_k`, `min_p` and `repetition_penalty` change the distribution that
    tokens are drawn from (core.records.TokenFilters). Training has none of them: its logprobs are those of the policy.
    """

    max_turn_tokens: Tokens | None = None
    top_p: PositiveFraction = 1.0
    top_k: PositiveInt | None = None
    min_p: Fraction = 0.0
    repetition_penalty: PositiveWeight = 1.0

    @property
    def filters(self) -> TokenFilters:
        """The changes of the distribution."""
        return TokenFilters(self.top_p, self.top_k or 0, self.min_p, self.repetition_penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits(DecodingConfig):
    """The size of a tree and the time it may take; `n` is its number of trajectories (leaves)."""

    n: Trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriterConfig(Config):
    """A function of the user's own, `rewrite(trajectory, **args) -> ContinueFrom | FreshContext | None`, as a rewriter.

    It is asked until it has rewritten `budget` contexts of a trajectory.
    """

    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)
    name: Name | None = None
    budget: PositiveInt = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedHelperConfig(ChatConfig):
    """A helper at an OpenAI-compatible endpoint."""

    name: Literal["openai"] = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHelperConfig(Config):
    """A function of the user's own as the helper: `helper(messages, **args) -> str`."""

    name: Literal["file"] = "file"
    path: InputFile
    function: Name
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebuggerConfig(Config):
    """Has the helper correct programs that failed, at most `calls` of them on a trajectory, and runs each once."""

    calls: PositiveInt = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktracerConfig(Config):
    """Goes on from before a call that failed, at most `calls` times on a trajectory."""

    calls: PositiveInt = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinerConfig(Config):
    """Has the helper write a context that reaches `at_tokens` behind the prompt again, at most `calls` times on a trajectory."""

    at_tokens: Tokens = 8192
    calls: PositiveInt = 1
