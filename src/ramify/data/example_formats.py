"""The formats of files of examples, each read into one form: a prompt, and the lines of the assistant and its tools after it.

    plain       {prompt, completion}; for pairs {prompt, chosen, rejected}. Each side is a text, or messages, as TRL writes them
    OpenAI      {messages, tools?}; for pairs {chosen, rejected, tools?}, two such lists
    ShareGPT    {conversations, tools?}; for pairs {conversations, chosen, rejected}
    alpaca      {instruction, input?, output, history?}; for pairs {instruction, chosen, rejected}

In a demonstration everything up to the user's message before the first turn that is trained on is the prompt; of a pair, up to
the user's last message. ShareGPT and alpaca are read as LLaMA-Factory reads them (its data/converter.py). Each list of messages may
have either form (`row_messages`), and any row a `system` message in a column of its own.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from ramify.chat.conversation import AssistantTurn, CompletionLines, Line
from ramify.core.errors import RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import Message
from ramify.data.problems import read_messages, with_system_column
from ramify.data.row_columns import Row, described, is_missing, meant_column, missing_column
from ramify.data.row_messages import is_messages_text, read_lines, text_of
from ramify.data.row_tools import read_tools

Format: TypeAlias = Literal["plain", "OpenAI", "ShareGPT", "alpaca"]

Sides: TypeAlias = tuple[Literal["completion"]] | tuple[Literal["chosen"], Literal["rejected"]]
COMPLETION: Sides = ("completion",)
PAIR: Sides = ("chosen", "rejected")
"""The sides of a demonstration and of a pair, under their names in the plain format."""
_NOTHING = "nothing is left to train on"
_PROMPT_ROLES = ("system", "developer", "user", "human")


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
    """Read a row by its own format; a `system` column goes in front of a prompt without a system message.

    Raises:
        RowError: It has no known format, or cannot be read.
        ValueError: A message of its prompt cannot be read.
    """
    reading = _by_format(row, names)
    if names == PAIR and any(isinstance(line, Message) for side in reading.sides for line in side):
        reading = _with_last_exchange(reading)
    if not all(map(_is_trained_on, reading.sides)):
        raise RowError(_NOTHING)
    return replace(reading, prompt=with_system_column(reading.prompt, row))


def _by_format(row: Row, names: Sides) -> Reading:
    present = {name for name, value in row.items() if not is_missing(value)}
    tools = read_tools(row.get("tools"))
    if present.issuperset(("prompt", *names)) and not _has_prompt(row[names[0]]):
        return _plain(row, names, tools)
    if "conversations" in present:
        return _sharegpt(row, names, tools)
    if "instruction" in present:
        return _alpaca(row, names, tools)
    columns = ("messages",) if names == COMPLETION else names
    if present.issuperset(columns) and not (names == PAIR and _is_plain_text(row[columns[0]])):
        return _openai(row, columns, tools)
    if "prompt" in present:
        return _plain(row, names, tools)
    raise RowError(
        f"unknown format: expected prompt, {' and '.join(columns)}, conversations or instruction",
        _columns_with_hint(row, ("prompt", *names)),
    )


def _columns_with_hint(row: Row, columns: Sequence[str]) -> str:
    """Return the columns of a row, and a hint which of them are meant by ours."""
    meant = {own: meant_column(own, row) for own in columns}
    hint = ", ".join(f'{own} = "{name}"' for own, name in meant.items() if name and name != own)
    return f"found {described(row)}" + (
        f"; name what is meant, such as data.columns = {{{hint}}}" if hint else ""
    )


def _has_prompt(side: object) -> bool:
    """Return True if a side is a conversation that begins with its prompt."""
    if is_messages_text(side):
        with suppress(ValueError):
            side = parse_json(cast(str, side))
    first = side[0] if isinstance(side, list) and side else None
    return isinstance(first, dict) and first.get("role", first.get("from")) in _PROMPT_ROLES


def _is_plain_text(side: object) -> bool:
    return isinstance(side, str) and not side.lstrip().startswith("[")


def _plain(row: Row, names: Sides, tools: str) -> Reading:
    prompt = row.get("prompt")
    if prompt is None:
        raise RowError(missing_column("prompt", ("prompt",), row))
    return Reading("plain", read_messages(prompt), _sides(row, names, tools), tools)


def _openai(row: Row, columns: Sequence[str], tools: str) -> Reading:
    demonstration = columns == ("messages",)
    sides = [read_lines(row[name], name, tools) for name in columns]
    conversations = [_split_prompt(lines, demonstration=demonstration) for lines in sides]
    _require_one_prompt(sides)
    return Reading("OpenAI", conversations[0][0], tuple(spoken for _, spoken in conversations), tools)


def _require_one_prompt(sides: Sequence[Sequence[Line]]) -> None:
    if any(lines[: _users(lines)[-1] + 1] != sides[0][: _users(sides[0])[-1] + 1] for lines in sides):
        raise RowError("chosen and rejected have different prompts")


def _with_last_exchange(pair: Reading) -> Reading:
    """Return a pair whose sides differ in their last exchange only, as one whose earlier exchanges are context."""
    prompt = [AssistantTurn(line.text) if line.role == "assistant" else line for line in pair.prompt]
    sides = [(*prompt, *side) for side in pair.sides]
    _require_one_prompt(sides)
    conversations = [_split_prompt(lines, demonstration=False) for lines in sides]
    return replace(pair, prompt=conversations[0][0], sides=tuple(spoken for _, spoken in conversations))


def _sharegpt(row: Row, names: Sides, tools: str) -> Reading:
    lines = read_lines(row["conversations"], "conversations", tools)
    prompt, spoken = _split_prompt(lines, demonstration=names == COMPLETION)
    if names == COMPLETION:
        return Reading("ShareGPT", prompt, (spoken,), tools)
    if spoken and not isinstance(spoken[-1], Message):
        raise RowError("the 'conversations' of a pair must end with a user turn")
    return Reading("ShareGPT", prompt, tuple((*spoken, *side) for side in _sides(row, names, tools)), tools)


def _alpaca(row: Row, names: Sides, tools: str) -> Reading:
    lines: list[Line] = []
    history = row.get("history") or []
    if not isinstance(history, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in history):
        raise RowError("'history' must be a list of [question, answer]")
    for exchange in history:
        question, answer = (text_of(text, "'history'") for text in exchange)
        lines += [Message.of("user", question), AssistantTurn(answer)]
    instruction = [text_of(row[name], repr(name)) for name in ("instruction", "input") if row.get(name)]
    if not instruction:
        raise RowError("'instruction' and 'input' are blank")
    lines.append(Message.of("user", "\n".join(instruction)))
    if names == PAIR:
        prompt, _ = _split_prompt(lines, demonstration=False)
        return Reading("alpaca", prompt, _sides(row, names, tools), tools)
    (output,) = _sides(row, ("output",), tools)
    prompt, spoken = _split_prompt((*lines, *output), demonstration=True)
    return Reading("alpaca", prompt, (spoken,), tools)


def _sides(row: Row, columns: Sequence[str], tools: str) -> tuple[CompletionLines, ...]:
    return tuple(_side(row, column, tools) for column in columns)


def _side(row: Row, column: str, tools: str) -> CompletionLines:
    """Return a side with a column of its own: a text, a message, or a list of messages."""
    value = row.get(column)
    if value is None:
        raise RowError(f"no {column!r}", _columns_with_hint(row, (column,)))
    if is_messages_text(value):
        return _spoken(read_lines(value, column, tools))
    if isinstance(value, str):
        return (AssistantTurn(text_of(value, repr(column))),)
    if not isinstance(value, dict | list):
        raise RowError(f"{column!r} must be text or messages", f"it is {type(value).__name__}")
    return _spoken(read_lines(value if isinstance(value, list) else [value], column, tools))


def _split_prompt(
    lines: Sequence[Line], *, demonstration: bool
) -> tuple[tuple[Message, ...], CompletionLines]:
    """Return the prompt, and the lines after it: those that are trained on, and what stands between them.

    Turns before the prompt's last message are rendered with it, and carry no loss. Where one of them calls a tool, the prompt ends
    with the user's first message, and they are among the lines, as context.
    """
    users = _users(lines)
    trained = [i for i, line in enumerate(lines) if isinstance(line, AssistantTurn) and line.trained]
    # A greeting before the user's first message is context.
    begins = [i for i in trained if i > users[0]] if demonstration else []
    last = max((i for i in users if not begins or i < begins[0]), default=users[0])
    if not all(_is_text(line) for line in lines[:last]):
        last = users[0]
        if not all(map(_is_text, lines[:last])):
            raise RowError("a call or a result before the user's first message")
    following = [
        replace(line, trained=False)
        if not demonstration and i < users[-1] and isinstance(line, AssistantTurn)
        else line
        for i, line in enumerate(lines[last + 1 :], last + 1)
    ]
    if demonstration and not _is_trained_on(following):
        raise RowError(_NOTHING)
    return tuple(map(_prompt_message, lines[: last + 1])), _spoken(following)


def _is_trained_on(lines: Sequence[Line]) -> bool:
    return any(isinstance(line, AssistantTurn) and line.trained for line in lines)


def _users(lines: Sequence[Line]) -> list[int]:
    """Return the positions of the user's messages.

    Raises:
        RowError: There is none.
    """
    users = [i for i, line in enumerate(lines) if isinstance(line, Message) and line.role == "user"]
    if not users:
        raise RowError("no user message")
    return users


def _is_text(line: Line) -> bool:
    return isinstance(line, Message) or (isinstance(line, AssistantTurn) and not line.calls)


def _prompt_message(line: Line) -> Message:
    if isinstance(line, AssistantTurn):
        return Message.of("assistant", line.whole_text)
    assert isinstance(line, Message)
    return line


def _spoken(lines: Sequence[Line]) -> CompletionLines:
    """Check the lines after a prompt: turns of the assistant and results, and messages of the user between two exchanges."""
    for before, line in zip((None, *lines), lines, strict=False):
        if isinstance(line, Message) and (before is None or line.role != "user"):
            raise RowError("a user or system message follows the prompt")
        if isinstance(line, AssistantTurn) and isinstance(before, AssistantTurn):
            raise RowError("two assistant messages in a row")
    return tuple(lines)
