"""A context as messages for chat endpoints, and the turn that an endpoint answers.

A chat endpoint takes messages and writes one; it reads no token ids. The nodes of a path say what the policy wrote and what
came in between. So the messages are made from the nodes (`EndpointRenderer.conversation`), and an answer becomes the text of a
turn in the dialect (`EndpointRenderer.turn_text`). Nothing is parsed out of a rendered prompt.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ramify.chat.control_tokens import ControlTokens
from ramify.chat.tokenizer import as_unicode
from ramify.core.messages import Message, TextPart, ToolResult, TurnOutline
from ramify.core.protocols import Json
from ramify.core.tree import Source

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
_THOUGHT_TEXT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
_ONLY_CLOSED = re.compile(r"\s*(</think>\s*)?")


@dataclass(frozen=True, slots=True)
class AssistantCall:
    """A tool call; `arguments` is JSON text, which need not be valid in an answer."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """A turn of the assistant: the thought that it begins with, the text, and the calls at its end.

    `trained` is false where a data set says that the turn is context only.
    """

    text: str
    thought: str = ""
    calls: tuple[AssistantCall, ...] = ()
    trained: bool = True

    @property
    def whole_text(self) -> str:
        """The thought and the text as one text."""
        return f"<think>{self.thought}</think>{self.text}" if self.thought else self.text


Line: TypeAlias = Message | AssistantTurn | ToolResult
"""A message of the prompt or the user, a turn of the assistant, or the result of one of its calls."""

CompletionLines: TypeAlias = tuple[Line, ...]
"""The lines after a prompt, as a data set has them: the assistant's turns, tool results, and later messages of the user.

A turn's text may hold results in the dialect's tags.
"""

Parts: TypeAlias = tuple[tuple[Source, str], ...]
"""The assistant's turns, in the dialect's text, and the texts of the tool results, in order; the user's later messages are PROMPT."""

UNBALANCED = "tags are not balanced"
UNNAMED_TOOL = "it calls a tool that is neither the recipe's nor the row's"
UNFIT_ARGUMENTS = "a call's arguments are not its tool's"
"""Reasons for refusing a row that the dialects share."""


def split_at_spans(text: str, opening: str, closing: str) -> list[str]:
    """Split a text into what is outside of the first span, inside it, outside again, and so on. An unclosed span is none."""
    pieces: list[str] = []
    position = 0
    while (start := text.find(opening, position)) >= 0:
        inside = start + len(opening)
        end = text.find(closing, inside)
        if end < 0:
            break
        pieces += [text[position:start], text[inside:end]]
        position = end + len(closing)
    return [*pieces, text[position:]]


def split_thought(turn: str) -> AssistantTurn:
    """Split a turn into the thought that it begins with and its text."""
    match = _THOUGHT.fullmatch(turn)
    return AssistantTurn(turn) if match is None else AssistantTurn(match[2], match[1])


def thought_opened(turn: str) -> str:
    """Return a turn whose first thought has its `<think>`, which chat templates may write in the prompt."""
    before, closed, _ = turn.partition("</think>")
    return f"<think>{turn}" if closed and "<think>" not in before else turn


def in_opened_thought(turn: str, opening: str) -> str:
    """Return a turn as it continues a prompt that ends with `opening`, which is `<think>` and perhaps blanks.

    A turn without a thought closes the one that the prompt opened.
    """
    text = turn.lstrip()
    if text.startswith("<think>"):
        return text.removeprefix(opening if text.startswith(opening) else "<think>")
    begins_in_it = thought_opened(turn) != turn
    return turn if begins_in_it else f"\n</think>\n\n{turn}"


def outline(turn: str, words: int) -> TurnOutline:
    """Return the outline of a turn whose call or answer begins at `words`; its first thought may have been opened before it."""
    text = turn[:words]
    opened = thought_opened(text)
    before = len(opened) - len(text)
    thoughts = tuple(
        (match.start(1) - before, match.end(1) - before) for match in _THOUGHT_TEXT.finditer(opened)
    )
    last = thoughts[-1][1] if thoughts else words
    return TurnOutline(thoughts, words, last if _ONLY_CLOSED.fullmatch(text, last) else words)


def with_broken_controls(lines: Sequence[Line], controls: ControlTokens) -> tuple[Line, ...]:
    """Break up each control token that a text only spells, since a service reads control tokens by their spelling."""

    def broken(text: str) -> str:
        return controls.broken_text(as_unicode(text))

    def cleaned(line: Line) -> Line:
        match line:
            case Message():
                return Message(line.role, tuple(TextPart(broken(part.text)) for part in line.content))
            case AssistantTurn():
                calls = tuple(replace(call, arguments=broken(call.arguments)) for call in line.calls)
                return AssistantTurn(broken(line.text), broken(line.thought), calls)
            case ToolResult():
                return replace(line, text=broken(line.text))

    return tuple(map(cleaned, lines))


def followed_by(turn: str, calls: str) -> str:
    """Return a turn with its calls, which begin on a line of their own."""
    return f"{turn}\n{calls}" if calls and turn and not turn.endswith("\n") else turn + calls


def data_message(data: Json, mark: str) -> Message:
    """Return a user message that consists of `data` as JSON between two lines with `mark`.

    A text cannot end its own JSON string, and cannot know a mark that was drawn for this request.
    """
    written = json.dumps(data, ensure_ascii=False, indent=1)
    # Servers parse special tokens and tags in a message's text; the JSON escapes mean the same without being parsed.
    written = written.replace("<", "\\u003c").replace(">", "\\u003e")
    # A lone surrogate cannot be encoded as UTF-8.
    written = written.encode("utf-8", "replace").decode("utf-8")
    return Message.of("user", f"{mark}\n{written}\n{mark}")
