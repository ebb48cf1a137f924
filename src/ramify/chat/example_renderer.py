"""The part of a dialect for the examples of SFT and DPO, besides prompts and turns."""

import re
from abc import abstractmethod
from collections.abc import Sequence

from ramify.chat.conversation import AssistantCall, AssistantTurn, Parts, followed_by
from ramify.chat.renderer import ChatRenderer
from ramify.core.messages import ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source


class ExampleRenderer(ChatRenderer):
    """Reads and writes the texts of demonstrations; `chat.demonstrations` makes trees of them.

    Attributes:
        result_tags: The tags around a tool result in the text of a demonstration.
        other_calls: Calls in other dialects, which would be trained on as text that calls nothing.
        ends_each_turn: True if a turn with calls ends with the end token, as the last turn does.
    """

    result_tags: tuple[str, str]
    other_calls: "re.Pattern[str]"
    ends_each_turn: bool

    @abstractmethod
    def split(self, text: str) -> Parts:
        """Split a demonstration in one text into the assistant's turns and the tool results in the dialect's tags.

        Raises:
            RowError: A result holds an answer.
        """

    @abstractmethod
    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:
        """Return a call in the dialect's text; its arguments are JSON.

        Raises:
            RowError: The dialect cannot write it.
        """

    @abstractmethod
    def check_parts(self, parts: Parts, tools: Sequence[ToolSpec], *, may_end_in_call: bool) -> None:
        """Require that a rollout could have these turns and results; the first and the last part are turns.

        Raises:
            RowError: No rollout could.
        """

    def repaired(self, parts: Parts) -> Parts:
        """Repair damage to the texts of programs, such as escaped line breaks."""
        return parts

    @abstractmethod
    def frame_tokens(self) -> int:
        """Return an upper bound on the tokens around one tool result."""

    @abstractmethod
    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Write turns and tool results as the text of a demonstration, in one spelling; no result forges a tag."""

    def demonstrated(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a turn of a data set, without the end token; results may stand in it.

        Raises:
            RowError: The dialect cannot write a call.
        """
        calls = "\n".join(self.call_text(call, tools) for call in turn.calls)
        return followed_by(self.text_before_calls(turn, tools), calls)

    def tokens(self, source: Source, texts: Sequence[str], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens of a demonstration's turn, in one piece or several, or of the results that follow one."""
        if source is Source.TOOL:
            return self.render_results([ToolResult("", ToolStatus.OK, text) for text in texts], tools)
        return self.insert("".join(texts), tools)
