"""What SFT, DPO and the making of their rows need of a dialect, besides prompts and turns."""

import re
from abc import abstractmethod
from collections.abc import Sequence

from ramify.chat.conversation import Parts, Said, SaidCall, followed_by
from ramify.chat.renderer import ChatRenderer
from ramify.core.messages import ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Source


class ExampleRenderer(ChatRenderer):
    """Reads and writes the texts of demonstrations; `chat.demonstrations` makes trees of them.

    Attributes:
        result_tags: The tags around a tool result in the text of a demonstration.
        other_calls: Calls in other dialects, which would be trained on as text that calls nothing.
        ends_each_turn: Whether a turn with calls ends with the end token, as the last turn does.
    """

    result_tags: tuple[str, str]
    other_calls: "re.Pattern[str]"
    ends_each_turn: bool

    @abstractmethod
    def split(self, text: str) -> Parts:
        """Split what a data set has as one text: the assistant's turns, and tool results in the dialect's tags.

        Raises:
            RowError: A result holds an answer.
        """

    @abstractmethod
    def call_text(self, call: SaidCall, tools: Sequence[ToolSpec]) -> str:
        """A call in the dialect's text; its arguments are JSON.

        Raises:
            RowError: The dialect cannot write it.
        """

    @abstractmethod
    def check_parts(self, parts: Parts, tools: Sequence[ToolSpec], *, may_end_in_call: bool) -> None:
        """See that a rollout could have given these turns and results; the first and the last part are turns.

        Raises:
            RowError: It could not.
        """

    def repaired(self, parts: Parts) -> Parts:
        """The parts without damage that a program's text may have taken in its file."""
        return parts

    @abstractmethod
    def frame_tokens(self) -> int:
        """An upper bound on the tokens around one tool result."""

    @abstractmethod
    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Turns and tool results as the text of a demonstration, in one spelling; no result forges a tag."""

    def demonstrated(self, said: Said, tools: Sequence[ToolSpec]) -> str:
        """The text of a turn of a data set, without the end token; results may stand in it.

        Raises:
            RowError: The dialect cannot write a call.
        """
        calls = "\n".join(self.call_text(call, tools) for call in said.calls)
        return followed_by(self.spoken_text(said, tools), calls)

    def tokens(self, source: Source, texts: Sequence[str], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Tokens of a demonstration's turn, in one piece or several, or of the results that follow one."""
        if source is Source.TOOL:
            return self.render_results([ToolResult("", ToolStatus.OK, text) for text in texts], tools)
        return self.insert("".join(texts), tools)
