"""What chat endpoints need of a dialect: a path as messages, and an answer as the text of a turn."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramify.chat.conversation import Line, Said, SaidCall, followed_by, harmless, thought_opened
from ramify.chat.renderer import ChatRenderer
from ramify.core.messages import Message, ToolResult, ToolSpec
from ramify.core.tree import Source, Trajectory


class EndpointRenderer(ChatRenderer):
    """Writes what services with a chat endpoint read, and reads what they answer (`chat.conversation`)."""

    @abstractmethod
    def _said(self, turn: str, number: int) -> Said:
        """A turn of the policy, without the end token, as a chat endpoint has it; `number` is its own in the conversation."""

    @abstractmethod
    def _told(self, said: Said, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        """What follows a turn with calls, as a chat endpoint has it; the results' texts are harmless already."""

    def _calls_text(self, calls: Sequence[SaidCall], tools: Sequence[ToolSpec]) -> str:
        """Calls that a chat endpoint answered, in the dialect's text; "" if it has no such calls."""
        del calls, tools
        return ""

    def offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], ...]:
        """The tools that a chat endpoint is told of, as in OpenAI's API; control tokens that they spell are broken up."""
        return self.tools_of(tools).offered

    def conversation(self, path: Trajectory, tools: Sequence[ToolSpec]) -> tuple[Line, ...]:
        """A path that ends before a turn of the policy, as a chat endpoint has it.

        No foreign text in it holds a tag of the dialect or spells a control token.
        """
        shown = self.tools_of(tools)
        lines: list[Line] = list(self._messages(path.problem, shown))
        said = Said("")
        for node in path.nodes[1:]:
            if node.source is Source.POLICY:
                kept = len(node.token_ids) - (node.token_ids[-1] in self.tokenizer.eos_ids)
                said = self._said(self.decode(node.token_ids[:kept]), len(lines))
                lines.append(said)
            elif node.results:
                texts = [
                    replace(result, text=self._foreign(result.text, shown)[0]) for result in node.results
                ]
                lines += self._told(said, texts)
            else:
                heard = "\n\n".join(message.text for message in node.messages)
                lines.append(Message.of("user", self._foreign(heard, shown)[0]))
        return harmless(lines, shown.controls)

    def turn_text(self, said: Said, tools: Sequence[ToolSpec]) -> str:
        """The text of the turn that a chat endpoint answered, without the end token."""
        turn = thought_opened(self.spoken_text(said, tools))
        return followed_by(turn, self._calls_text(said.calls, tools))
