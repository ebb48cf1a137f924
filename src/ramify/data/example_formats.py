"""The formats of files of examples, each read into one form: a prompt, and the lines of the assistant and its tools after it.

    plain       {prompt, completion}; for pairs {prompt, chosen, rejected}. Each side is a text, or messages, as TRL writes them
    OpenAI      {messages, tools?}; for pairs {chosen, rejected, tools?}, two such lists
    ShareGPT    {conversations, system?, tools?}; for pairs {conversations, chosen, rejected}
    alpaca      {instruction, input?, output, system?, history?}; for pairs {instruction, chosen, rejected}

Messages up to and including the last one of the user are the prompt. ShareGPT and alpaca are read as LLaMA-Factory reads them
(its data/converter.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ramify.chat.conversation import AssistantTurn, CompletionLines, Line
from ramify.core.errors import RowError
from ramify.core.messages import Message, ToolResult
from ramify.data.example_lines import message_lines, text_of, turn_lines
from ramify.data.problems import read_messages
from ramify.data.row_tools import read_tools

Row: TypeAlias = Mapping[str, Any]

Format: TypeAlias = Literal["plain", "OpenAI", "ShareGPT", "alpaca"]

Sides: TypeAlias = tuple[Literal["completion"]] | tuple[Literal["chosen"], Literal["rejected"]]
COMPLETION: Sides = ("completion",)
PAIR: Sides = ("chosen", "rejected")
"""The sides of a demonstration and of a pair, under their names in the plain format."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of a row.

    Attributes:
        format: Its format.
        prompt: The messages of the prompt.
        sides: The lines after it, for each side.
        tools: The row's own tools (`row_tools.read_tools`); "" if it has none.
    """

    format: Format
    prompt: tuple[Message, ...]
    sides: tuple[CompletionLines, ...]
    tools: str = ""


def read_row(row: Row, names: Sides) -> Reading:
    """Read a row by its own format.

    Raises:
        RowError: It has no known format, or cannot be read.
        ValueError: A message of its prompt cannot be read.
    """
    present = {name for name, value in row.items() if value is not None}
    tools = read_tools(row.get("tools"))
    if present.issuperset(("prompt", *names)) and not _has_prompt(row[names[0]]):
        return _plain(row, names, tools)
    if "conversations" in present:
        return _sharegpt(row, names, tools)
    if "instruction" in present:
        return _alpaca(row, names, tools)
    columns = ("messages",) if names == COMPLETION else names
    if present.issuperset(columns):
        return _openai(row, columns, tools)
    if "prompt" in present:
        return _plain(row, names, tools)
    raise RowError(
        f"unknown format: expected prompt, {' and '.join(columns)}, conversations or instruction",
        f"got {', '.join(row) or 'nothing'}"[:80],
    )


def _has_prompt(side: object) -> bool:
    """Return True if a side is a conversation that begins with its prompt."""
    first = side[0] if isinstance(side, list) and side else None
    return isinstance(first, dict) and first.get("role") in ("system", "user")


def _plain(row: Row, names: Sides, tools: str) -> Reading:
    return Reading("plain", read_messages(row), _sides(row, names), tools)


def _openai(row: Row, columns: Sequence[str], tools: str) -> Reading:
    conversations = [_split_prompt(message_lines(row[name], name)) for name in columns]
    if any(prompt != conversations[0][0] for prompt, _ in conversations):
        raise RowError("chosen and rejected have different prompts")
    return Reading("OpenAI", conversations[0][0], tuple(spoken for _, spoken in conversations), tools)


def _sharegpt(row: Row, names: Sides, tools: str) -> Reading:
    prompt, spoken = _split_prompt(turn_lines(row["conversations"], "conversations"))
    if prompt[0].role != "system" and row.get("system"):
        prompt = (Message.of("system", text_of(row["system"], "'system'")), *prompt)
    if names == COMPLETION:
        return Reading("ShareGPT", prompt, (spoken,), tools)
    if spoken:
        raise RowError("the 'conversations' of a pair must end with a user turn")
    return Reading("ShareGPT", prompt, _sides(row, names), tools)


def _alpaca(row: Row, names: Sides, tools: str) -> Reading:
    prompt: list[Message] = []
    if row.get("system"):
        prompt.append(Message.of("system", text_of(row["system"], "'system'")))
    history = row.get("history") or []
    if not isinstance(history, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in history):
        raise RowError("'history' must be a list of [question, answer]")
    for exchange in history:
        question, answer = (text_of(text, "'history'") for text in exchange)
        prompt += [Message.of("user", question), Message.of("assistant", answer)]
    instruction = [text_of(row[name], repr(name)) for name in ("instruction", "input") if row.get(name)]
    if not instruction:
        raise RowError("'instruction' and 'input' are blank")
    prompt.append(Message.of("user", "\n".join(instruction)))
    return Reading("alpaca", tuple(prompt), _sides(row, ("output",) if names == COMPLETION else names), tools)


def _sides(row: Row, columns: Sequence[str]) -> tuple[CompletionLines, ...]:
    return tuple(_side(row.get(column), column) for column in columns)


def _side(value: object, column: str) -> CompletionLines:
    """Return a side with a column of its own: a text, a message, or a list of messages."""
    if value is None:
        raise RowError(f"no {column!r}")
    if isinstance(value, str):
        return (AssistantTurn(text_of(value, repr(column))),)
    messages = value if isinstance(value, list) else [value]
    is_sharegpt = bool(messages) and isinstance(messages[0], dict) and "from" in messages[0]
    return _spoken((turn_lines if is_sharegpt else message_lines)(messages, column))


def _split_prompt(lines: Sequence[Line]) -> tuple[tuple[Message, ...], CompletionLines]:
    """Return the prompt, and the lines after the user's last message."""
    user_turns = [i for i, line in enumerate(lines) if isinstance(line, Message) and line.role == "user"]
    if not user_turns:
        raise RowError("no user message")
    end = user_turns[-1] + 1
    return tuple(map(_prompt_message, lines[:end])), _spoken(lines[end:])


def _prompt_message(line: Line) -> Message:
    if isinstance(line, Message):
        return line
    if isinstance(line, ToolResult) or line.calls:
        raise RowError(
            "a call or a result before the last user message; only the last exchange is trained on"
        )
    return Message.of("assistant", line.whole_text)


def _spoken(lines: Sequence[Line]) -> CompletionLines:
    spoken: list[AssistantTurn | ToolResult] = []
    for line in lines:
        if isinstance(line, Message):
            raise RowError("a user or system message follows the prompt")
        if isinstance(line, AssistantTurn) and spoken and isinstance(spoken[-1], AssistantTurn):
            raise RowError("two assistant messages in a row")
        spoken.append(line)
    return tuple(spoken)
