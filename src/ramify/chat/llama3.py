"""The llama3 dialect: calls in JSON, as Llama 3.1 to 3.3 write them.

    <think> .. </think>
    {"name": "search", "parameters": {"query": ".."}}

A call begins its turn, perhaps behind a thought. Behind other text it follows `<|python_tag|>`, behind which a program is a call of
`python`, and `NAME.call(key="..")` one of NAME. Several calls stand one after the other, perhaps with `;` in between. A turn ends with
`<|eot_id|>` or `<|eom_id|>`, and results have the role ipython. All else is as in the hermes dialect.
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace

from ramify.chat.arguments import read_object, text_argument
from ramify.chat.call_forms import LLAMA3
from ramify.chat.conversation import (
    AssistantCall,
    AssistantTurn,
    Parts,
    followed_by,
    in_opened_thought,
    outline,
    split_at_spans,
    split_thought,
    thought_opened,
)
from ramify.chat.hermes import HermesRenderer
from ramify.chat.hermes_turn import NOTHING, UNREADABLE, answer_begins, read_call, sent_call
from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    ParsedTurn,
    ToolCall,
    ToolSpec,
    TurnOutline,
)
from ramify.core.tree import Source

_PYTHON_TAG = "<|python_tag|>"
_HEADER = "<|start_header_id|>"
_RESULT = (f"{_HEADER}ipython<|end_header_id|>", "<|eot_id|>")
_ASSISTANT = f"{_HEADER}assistant<|end_header_id|>"
_ENDS = ("<|eot_id|>", "<|eom_id|>")
_KEYS = ("parameters", "arguments")
"""The arguments of a call; models also write the second, as most others do."""
_THOUGHTS = re.compile(r"\s*(?:<think>.*?</think>\s*)*", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_CALL = re.compile(r'\{\s*"name"\s*:')
_BUILT_IN = re.compile(r"([A-Za-z_]\w*)\.call\(.*\)", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)
_MOST_CHARS = 20_000
"""Longest call in Python that is read; Python's parser needs a bound."""


