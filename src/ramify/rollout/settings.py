"""The parts that a rollout runs on, and what its trajectories wait for."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ramify.core.closing import LiveCount
from ramify.core.errors import ConfigError
from ramify.core.messages import Problem, ToolSpec
from ramify.core.protocols import Brancher, ContextRewriter, Engine, Environment, EventSink, Renderer
from ramify.rollout.configs import RolloutLimits

BranchAt: TypeAlias = Literal["before_probe", "after_probe"]
"""Where branches start: at the tool result, as in the papers, or after the k tokens whose entropy decided."""


class WaitBoard:
    """Counts the current waits, by what they wait for."""

    def __init__(self) -> None:
        self._since: dict[str, dict[int, float]] = {}
        self._next = 0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count a wait for `what` while the block runs."""
        self._next += 1
        ticket = self._next
        group = self._since.setdefault(what, {})
        group[ticket] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del group[ticket]

    @asynccontextmanager
    async def shown(self, show: Callable[[str], None], every_seconds: float = 1.0) -> AsyncIterator[None]:
        """While the block runs, pass a description of the waits to `show` from time to time."""

        async def tick() -> None:
            while True:
                await asyncio.sleep(every_seconds)
                show(self.describe(asyncio.get_running_loop().time()))

        task = asyncio.create_task(tick())
        try:
            yield
        finally:
            task.cancel()

    def describe(self, now: float) -> str:
        """Return one short line, "engine 12, search 3 (9 s)", with the age of the oldest wait if it is at least a second."""
        parts = []
        for what, group in sorted(self._since.items()):
            if group:
                age = now - min(group.values())
                parts.append(f"{what} {len(group)}" + (f" ({age:.0f} s)" if age >= 1 else ""))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class AgentParts:
    """Everything an agent runs on; the same for training, evaluation and data making.

    A trajectory starts when one of the `slots` is free (None: all start at once) and keeps it until it ends, so that none
    that waits for a tool loses its slot in the engine to another.

    `environments`: if there are several, by name; a problem's column `environment` names its own.

    `all_entropies`: the nodes keep the exact entropy of every token, not only the mean of the first k.

    Raises:
        ConfigError: The engine uses the ids of another tokenizer, or `all_entropies` is set and the engine gives no
            exact entropies.
    """

    engine: Engine
    renderer: Renderer
    environment: Environment
    brancher: Brancher
    limits: RolloutLimits
    events: EventSink
    run_seed: int
    branch_at: BranchAt = "before_probe"
    rewriters: tuple[ContextRewriter, ...] = ()
    slots: int | None = None
    all_entropies: bool = False
    live: LiveCount = field(default_factory=LiveCount)
    waits: WaitBoard = field(default_factory=WaitBoard)
    environments: Mapping[str, Environment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        info = self.engine.info()
        if info.tokenizer != self.renderer.fingerprint:
            raise ConfigError(
                f"engine {info.name!r} uses the ids of another tokenizer ({info.tokenizer}) than the one "
                f"for prompts and training ({self.renderer.fingerprint}). Give both the same model folder"
            )
        if self.all_entropies and not info.exact_entropy:
            raise ConfigError(
                f"engine {info.name!r} gives entropies as brackets, and the advantages need those of all tokens "
                'exactly. Set algorithm.entropy_advantage.source to "annotate"'
            )

    def for_problem(self, problem: Problem) -> "AgentParts":
        """Return the agent in the environment that the problem names; itself if there is only one."""
        if not self.environments:
            return self
        return replace(self, environment=self.environments[problem.info["environment"]])

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that prompts show."""
        return tuple(self.environment.tools.values())
