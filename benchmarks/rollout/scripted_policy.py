"""A policy that plays given turns through the local engine: real forward passes and sampling, forced tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.records import Completion, EngineInfo, Floats, Request
from ramify.engines.local import LocalEngine
from ramify.engines.sampling import RowFilters, SampledTokens, sample

TurnOf = Callable[[Request], Sequence[int]]
"""The request that begins a turn -> the token ids of the whole turn."""


class ForcedSampler:
    """Samples as the engine does, then puts the script's token in place of the one drawn."""

    def __init__(self) -> None:
        self._scripts: dict[int, tuple[int, Sequence[int]]] = {}

    def play(self, seed: int, start: int, turn: Sequence[int]) -> None:
        """The stream `seed` writes `turn`, whose first token has position `start`."""
        self._scripts[seed] = (start, turn)

    def __call__(
        self,
        logits: torch.Tensor,
        temperatures: npt.NDArray[np.float64],
        filters: Sequence[RowFilters | None],
        seeds: npt.NDArray[np.uint64],
        positions: npt.NDArray[np.uint64],
        entropy_rows: list[int],
        entropy_top_k: int | None,
    ) -> SampledTokens:
        """See `ramify.engines.sampling.sample`."""
        drawn = sample(logits, temperatures, filters, seeds, positions, entropy_rows, entropy_top_k)
        forced = np.empty_like(drawn.tokens)
        for row, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
            start, turn = self._scripts[seed]
            forced[row] = turn[position - start]
        return replace(drawn, tokens=forced)


class ScriptedPolicy:
    """Implements `core.protocols.Engine`: the local engine, told before each turn what it will write."""

    def __init__(self, engine: LocalEngine, sampler: ForcedSampler, turn_of: TurnOf) -> None:
        self.engine = engine
        self._sampler = sampler
        self._turn_of = turn_of

    async def generate(self, request: Request) -> Completion:
        """Play the next tokens of the turn that the request is in."""
        if not request.stop_context:
            self._sampler.play(request.seed, len(request.token_ids), self._turn_of(request))
        return await self.engine.generate(request)

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """Score with the engine."""
        return await self.engine.score(token_ids)

    async def load_weights(self, version: int) -> None:
        """Drop what is cached, as after an update."""
        await self.engine.load_weights(version)

    async def sleep(self) -> None:
        """Nothing."""

    def info(self) -> EngineInfo:
        """Return the info of the engine."""
        return self.engine.info()

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.close()


_SPEC = ToolSpec(
    "search", "look up", {"type": "object", "required": ["query"]}, forks=True, timeout_seconds=60.0
)


@dataclass(frozen=True, slots=True)
class InstantTool:
    """A tool that answers at once with a text that depends on its query. It has no state: its session is itself."""

    answer: Callable[[str], str]
    spec: ToolSpec = _SPEC

    async def open(self, problem: Problem) -> "InstantTool":
        """Nothing is held."""
        del problem
        return self

    async def call(self, call: ToolCall) -> ToolResult:
        """The answer."""
        return ToolResult(call.id, ToolStatus.OK, self.answer(call.arguments["query"]))

    async def fork(self) -> "InstantTool":
        """Nothing is copied."""
        return self

    async def close(self) -> None:
        """Nothing is held."""
