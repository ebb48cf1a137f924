"""Turns of the hermes dialect: which thoughts and calls a text holds, and what it answers.

The JSON of a call is read first and its closing tag is looked for behind it, so a tag inside a JSON string ends nothing. A
thought ends at its first `</think>`, as chat templates read it; any other tag in it is text. In the rest, a tag is text if it
is quoted or stands within a sentence ("write `<tool_call>` first").
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ramify.chat.arguments import json_fault, object_at, read_object
from ramify.chat.conversation import AssistantCall, AssistantTurn
from ramify.core.messages import Calls, Final, MalformedTurn, ParsedTurn, ToolCall

UNREADABLE = "tool_call"
"""The name of a call whose own name cannot be read; no tool may have it."""

NOTHING = "the turn holds neither a call nor an answer"
_FORGED = "the turn writes a result itself"
RESULT_TAGS = ("<tool_response>", "</tool_response>")
_OPENING = re.compile(r"<think>|<tool_call>[ \t\n\r]*+")
_CALL_END = re.compile(r"[ \t\n\r]*+</tool_call>")
_QUOTED = re.compile(
    r"(?<=[`'\"(\u2018\u201c\u300c])</?(?:think|tool_call|tool_response)>(?=[`'\")\u2019\u201d\u300d])"
)
# Before the tag a blank or a Chinese character; behind it a word in small letters, a mark or a Chinese character.
_IN_SENTENCE = (
    r"(?:(?<=\S[ \t])|(?<=[\u3040-\u9fff]))</?{tag}>"
    r"(?=[ \t]+[a-z]|[.,;:!?)]|[ \t]*[\u3001-\u9fff\uff01-\uff1f])"
)
_NAMED_CALL = re.compile(f"{_QUOTED.pattern}|{_IN_SENTENCE.format(tag='tool_(?:call|response)')}")
_NAMED = re.compile(f"{_QUOTED.pattern}|{_IN_SENTENCE.format(tag='(?:think|tool_call|tool_response)')}")


def answer_begins(turn: str, ends: Sequence[str]) -> int:
    """Return the start of the sentence or line with the first box, in a turn that thinks aloud; without a box, the turn's end."""
    text = turn[: min((at for end in ends if (at := turn.find(end)) >= 0), default=len(turn))]
    box = text.find("\\boxed")
    return len(text) if box < 0 else max(text.rfind("\n", 0, box), text.rfind(". ", 0, box), -1) + 1


