"""The hermes dialect: JSON calls, as Qwen2.5, Qwen3 and the Hermes models write them.

    <think> .. </think> <tool_call>
    {"name": "search", "arguments": {"query": ".."}}
    </tool_call>

A turn may hold several calls; only the model's end token ends it. The results follow as the chat template writes them,
and after them begins the assistant's next turn. A turn without a call is the final answer: its text without the thought.

A context only grows. The template renders the prompt once; results are encoded once, with the template's text around
them, and appended. So a template that would rewrite earlier turns (Qwen3 drops their thoughts once the user speaks again)
never gets to do it.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ramify.chat.call_forms import HERMES, read_frame
from ramify.chat.control_tokens import ControlTokens
from ramify.chat.conversation import (
    UNBALANCED,
    UNNAMED_TOOL,
    AssistantCall,
    AssistantTurn,
    Line,
    Parts,
    in_opened_thought,
    outline,
    split_at_spans,
    split_thought,
    thought_opened,
)
from ramify.chat.hermes_turn import (
    NOTHING,
    RESULT_TAGS,
    UNREADABLE,
    answer_begins,
    parse_turn,
    read_call,
    read_turn,
    split_calls,
)
from ramify.chat.renderer import DialectTools, EndpointRenderer, ExampleRenderer
from ramify.chat.tokenizer import ChatTokenizer, begun_turn
from ramify.core.errors import DataError, RowError
from ramify.core.messages import (
    Calls,
    MalformedTurn,
    Message,
    ParsedTurn,
    Problem,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnOutline,
)
from ramify.core.tree import Source

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TAG_IN_JSON = re.compile(r"<(?=/?tool_(?:call|response)>)")


class HermesRenderer(ExampleRenderer, EndpointRenderer):
    """The hermes dialect over a chat template that has it.

    Dialects with calls of another form inherit from it; the turns around calls and results are alike.

    Attributes:
        form: How the template writes calls.
        written_tags: Names of the tags that the policy writes.
        tags: Names of the tags that foreign text must not hold.
    """

    form = HERMES
    written_tags: tuple[str, ...] = ("think", "tool_call")
    tags: tuple[str, ...] = (*written_tags, "tool_response")
    result_tags = RESULT_TAGS
    other_calls = re.compile(
        r"(?<![`'\"(])(?:<result>|<function_call>|<function=|<\|python_tag\|>|\[TOOL_CALLS\])"
    )
    ends_each_turn = True

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        """Read the text around tool results from the template.

        Raises:
            DataError: The template shows no tools, or writes calls or results in another way.
        """
        super().__init__(tokenizer)
        self._controls = ControlTokens(tokenizer, self.written_tags)
        self.result_end = self._read_template()

    def _read_template(self) -> str:
        """Read the text around results from the template; return the text that marks each result in a context."""
        tokenizer = self.tokenizer
        self._frame = read_frame(
            tokenizer.template, tokenizer.decode([tokenizer.eos_id]), f"{tokenizer.folder}", self.form
        )
        return self._frame.result_end

    def _refusal(self, name: str, others: Collection[str]) -> str:
        if not TOOL_NAME.fullmatch(name) or name == UNREADABLE:
            return f"expected a name of letters, digits, underscores, dots and dashes, at most 64, not {UNREADABLE!r}"
        return "two tools have this name" if name in others else ""

    def _read_tools(self, tools: tuple[ToolSpec, ...]) -> DialectTools:
        by_name = self._callable(tools)
        functions = (
            {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in by_name.values()
        )
        listed = tuple({"type": "function", "function": function} for function in functions)
        return DialectTools(by_name, self.tags, self._controls, listed=listed)

    def stops(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:  # noqa: ARG002 - no call ends a turn
        """Return the tag of a result, which the policy may forge; otherwise only the end token ends a turn."""
        return (RESULT_TAGS[0],)

    def render_results(
        self,
        results: Sequence[ToolResult],
        tools: Sequence[ToolSpec],
        names: Sequence[str] = (),  # noqa: ARG002 - no result names its tool
    ) -> tuple[int, ...]:
        """Return the tokens between the end of the turn with the calls and the start of the next turn; no result forges a tag."""
        shown = self.tools_of(tools)
        texts = [self.result_text(self._foreign(result.text, shown)[0]) for result in results]
        return shown.controls.framed_ids(self._frame.pieces(len(texts)), texts)

    def result_text(self, text: str) -> str:
        """Return a result's text as the template writes it."""
        return text.strip() if self._frame.trims else text

    def parse(self, turn: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse one whole turn of the policy; a call of a tool that is not in force is read, and gets an error."""
        opened = "<think>" if self.thought_opening else ""
        return parse_turn(opened + turn, self.ends, self._call_reader(tools))

    def _call_reader(self, tools: Sequence[ToolSpec]) -> Callable[[str], ToolCall]:
        """Return what parses the text of one call."""
        del tools
        return read_call

    def outline(self, turn: str, tools: Sequence[ToolSpec]) -> TurnOutline:
        """Return the spans of a turn's thoughts, and the start of its first call or of its answer."""
        opened = "<think>" if self.thought_opening else ""
        reading = read_turn(opened + turn, self._call_reader(tools))
        call = next((part.start for part in reading.parts if part.call is not None), None)
        thoughts = [part.end for part in reading.parts if part.call is None and part.closed]
        if call is not None:
            words = call
        elif thoughts:
            words = max(thoughts)
        else:
            words = len(opened) + answer_begins(turn, self.ends)
        return outline(reading.without_named_tags(opened + turn)[len(opened) :], words - len(opened))

    def thought(self, text: str, tools: Sequence[ToolSpec], *, first: bool = False) -> str:
        """Return a whole thought; one that the template opened is only closed, since it opens that of every turn."""
        del first
        opening = "" if self.thought_opening else "<think>\n"
        return f"{opening}{self.quoted(text.strip(), tools)}\n</think>\n\n"

    def turn_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a chat endpoint's turn, without a `<think>` that the prompt writes."""
        text = super().turn_text(turn, tools)
        return in_opened_thought(text, "<think>") if self.thought_opening else text

    def _assistant_turn(self, turn: str, number: int, tools: Sequence[ToolSpec]) -> AssistantTurn:
        # Without an open thought in the prompt, a `</think>` behind the first call stands in the call.
        words, tag, calls = (turn, "", "") if self.thought_opening else turn.partition("<tool_call>")
        whole = split_thought(thought_opened(words) + tag + calls)
        return split_calls(whole, number, self._call_reader(tools)) or whole

    def _result_lines(self, turn: AssistantTurn, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        if turn.calls:
            pairs = zip(turn.calls, results, strict=True)
            return tuple(replace(result, call_id=call.id) for call, result in pairs)
        # The turn holds a call that cannot be read, so it went as text, and there is no call to answer.
        return (Message.of("user", "\n".join(result.text for result in results)),)

    def _calls_text(self, calls: Sequence[AssistantCall], tools: Sequence[ToolSpec]) -> str:
        return "\n".join(self.call_text(call, tools) for call in calls)

    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:  # noqa: ARG002 - see `parse`
        """Write a call in `<tool_call>`. Arguments that are not JSON stay as they are, so that the policy gets an error."""
        arguments = call.arguments.strip() or "{}"
        try:
            json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            pass
        else:
            # Inside JSON a tag can only stand in a string, where it has another spelling.
            arguments = _TAG_IN_JSON.sub(r"\\u003c", arguments)
        name = json.dumps(call.name, ensure_ascii=False)
        return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'

    def _messages(self, problem: Problem, shown: DialectTools) -> tuple[Message, ...]:  # noqa: ARG002
        begun = "" if self.thought_opening else begun_turn(problem.messages)
        if self._leaves_open(begun):
            # Where a turn is read, the prompt is not at hand.
            raise DataError(
                "the turn of the assistant at the end of the prompt leaves a thought or a call open, which this dialect does not "
                'continue. Close it, or use model.dialect = "tags"'
            )
        return problem.messages

    def _leaves_open(self, begun: str) -> bool:
        """Return True if the beginning of a turn leaves a thought or a call open."""
        return any(not part.closed for part in read_turn(begun, read_call).parts)

    def split(self, text: str) -> Parts:
        """Split a demonstration at its tool responses, without the line breaks that the template writes between turns."""
        parts: list[tuple[Source, str]] = []
        for index, piece in enumerate(split_at_spans(text, *self.result_tags)):
            if index % 2:
                parts.append((Source.TOOL, piece.removeprefix("\n").removesuffix("\n")))
            elif piece.strip():
                parts.append((Source.POLICY, piece.strip()))
        return tuple(parts)

    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Write turns and tool responses on lines of their own."""
        opening, closing = RESULT_TAGS
        return "\n".join(
            text.strip() if source is Source.POLICY else f"{opening}\n{self.quoted(text, tools)}\n{closing}"
            for source, text in parts
        )

    def check_parts(self, parts: Parts, tools: Sequence[ToolSpec], *, may_end_in_call: bool) -> None:
        """Require one result for each call of a turn, and that only the last turn has no call."""
        named = self.tools_of(tools).by_name
        turns: list[tuple[str, int]] = []
        for source, text in parts:
            if source is Source.POLICY:
                turns.append((text, 0))
            else:
                turns[-1] = (turns[-1][0], turns[-1][1] + 1)
        for number, (text, results) in enumerate(turns, 1):
            turn = self.parse(text + self.ends[0], tools)
            if isinstance(turn, MalformedTurn):
                raise RowError(turn.reason) if turn.reason == NOTHING else RowError(UNBALANCED, turn.reason)
            calls = turn.calls if isinstance(turn, Calls) else ()
            for call in calls:
                if named and call.name not in {*named, UNREADABLE}:
                    raise RowError(UNNAMED_TOOL, call.name)
            if results > len(calls):
                raise RowError("more results than calls" if calls else "a result follows no call")
            if results < len(calls) and not (may_end_in_call and number == len(turns)):
                raise RowError("a call has no result", f"that of {calls[results].name}")

    def frame_tokens(self) -> int:
        """Return an upper bound on the tokens of the template's text around one result."""
        return sum(self.tokenizer.most_tokens(piece) for piece in self._frame.pieces(2))
