"""Searches of single benchmarks, in place of the usual one: a benchmark may have a corpus of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ramify.core.messages import Problem, ToolSpec
from ramify.core.protocols import Tool, ToolSession


@dataclass(frozen=True, slots=True)
class SearchByBenchmark:
    """Implements `ramify.core.protocols.Tool`: a problem of a benchmark in `others` searches with that tool, any other with `usual`.

    It has no `close`: whoever creates it closes the searches.
    """

    usual: Tool
    others: Mapping[str, Tool]

    @property
    def spec(self) -> ToolSpec:
        """Return the usual tool's spec, with the longest of all time limits."""
        longest = max(tool.spec.timeout_seconds for tool in (self.usual, *self.others.values()))
        return replace(self.usual.spec, timeout_seconds=longest)

    async def open(self, problem: Problem) -> ToolSession:
        """Start a session of the problem's search."""
        return await self.others.get(str(problem.info.get("benchmark")), self.usual).open(problem)
