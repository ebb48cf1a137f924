"""The `open_page` tool: shows the beginning of a page, or the passage near given words."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import ToolSession
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.pages import Pages
from ramify.tools.passage_near import PassageSettings, passage_near

_GRACE_SECONDS: Final = 5.0
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "description": "Address of the page."},
        "near": {"type": "string", "description": "Words or a sentence that the wanted part resembles."},
    },
    "required": ["url"],
    "additionalProperties": False,
}

SPEC = ToolSpec(
    "open_page",
    "Open a page of the web and read its beginning, or the part that is near some words.",
    _PARAMETERS,
    forks=True,
    timeout_seconds=30.0 + _GRACE_SECONDS,
    in_prompt=True,
)
"""As prompts show it; the deadline is the recipe's."""


class OpenPage:
    """Implements `ramify.core.protocols.Tool`. Whoever creates `pages` closes it."""

    def __init__(
        self, pages: Pages, passage: PassageSettings | None = None, timeout_seconds: float = 30.0
    ) -> None:
        self._pages, self._seconds = pages, timeout_seconds
        self._passage = passage or PassageSettings()
        self._spec = replace(SPEC, timeout_seconds=timeout_seconds + _GRACE_SECONDS)

    @property
    def spec(self) -> ToolSpec:
        """Name, description, parameters, deadline."""
        return self._spec

    async def open(self, problem: Problem) -> ToolSession:  # noqa: ARG002 - all problems see the same pages
        """Start a session."""
        return _PageSession(self)

    async def run(self, call: ToolCall) -> ToolResult:
        """Read one page.

        Raises:
            ServiceDownError: The service that reads pages is down.
        """
        url, near = call.arguments.get("url"), call.arguments.get("near", "")
        if call.malformed is not None or not isinstance(url, str) or not isinstance(near, str):
            reason = call.malformed or "expected a text argument 'url', and 'near' only as text"
            return ToolResult(call.id, ToolStatus.MALFORMED, f"open_page: {reason}")
        try:
            async with asyncio.timeout(self._seconds):
                document = await self._pages.read(url)
        except TimeoutError:
            failed = RequestFailedError(
                FailureKind.TIMEOUT, f"it was not there after {self._seconds:g} seconds"
            )
        except RequestFailedError as error:
            failed = error
        else:
            # In a thread: finding the passage takes a while and must not block the event loop.
            passage = await asyncio.to_thread(passage_near, document.text, near, self._passage)
            head = f"Title: {document.title}\n" if document.title else ""
            return ToolResult(call.id, ToolStatus.OK, f"{head}{passage.text}", {"near": passage.f1 > 0})
        status = ToolStatus.TIMEOUT if failed.kind is FailureKind.TIMEOUT else ToolStatus.ERROR
        return ToolResult(
            call.id, status, f"The page could not be read: {failed}", {"failed": failed.kind.value}
        )


@dataclass(frozen=True, slots=True)
class _PageSession:
    """A session without state."""

    tool: OpenPage

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.tool.run(call)

    async def fork(self) -> ToolSession:
        return _PageSession(self.tool)

    async def close(self) -> None:
        pass
