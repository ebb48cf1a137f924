"""The search tool over a local passage index."""

from dataclasses import dataclass
from typing import Any

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import ToolSession
from ramify.tools.passages import PassageIndex

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to look for."}},
    "required": ["query"],
}


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Looks passages up by their words.

    The answer holds at most `top_k` distinct passages, one a line, each cut to `snippet_chars` characters; with
    `page_labels` a line reads "Page 1: ...", as in the papers' tool (arXiv 2507.19849, released code). A problem
    whose info names a "collection" sees only the passages of that collection.
    """

    index: PassageIndex
    top_k: int
    snippet_chars: int
    page_labels: bool
    timeout_seconds: float

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.snippet_chars < 1:
            raise ValueError(f"top_k {self.top_k} and snippet_chars {self.snippet_chars} must be at least 1")

    @property
    def spec(self) -> ToolSpec:
        """Name, description, parameters, deadline."""
        return ToolSpec(
            name="search",
            description="Search a collection of passages and read the best ones.",
            parameters=_PARAMETERS,
            forks=True,
            timeout_seconds=self.timeout_seconds,
        )

    def look_up(self, query: str, collection: str | None) -> tuple[str, list[str]]:
        """The text that answers a query, and the ids of the passages in it (none: nothing was found)."""
        shown: dict[str, str] = {}
        for passage in self.index.search(query, self.top_k, collection):
            snippet = " ".join(passage.text.split())[: self.snippet_chars].rstrip()
            shown.setdefault(snippet, passage.id)
        if not shown:
            return "No search results found.", []
        lines = [f"Page {i}: {s}" for i, s in enumerate(shown, 1)] if self.page_labels else list(shown)
        return "\n".join(lines), list(shown.values())

    async def open(self, problem: Problem) -> ToolSession:
        """Start a session that searches the problem's collection."""
        collection = problem.info.get("collection")
        return SearchSession(self, None if collection is None else str(collection))


@dataclass(frozen=True, slots=True)
class SearchSession:
    """Searches on one trajectory; it has no state."""

    tool: SearchTool
    collection: str | None

    async def call(self, call: ToolCall) -> ToolResult:
        """Answer one query; `info["passages"]` holds the ids of the passages shown."""
        query = call.arguments.get("query")
        if call.malformed is not None or not isinstance(query, str):
            reason = call.malformed or "expected a text argument 'query'"
            return ToolResult(call.id, ToolStatus.MALFORMED, f"search: {reason}")
        text, shown = self.tool.look_up(query, self.collection)
        return ToolResult(call.id, ToolStatus.OK if shown else ToolStatus.EMPTY, text, {"passages": shown})

    async def fork(self) -> ToolSession:
        """A session on the same collection."""
        return SearchSession(self.tool, self.collection)

    async def close(self) -> None:
        """Nothing to free."""
