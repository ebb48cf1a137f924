"""Settings of what a rollout can be given besides tools and a rule."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ramify.core.config import Config, Name, PositiveInt, Tokens, UserPath
from ramify.net.configs import ChatConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriterConfig(Config):
    """A function of the user's own, `rewrite(trajectory, **args) -> GoOn | Afresh | None`, as a rewriter.

    It is asked until it has rewritten `budget` contexts of a trajectory.
    """

    path: UserPath
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
    path: UserPath
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
