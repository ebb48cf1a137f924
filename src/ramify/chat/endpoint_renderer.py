"""The part of a dialect for chat endpoints: a path as messages, and an answer as the text of a turn."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramify.chat.conversation import (
    AssistantCall,
    AssistantTurn,
    Line,
    followed_by,
    thought_opened,
    with_broken_controls,
)
from ramify.chat.renderer import ChatRenderer
from ramify.core.messages import Message, ToolResult, ToolSpec
from ramify.core.tree import Source, Trajectory


class EndpointRenderer(ChatRenderer):
    """Writes what services with a chat endpoint read, and reads what they answer (`chat.conversation`)."""

    @abstractmethod
    def _assistant_turn(self, turn: str, number: int) -> AssistantTurn:
        """Return a turn of the policy, without the end token, as a chat endpoint has it; `number` is its index in the conversation."""

    @abstractmethod
    def _result_lines(self, turn: AssistantTurn, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        """Return the lines after a turn with calls, as a chat endpoint has them. The results' texts forge no tag."""

    def _calls_text(self, calls: Sequence[AssistantCall], tools: Sequence[ToolSpec]) -> str:
        """Return the calls of a chat endpoint's answer in the dialect's text; "" if the dialect has no such calls."""
        del calls, tools
        return ""

    def offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], ...]:
        """Return the tools for a chat endpoint, as in OpenAI's API; control tokens that they spell are broken up."""
        return self.tools_of(tools).offered

    def conversation(self, path: Trajectory, tools: Sequence[ToolSpec]) -> tuple[Line, ...]:
        """Return a path that ends before a turn of the policy, as a chat endpoint has it.

        No foreign text in it holds a tag of the dialect or spells a control token.
        """
        shown = self.tools_of(tools)
        lines: list[Line] = list(self._messages(path.problem, shown))
        turn = AssistantTurn("")
        for node in path.nodes[1:]:
            if node.source is Source.POLICY:
                end = len(node.token_ids) - (node.token_ids[-1] in self.tokenizer.eos_ids)
                turn = self._assistant_turn(self.decode(node.token_ids[:end]), len(lines))
                lines.append(turn)
            elif node.results:
                texts = [
                    replace(result, text=self._foreign(result.text, shown)[0]) for result in node.results
                ]
                lines += self._result_lines(turn, texts)
            else:
                user_text = "\n\n".join(message.text for message in node.messages)
                lines.append(Message.of("user", self._foreign(user_text, shown)[0]))
        return with_broken_controls(lines, shown.controls)

    def turn_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of the turn that a chat endpoint answered, without the end token."""
        text = thought_opened(self.text_before_calls(turn, tools))
        return followed_by(text, self._calls_text(turn.calls, tools))