def sent_call(call: ToolCall, turn: int, number: int) -> AssistantCall:
    """Return a call as a chat endpoint has it. Ids are nine letters and digits, which every service accepts."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return AssistantCall(f"call{turn:03d}{number:02d}", call.name, arguments)


def parse_turn(turn: str, ends: Sequence[str], read: Callable[[str], ToolCall] | None = None) -> ParsedTurn:
    """Parse one turn of the policy.

    Args:
        turn: Text of this turn only, from its first thought on.
        ends: Texts of the end tokens; without one of them the turn is not complete.
        read: Parses the text of one call; None: `read_call`.
    """
    # Engines stop at the tag that opens a result, wherever it stands.
    if RESULT_TAGS[0] in turn:
        return MalformedTurn(_FORGED)
    end = next((end for end in ends if turn.endswith(end)), None)
    if end is None:
        return MalformedTurn("the turn does not end")
    body = turn.removesuffix(end)
    reading = read_turn(body, read or read_call)
    calls: list[ToolCall] = []
    texts: list[str] = []
    position = 0
    for part in reading.parts:
        if not part.closed:
            return MalformedTurn(
                "the turn ends in a thought" if part.call is None else "the turn ends in a call"
            )
        if part.call is not None:
            calls.append(part.call)
        texts.append(body[position : part.start])
        position = part.end
    texts.append(body[position:])
    answer = "".join(texts).strip()
    if "</" in answer:
        unnamed = reading.named.sub("", answer)
        if RESULT_TAGS[1] in unnamed:
            return MalformedTurn(_FORGED)
        stray = next((tag for tag in ("</think>", "</tool_call>") if tag in unnamed), None)
        if stray is not None:
            return MalformedTurn(f"{stray} closes nothing")
    if calls:
        return Calls(tuple(calls))
    return Final(answer) if answer else MalformedTurn(NOTHING)


@dataclass(frozen=True, slots=True)
class TurnPart:
    """A thought or a call of a turn, from its opening tag up to the end of its closing tag or, without one, of the turn.

    `call` is None for a thought.
    """

    start: int
    end: int
    closed: bool
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class TurnReading:
    """The thoughts and calls of a turn in order, and the pattern of the tags that its other text only names."""

    parts: tuple[TurnPart, ...]
    named: "re.Pattern[str]"

    def without_named_tags(self, turn: str) -> str:
        """Return the turn with dots in place of the tags that it only names, so that all positions stay."""
        pieces: list[str] = []
        position = 0
        for start, end in (*((part.start, part.end) for part in self.parts), (len(turn), len(turn))):
            text = self.named.sub(lambda match: "." * len(match[0]), turn[position:start])
            pieces += (text, turn[start:end])
            position = end
        return "".join(pieces)


def read_turn(turn: str, read: Callable[[str], ToolCall], *, after_thought: bool = False) -> TurnReading:
    """Read the thoughts and calls of a turn; `after_thought` says that a thought stands before it."""
    parts: list[TurnPart] = []
    named = _NAMED if after_thought else _NAMED_CALL
    last_closing = turn.rfind("</think>")
    nested = False
    position = 0
    while (opening := _OPENING.search(turn, position)) is not None:
        start, position = opening.span()
        if opening[0] != "<think>":
            part = _read_call_part(turn, start, position, named, read)
        elif _QUOTED.match(turn, start) or (start > last_closing and named.match(turn, start)):
            part = None
        else:
            closing = turn.find("</think>", position)
            part = TurnPart(start, closing + len("</think>") if closing >= 0 else len(turn), closing >= 0)
            # `hm </think> so it is` is a broken thought, not words about a tag, before a thought has ended and in nested ones.
            nested = nested or "<think>" in turn[position : part.end]
            named = _NAMED_CALL if nested else _NAMED
        if part is not None:
            parts.append(part)
            position = part.end
    return TurnReading(tuple(parts), named)


def _read_call_part(
    turn: str, start: int, content: int, named: "re.Pattern[str]", read: Callable[[str], ToolCall]
) -> TurnPart | None:
    """Read the call whose tag stands at `start` and its text at `content`; None if the turn only names the tag.

    A call that is not JSON ends at the last closing tag before the next opening one: an earlier one may stand in a string.
    """
    is_named = named.match(turn, start)
    if not is_named and read is read_call:
        try:
            call, end = object_at(turn, content)
        except (ValueError, RecursionError):
            pass
        else:
            if closing_tag := _CALL_END.match(turn, end):
                return TurnPart(start, closing_tag.end(), True, _as_call(call))
    inside = start + len("<tool_call>")
    following = turn.find("<tool_call>", inside)
    closing = turn.rfind("</tool_call>", inside, len(turn) if following < 0 else following)
    if is_named and (closing < 0 or named.match(turn, closing)):
        return None
    if closing < 0 <= following:
        closing = turn.find("</tool_call>", following)
    if closing < 0:
        return TurnPart(start, len(turn), False, read(turn[inside:]))
    return TurnPart(start, closing + len("</tool_call>"), True, read(turn[inside:closing]))


def read_call(content: str, keys: Sequence[str] = ("arguments",)) -> ToolCall:
    """Parse the JSON of one call; if that fails, the call's `malformed` says what was expected.

    Args:
        content: The JSON.
        keys: The keys of the arguments; the first that is there counts.
    """
    try:
        call = read_object(content)
    except (ValueError, RecursionError) as error:
        reason = f"its text is not a JSON object ({json_fault(content, error)})"
        return ToolCall("0", UNREADABLE, {}, f"{reason}; {_expected(keys)}")
    return _as_call(call, keys)


def _expected(keys: Sequence[str]) -> str:
    return f'expected {{"name": .., "{keys[0]}": {{..}}}}'


def _as_call(call: dict[str, Any], keys: Sequence[str] = ("arguments",)) -> ToolCall:
    name = call.get("name")
    arguments = next((call[key] for key in keys if key in call), None)
    if not isinstance(name, str) or not name:
        return ToolCall("0", UNREADABLE, {}, f"it has no name; {_expected(keys)}")
    if not isinstance(arguments, dict):
        reason = f"its arguments are not a JSON object{_instead(call, keys)}"
        return ToolCall("0", name, {}, f"{reason}; {_expected(keys)}")
    return ToolCall("0", name, arguments)


def _instead(call: dict[str, Any], keys: Sequence[str]) -> str:
    """Return where the arguments may stand instead; "" if the call holds nothing else."""
    own = next((key for key in keys if key in call), None)
    if own is not None:
        return " but a text" if isinstance(call[own], str) else ""
    others = [key for key in call if key != "name"]
    return f" (it has {others[0]!r:.40} instead)" if others else ""


def split_calls(turn: AssistantTurn, number: int, read: Callable[[str], ToolCall]) -> AssistantTurn | None:
    """Split a turn's calls from its text; None if it has no call, or one that cannot be read."""
    calls: list[AssistantCall] = []
    texts: list[str] = []
    position = 0
    for part in read_turn(turn.text, read, after_thought=bool(turn.thought)).parts:
        if part.call is None:
            continue
        if part.call.malformed is not None:
            return None
        calls.append(sent_call(part.call, number, len(calls)))
        texts.append(turn.text[position : part.start])
        position = part.end
    texts.append(turn.text[position:])
    return replace(turn, text="".join(texts).rstrip(), calls=tuple(calls)) if calls else None
