"""Settings of a sampler: which problems a step takes, and the repair tools that act on their trajectories."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Tag

from ramify.core.config import Config, Rounds, Seconds, Temperature, Tokens
from ramify.rollout.configs import (
    BacktracerConfig,
    DebuggerConfig,
    OwnHelperConfig,
    RefinerConfig,
    ServedHelperConfig,
)
from ramify.tools.configs import CacheConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingConfig(Config):
    """DAPO (arXiv 2503.14476, section 3.2): learn only from problems with both right and wrong answers.

    Other problems are replaced by the next ones in the data's order, in at most `max_attempts` rounds of rollouts.
    After that the step continues with the problems it has. `step_seconds` applies to each round.
    """

    max_attempts: Rounds = 3


def _name(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    return value.get("name", "openai") if isinstance(value, dict) else getattr(value, "name", "openai")


HelperConfig: TypeAlias = Annotated[
    Annotated[ServedHelperConfig, Tag("openai")] | Annotated[OwnHelperConfig, Tag("file")],
    Discriminator(_name),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig(Config):
    """Repair tools (arXiv 2505.16410), each with a budget of its own on every trajectory; an absent table is an absent tool.

    `helper` is the model that the debugger and the refiner ask: an OpenAI-compatible endpoint, or a function of the user's
    own; without it they ask the policy itself. An answer has `max_tokens`, and one of a `helper` has `timeout_seconds`, too.
    `cache` records and replays the answers of a `helper`.
    """

    debugger: DebuggerConfig | None = None
    backtracer: BacktracerConfig | None = None
    refiner: RefinerConfig | None = None
    helper: HelperConfig | None = None
    max_tokens: Tokens = 1024
    temperature: Temperature = 0.0
    timeout_seconds: Seconds = 60.0
    cache: CacheConfig | None = None

    @property
    def asks(self) -> bool:
        """True if a helper is asked."""
        return self.debugger is not None or self.refiner is not None

    def __post_init__(self) -> None:
        if not self.asks:
            if self.backtracer is None:
                raise ValueError("expected debugger, backtracer or refiner")
            for key in ("helper", "max_tokens", "temperature", "timeout_seconds", "cache"):
                if self.is_changed(key):
                    raise ValueError(f"{key}: has no effect without debugger or refiner. Remove it.")
        if self.helper is None:
            for key in ("timeout_seconds", "cache"):
                if self.is_changed(key):
                    raise ValueError(f"{key}: has no effect without helper. Remove it.")