class Llama3Renderer(HermesRenderer):
    """The llama3 dialect over a chat template that has it."""

    form = LLAMA3
    written_tags = ("think", "|python_tag|")
    tags = (*written_tags, "|start_header_id|", "|end_header_id|", "|eot_id|", "|eom_id|")
    result_tags = _RESULT
    other_calls = re.compile(r"<result>|<function_call>|<function=|<tool_call>|\[TOOL_CALLS\]")

    def _read_template(self) -> str:
        result_end = super()._read_template()
        # The released templates write results as JSON text, in quotation marks.
        self._quotes = self._frame.before.endswith('"') and self._frame.after.startswith('"')
        return result_end.partition(_HEADER)[0]

    def stops(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:  # noqa: ARG002 - no call ends a turn
        """Return the token before a role, which the policy may forge; otherwise only the end tokens end a turn."""
        return (_HEADER,)

    def parse(self, turn: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse one whole turn of the policy; a call of a tool that is not in force is read, and gets an error."""
        opened = "<think>" if self.thought_opening else ""
        return parse_turn(opened + turn, self.ends, self._program_key(tools))

    def outline(self, turn: str, tools: Sequence[ToolSpec]) -> TurnOutline:  # noqa: ARG002 - see `parse`
        """Return the spans of a turn's thoughts, and the start of its first call or of its answer."""
        opened = "<think>" if self.thought_opening else ""
        whole = opened + turn
        start = _words_begin(whole)
        tag = whole.find(_PYTHON_TAG, start)
        if tag >= 0:
            words = tag
        elif start > len(opened) or whole.startswith("{", start):
            words = start
        else:
            words = answer_begins(turn, self.ends)
        return outline(turn, max(words - len(opened), 0))

    def demonstrated(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a turn of a data set; calls behind words follow `<|python_tag|>`."""
        return self._with_calls_text(turn, self.text_before_calls(turn, tools), tools)

    def _calls_text(self, calls: Sequence[AssistantCall], tools: Sequence[ToolSpec]) -> str:
        return "; ".join(self.call_text(call, tools) for call in calls)

    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:  # noqa: ARG002 - see `parse`
        """Write a call in JSON. Arguments that are not JSON stay as they are, so that the policy gets an error."""
        name = json.dumps(call.name, ensure_ascii=False)
        return f'{{"name": {name}, "parameters": {call.arguments.strip() or "{}"}}}'

    def turn_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a chat endpoint's turn, without a `<think>` that the prompt writes."""
        before = thought_opened(self.text_before_calls(turn, tools))
        text = self._with_calls_text(turn, before, tools)
        return in_opened_thought(text, "<think>") if self.thought_opening else text

    def _with_calls_text(self, turn: AssistantTurn, before: str, tools: Sequence[ToolSpec]) -> str:
        calls = self._calls_text(turn.calls, tools)
        if calls and before[_words_begin(before) :].strip():
            return f"{before.rstrip()}{_PYTHON_TAG}{calls}"
        return followed_by(before, calls)

    def _assistant_turn(self, turn: str, number: int, tools: Sequence[ToolSpec]) -> AssistantTurn:
        whole = split_thought(thought_opened(turn))
        words, calls = _split_calls(whole.text.strip(), self._program_key(tools))
        if not calls or any(call.malformed for call in calls):
            return whole
        sent = tuple(sent_call(call, number, index) for index, call in enumerate(calls))
        return replace(whole, text=words.rstrip(), calls=sent)

    def _program_key(self, tools: Sequence[ToolSpec]) -> str:
        """Return the argument of `python` that takes a program."""
        python = self.tools_of(tools).by_name.get("python")
        return (text_argument(python) if python else None) or "code"

    def _leaves_open(self, begun: str) -> bool:
        words = begun[_words_begin(begun) :]
        return words.startswith("{") or _PYTHON_TAG in words or _ends_in_thought(words)

    def split(self, text: str) -> Parts:
        """Split a demonstration at its results, without the headers and ends that the template writes between turns."""
        parts: list[tuple[Source, str]] = []
        for index, piece in enumerate(split_at_spans(text, *self.result_tags)):
            if index % 2:
                parts.append((Source.TOOL, _unquoted(piece.removeprefix("\n\n"))))
                continue
            turn = piece.strip().removeprefix(_ASSISTANT).strip()
            for end in _ENDS:
                turn = turn.removesuffix(end).rstrip()
            if turn:
                parts.append((Source.POLICY, turn))
        return tuple(parts)

    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Write turns and results with the headers and ends between them."""
        opening, closing = _RESULT
        pieces = [
            f"{_ASSISTANT}\n\n{text.strip()}{_ENDS[0]}"
            if source is Source.POLICY
            else f"{opening}\n\n{self.quoted(text, tools)}{closing}"
            for source, text in parts
        ]
        return "".join(pieces).removeprefix(f"{_ASSISTANT}\n\n").removesuffix(_ENDS[0])

    def result_text(self, text: str) -> str:
        """Return a result's text as the template writes it."""
        plain = super().result_text(text)
        return json.dumps(plain, ensure_ascii=False)[1:-1] if self._quotes else plain


def _words_begin(turn: str) -> int:
    """Return where a turn goes on behind the whole thoughts with which it begins."""
    thoughts = _THOUGHTS.match(turn)
    return thoughts.end() if thoughts else 0


def _ends_in_thought(words: str) -> bool:
    return any(not thought[1] for thought in _THOUGHT.finditer(words))


def _unquoted(result: str) -> str:
    """Return a result without the quotation marks and escapes that the released templates write."""
    try:
        text = json.loads(result, strict=False) if result.startswith('"') else result
    except ValueError:
        return result
    return text if isinstance(text, str) else result


def parse_turn(turn: str, ends: Sequence[str], program_key: str = "code") -> ParsedTurn:
    """Parse one turn of the policy.

    Args:
        turn: Text of this turn only, from its first thought on.
        ends: Texts of the end tokens; without one of them the turn is not complete.
        program_key: The argument of `python` that takes a program.
    """
    if _HEADER in turn:
        return MalformedTurn("the turn writes a result itself")
    end = next((end for end in ends if turn.endswith(end)), None)
    if end is None:
        return MalformedTurn("the turn does not end")
    body = turn.removesuffix(end)
    words, calls = _split_calls(body[_words_begin(body) :].strip(), program_key)
    if _ends_in_thought(words):
        return MalformedTurn("the turn ends in a thought")
    answer = _THOUGHT.sub("", words).strip()
    if "</think>" in answer:
        return MalformedTurn("</think> closes nothing")
    if calls:
        return Calls(calls)
    return Final(answer) if answer else MalformedTurn(NOTHING)


def _split_calls(text: str, program_key: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split what stands behind the thoughts of a turn into words and calls."""
    if calls := _calls_at_start(text):
        return "", calls
    words, tag, called = text.partition(_PYTHON_TAG)
    return words, _tagged_calls(called.strip(), program_key) if tag else ()


def _calls_at_start(text: str) -> tuple[ToolCall, ...]:
    """Parse the calls that a text begins with; none if it begins with another JSON object, which may be an answer."""
    if not text.startswith("{"):
        return ()
    try:
        first, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return _calls(text) if _CALL.match(text) else ()
    return _calls(text) if "name" in first and not first.keys().isdisjoint(_KEYS) else ()


def _calls(text: str) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    position = 0
    while position < len(text):
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = len(text)
        calls.append(read_call(text[position:end], _KEYS))
        while end < len(text) and (text[end].isspace() or text[end] == ";"):
            end += 1
        position = end
    return tuple(calls)


def _tagged_calls(text: str, program_key: str) -> tuple[ToolCall, ...]:
    """Parse what follows `<|python_tag|>`: calls in JSON, one of a tool that Llama 3 is trained on, or a program."""
    if calls := _calls_at_start(text) or _built_in_calls(text):
        return calls
    if not text:
        return (
            ToolCall("0", UNREADABLE, {}, f"nothing follows {_PYTHON_TAG}; expected a call or a program"),
        )
    return (ToolCall("0", "python", {program_key: text}),)


def _built_in_calls(text: str) -> tuple[ToolCall, ...]:
    """Parse `NAME.call(key="value")`; none if the text is something else."""
    if len(text) > _MOST_CHARS or not _BUILT_IN.fullmatch(text):
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            return ()
        values = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        arguments = read_object(json.dumps(values))
    # Whatever is no call of this form is a program.
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return ()
    return (ToolCall("0", text.partition(".")[0], arguments),)
