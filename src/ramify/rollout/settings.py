"""What a rollout is told: its limits, and the parts it runs on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ramify.core.errors import ConfigError
from ramify.core.protocols import Brancher, Engine, EventSink, Renderer, Tool
from ramify.core.quiescence import LiveCount


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """The size of a tree.

    Attributes:
        n: Trajectories (leaves) of a problem.
        max_tokens: Tokens of one trajectory after its prompt, tool results included.
        max_calls: Tool calls of one trajectory; one call more ends it (StopReason.CALLS).
        temperature: Of sampling; training allows no other transformation of the distribution.
    """

    n: int
    max_tokens: int
    max_calls: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_calls < 0 or self.temperature < 0:
            raise ConfigError("rollout.max_calls and rollout.temperature: expected at least 0")


@dataclass(frozen=True, slots=True)
class AgentParts:
    """Everything an agent runs on; the same for training, evaluation and data making.

    `max_trees` trees are grown side by side (None: all), so that no waiting trajectory loses its slot in the engine
    to a tree that has not started.
    """

    engine: Engine
    renderer: Renderer
    tools: Mapping[str, Tool]
    brancher: Brancher
    limits: RolloutLimits
    events: EventSink
    run_seed: int
    max_trees: int | None = None
    live: LiveCount = field(default_factory=LiveCount)
