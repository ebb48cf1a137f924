"""A turn in gpt-oss's harmony format: messages in channels, of which only the last ones call or answer.

    <|channel|>analysis<|message|> .. <|end|><|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>
    {"query": ".."}<|call|>

Source: the format's description in the `openai-harmony` package (0.0.8). The recipient may stand before the channel too, as
released chat templates write it, and `<|constrain|>` may be left out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

START, END, MESSAGE, CHANNEL, CALL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"
TOKENS = (START, END, MESSAGE, CHANNEL, CALL, "<|constrain|>", "<|return|>")
NEXT = f"{END}{START}assistant"
"""Between two messages of the assistant."""
FUNCTIONS = "functions."

_RECIPIENT = re.compile(r"\bto=([^\s<]*)")
_HEADER = re.compile(
    r"\s*(?:to=[^\s<]+)?\s*<\|channel\|>(?P<channel>analysis|commentary|final)(?:\s+to=[^\s<]+)?"
    r"\s*(?:<\|constrain\|>)?\s*(?P<kind>[A-Za-z_]*)\s*"
)
_EXPECTED = "expected <|channel|> and analysis, commentary or final"


class UnreadableTurnError(Exception):
    """A turn is no sequence of harmony messages; the text says why."""


@dataclass(frozen=True, slots=True)
class HarmonyMessage:
    """A message of a turn.

    Attributes:
        start: Its position in the turn.
        channel: Its channel; "" if its header cannot be read.
        recipient: The tool that it calls, such as `functions.search`; "" if it calls none.
        content: Its text.
        content_start: The position of its text.
    """

    start: int
    channel: str
    recipient: str
    content: str
    content_start: int


def read_messages(turn: str, ends: Sequence[str]) -> tuple[HarmonyMessage, ...]:
    """Read a whole turn, which begins behind `<|start|>assistant`, in time linear in its length.

    Args:
        turn: Its text.
        ends: The texts of the tokens that end a turn; it ends with one of them.

    Raises:
        UnreadableTurnError: The turn does not end, holds a message of another role, or a header cannot be read.
    """
    end = next((end for end in ends if turn.endswith(end)), None)
    if end is None:
        raise UnreadableTurnError("the turn does not end")
    pieces = turn.removesuffix(end).split(f"{END}{START}")
    messages: list[HarmonyMessage] = []
    position = 0
    for number, piece in enumerate(pieces):
        text = piece.removeprefix("assistant") if number else piece
        if number and text == piece:
            raise UnreadableTurnError("the turn writes a result or another role's message itself")
        messages.append(_read_message(text, position + len(piece) - len(text)))
        position += len(piece) + len(END) + len(START)
    return tuple(messages)


def _read_message(text: str, start: int) -> HarmonyMessage:
    header, opened, content = text.partition(MESSAGE)
    if not opened:
        raise UnreadableTurnError(f"a message has no {MESSAGE}")
    stray = next((token for token in TOKENS if token in content), None)
    if stray is not None:
        raise UnreadableTurnError(f"{stray} stands in the text of a message")
    match, recipient = _HEADER.fullmatch(header), _RECIPIENT.search(header)
    # A call with a damaged header is a call that cannot be read, which the policy learns from its result.
    if match is None and recipient is None:
        raise UnreadableTurnError(f"the header {header!r:.60} cannot be read; {_EXPECTED}")
    return HarmonyMessage(
        start,
        match["channel"] if match else "",
        recipient[1] if recipient else "",
        content,
        start + len(header) + len(MESSAGE),
    )


def ends_in_call(turn: str) -> bool:
    """Return True if the last message of a turn, here without the end token, has a recipient."""
    header = turn.rpartition(START)[2].partition(MESSAGE)[0]
    return _RECIPIENT.search(header) is not None


def is_harmony(text: str) -> bool:
    """Return True if a text begins with the header of a message."""
    head, channel, _ = text.partition(CHANNEL)
    return bool(channel) and (not head.strip() or _RECIPIENT.fullmatch(head.strip()) is not None)
