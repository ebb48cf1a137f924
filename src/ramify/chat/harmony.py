"""The harmony dialect: gpt-oss's channels (`chat.harmony_turn`), over the chat template that is released with the models.

A turn holds thoughts (analysis), words (commentary) and a call or an answer (final). A call ends with `<|call|>`, an answer with
`<|return|>`; the result's header names the tool. The built-in tool `python` takes a program in place of JSON. All else is as in
the hermes dialect, except that no turn that the prompt begins can be continued, because what begins a turn is its channel.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.chat.arguments import json_fault, read_object, text_argument
from ramify.chat.control_tokens import ControlTokens
from ramify.chat.conversation import AssistantCall, AssistantTurn, Parts, split_at_spans, split_thought
from ramify.chat.harmony_turn import (
    CALL,
    CHANNEL,
    END,
    FUNCTIONS,
    MESSAGE,
    NEXT,
    START,
    TOKENS,
    HarmonyMessage,
    UnreadableTurnError,
    ends_in_call,
    is_harmony,
    read_messages,
)
from ramify.chat.hermes import (
    HARMONY,
    NOTHING,
    TOOL_NAME,
    UNREADABLE,
    HermesRenderer,
    other_form,
    probed_results,
    sent_call,
)
from ramify.chat.renderer import DialectTools
from ramify.chat.tags import neutralise
from ramify.chat.template import ChatTemplate
from ramify.chat.tokenizer import ChatTokenizer, begun_turn
from ramify.core.errors import DataError, RowError
from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    Message,
    ParsedTurn,
    Problem,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStatus,
    TurnOutline,
)
from ramify.core.tree import Source

_ASSISTANT = f"{START}assistant"
_ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
_COMMENTARY = f"{CHANNEL}commentary{MESSAGE}"
_FINAL = f"{CHANNEL}final{MESSAGE}"
_RESULT = (f"{START}{FUNCTIONS}", END)
_OTHER_ROLES = (FUNCTIONS, "user", "system", "developer")
"""Services take four stop strings; a message of another role is noticed when the turn is read."""
_NAMES = tuple(token[1:-1] for token in TOKENS)
_LESS_THAN = r"\\u003c"
_TOKEN_IN_JSON = re.compile(rf"<(?=(?:{'|'.join(map(re.escape, _NAMES))})>)")


class HarmonyRenderer(HermesRenderer):
    """The harmony dialect over a chat template that has it."""

    form = HARMONY
    written_tags = ()
    tags = _NAMES
    result_tags = _RESULT
    other_calls = re.compile(
        r"<result>|<function_call>|<function=|<tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]"
    )

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        """Read the text around calls and results from the template.

        Raises:
            DataError: The template shows no tools, or writes calls or results in another way; or `<|call|>` ends no turn.
        """
        super().__init__(tokenizer)
        if CALL not in self.ends:
            raise DataError(
                f'{tokenizer.folder}: {CALL} does not end a turn, which model.dialect = "harmony" needs. Add its id to '
                "eos_token_id in generation_config.json"
            )
        self._turn_controls = ControlTokens(tokenizer, _NAMES)
        (self._call_id,) = tokenizer.encode(CALL)

    def _read_template(self) -> str:
        self._call_frame = read_call_frame(self.tokenizer.template, f"{self.tokenizer.folder}")
        # A thought may end as a result does, so that the end of the header marks a result.
        return self._call_frame.header_end

    def stops(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:  # noqa: ARG002 - the same for all tools
        """Return the beginnings of other roles' messages, which the policy may forge; otherwise only the end tokens end a turn."""
        return tuple(START + role for role in _OTHER_ROLES)

    def insert(self, text: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:  # noqa: ARG002 - the same for all tools
        """Return the tokens of a turn's text, in which the tokens of the format are tokens."""
        return self._turn_controls.encode(text)

    def foreign_control(self, problem: Problem, tools: Sequence[ToolSpec], *sides: Parts) -> str | None:
        """Return a control token that the prompt, the tools, a result or a turn spells, or None; a turn is made of those of the format."""
        turns = (text for side in sides for source, text in side if source is Source.POLICY)
        others = (tuple(part for part in side if part[0] is not Source.POLICY) for side in sides)
        spelt = super().foreign_control(problem, tools, *others)
        return spelt or next(filter(None, map(self._turn_controls.found_in, turns)), None)

    def render_results(
        self, results: Sequence[ToolResult], tools: Sequence[ToolSpec], names: Sequence[str] = ()
    ) -> tuple[int, ...]:
        """Return the tokens between the end of the turn with the calls and the start of the next turn; no result forges a message."""
        shown = self.tools_of(tools)
        texts = [self.result_text(self._foreign(result.text, shown)[0]) for result in results]
        frame = self._call_frame
        heads = [frame.before_result(name) for name in names or [""] * len(results)]
        following = (frame.after_result(last=False) + head for head in heads[1:])
        return shown.controls.framed_ids((heads[0], *following, frame.after_result(last=True)), texts)

    def parse(self, turn: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse one whole turn of the policy; a call of a tool that is not in force is read, and gets an error."""
        if any(START + role in turn for role in _OTHER_ROLES):
            return MalformedTurn("the turn writes a result or another role's message itself")
        try:
            messages = read_messages(turn, self.ends)
        except UnreadableTurnError as error:
            return MalformedTurn(str(error))
        if calls := self._calls(messages, tools):
            return Calls(calls)
        answer = "".join(message.content for message in messages if message.channel == "final").strip()
        if answer:
            return Final(answer)
        ends_in_thought = messages[-1].channel == "analysis"
        return MalformedTurn("the turn ends in a thought" if ends_in_thought else NOTHING)

    def _calls(self, messages: Sequence[HarmonyMessage], tools: Sequence[ToolSpec]) -> tuple[ToolCall, ...]:
        return tuple(self._read_call(message, tools) for message in messages if message.recipient)

    def _read_call(self, message: HarmonyMessage, tools: Sequence[ToolSpec]) -> ToolCall:
        name = message.recipient.removeprefix(FUNCTIONS)
        if not TOOL_NAME.fullmatch(name):
            return ToolCall("0", UNREADABLE, {}, f"it has no name; expected to={FUNCTIONS}NAME in its header")
        if not message.channel:
            return ToolCall(
                "0", name, {}, f"its header has no channel; expected {CHANNEL}commentary to={FUNCTIONS}{name}"
            )
        if message.recipient == "python":
            python = self.tools_of(tools).by_name.get(name)
            return ToolCall(
                "0", name, {(text_argument(python) if python else None) or "code": message.content}
            )
        try:
            return ToolCall("0", name, read_object(message.content.strip() or "{}"))
        except (ValueError, RecursionError) as error:
            reason = json_fault(message.content, error)
        return ToolCall(
            "0", name, {}, f"its text is not a JSON object ({reason}); expected the arguments as one"
        )

    def outline(self, turn: str, tools: Sequence[ToolSpec]) -> TurnOutline:  # noqa: ARG002 - see `parse`
        """Return the spans of a turn's thoughts, and the start of its first call or of its answer."""
        try:
            messages = read_messages(turn if turn.endswith(self.ends) else turn + self.ends[0], self.ends)
        except UnreadableTurnError:
            return TurnOutline((), len(turn), len(turn))
        stops = (message.start for message in messages if message.recipient or message.channel == "final")
        words = next(stops, len(turn))
        thoughts = tuple(
            (message.content_start, message.content_start + len(message.content))
            for message in messages
            if message.channel == "analysis" and message.start < words
        )
        last = thoughts[-1][1] if thoughts else words
        return TurnOutline(thoughts, words, last if turn[last:words] == NEXT else words)

    def thought(self, text: str, tools: Sequence[ToolSpec], *, first: bool = False) -> str:
        """Return a whole message of the analysis channel, and the beginning of the next one."""
        del first
        return f"{_ANALYSIS}{self.quoted(text.strip(), tools)}{NEXT}"

    def text_before_calls(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:  # noqa: ARG002
        """Return the thought and the words of a turn, in their channels; a turn in the format stays as it is."""
        whole = turn if turn.thought else replace(split_thought(turn.text), calls=turn.calls)
        thought, words = neutralise(whole.thought.strip(), self.tags), whole.text.strip()
        before = f"{_ANALYSIS}{thought}{NEXT}" if thought else ""
        if not turn.calls:
            return before + (words if is_harmony(words) else f"{_FINAL}{words}")
        return before + (f"{_COMMENTARY}{words}{NEXT}" if words else "")

    def demonstrated(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a turn of a data set, without the end token."""
        return self.text_before_calls(turn, tools) + self._calls_text(turn.calls, tools)

    def turn_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a chat endpoint's turn, without the end token."""
        return self.demonstrated(turn, tools)

    def _calls_text(self, calls: Sequence[AssistantCall], tools: Sequence[ToolSpec]) -> str:
        return NEXT.join(self.call_text(call, tools) for call in calls)

    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:  # noqa: ARG002 - see `parse`
        """Write a call as the chat template does. Arguments that are not JSON stay as they are, so that the policy gets an error."""
        arguments = call.arguments.strip() or "{}"
        return (
            f"{self._call_frame.call_header(call.name)}{MESSAGE}{_TOKEN_IN_JSON.sub(_LESS_THAN, arguments)}"
        )

    def end_id(self, text: str) -> int:
        """Return the token that ends a turn of a demonstration: that of a call, or of an answer."""
        return self._call_id if ends_in_call(text) else super().end_id(text)

    def earlier_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the answer of an earlier exchange; the template drops the thoughts of those.

        Raises:
            RowError: The exchange has calls, which its messages cannot carry.
        """
        text = self.demonstrated(turn, tools)
        parsed = self.parse(text + self.ends[0], tools)
        if not isinstance(parsed, Final):
            raise RowError(
                "an earlier exchange has calls, which harmony's template takes in no text", text[:60]
            )
        return parsed.answer

    def _assistant_turn(self, turn: str, number: int, tools: Sequence[ToolSpec]) -> AssistantTurn:
        try:
            messages = read_messages(turn + self.ends[0], self.ends)
        except UnreadableTurnError:
            return AssistantTurn(turn)
        calls = self._calls(messages, tools)
        if any(call.malformed for call in calls):
            return AssistantTurn(turn)
        by_channel = {
            channel: "\n".join(m.content for m in messages if m.channel == channel and not m.recipient)
            for channel in ("analysis", "commentary", "final")
        }
        words = "\n".join(filter(None, (by_channel["commentary"], by_channel["final"])))
        sent = tuple(sent_call(call, number, index) for index, call in enumerate(calls))
        return AssistantTurn(words, by_channel["analysis"], sent)

    def _messages(self, problem: Problem, shown: DialectTools) -> tuple[Message, ...]:  # noqa: ARG002
        if begun_turn(problem.messages):
            raise DataError(
                "the prompt ends with a turn of the assistant, which harmony does not continue, because a turn begins with its "
                "channel. Leave out this turn"
            )
        if any(message.role == "system" for message in problem.messages[1:]):
            raise DataError(
                "a system message stands behind the first message, where harmony's template drops it. Move it to the beginning"
            )
        return problem.messages

    def split(self, text: str) -> Parts:
        """Split a demonstration at its results, without the headers and ends that the template writes between turns."""
        parts: list[tuple[Source, str]] = []
        for index, piece in enumerate(split_at_spans(text, *self.result_tags)):
            if index % 2:
                parts.append((Source.TOOL, self._call_frame.unquoted(piece.partition(MESSAGE)[2])))
                continue
            turn = piece.strip().removeprefix(_ASSISTANT).strip()
            for end in self.ends:
                turn = turn.removesuffix(end).rstrip()
            if turn:
                # Behind `<|start|>assistant` the recipient follows a blank.
                parts.append((Source.POLICY, f" {turn}" if turn.startswith("to=") else turn))
        return tuple(parts)

    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Write turns and results with the headers and ends between them."""
        pieces: list[str] = []
        names: list[str] = []
        for source, text in parts:
            if source is Source.POLICY:
                end = CALL if ends_in_call(text) else ""
                names = self._called(text, tools)
                pieces.append(f"{_ASSISTANT}{text.rstrip()}{end}")
            else:
                head = self._call_frame.before_result(names.pop(0) if names else "")
                quoted = self.result_text(self.quoted(text, tools))
                pieces.append(head + quoted + self._call_frame.after_result(last=False))
        return "".join(pieces).removeprefix(_ASSISTANT)

    def tokens(
        self, source: Source, texts: Sequence[str], tools: Sequence[ToolSpec], turn: str = ""
    ) -> tuple[int, ...]:
        """Return the tokens of a demonstration's turn, or of the results that follow `turn`."""
        if source is not Source.TOOL:
            return super().tokens(source, texts, tools)
        results = [ToolResult("", ToolStatus.OK, text) for text in texts]
        return self.render_results(results, tools, self._called(turn, tools)[: len(results)])

    def _called(self, turn: str, tools: Sequence[ToolSpec]) -> list[str]:
        """Return the names of the tools that a turn calls, here without the end token."""
        parsed = self.parse(turn + self.ends[0], tools)
        return [call.name for call in parsed.calls] if isinstance(parsed, Calls) else []

    def result_text(self, text: str) -> str:
        """Return a result's text as the template writes it."""
        return json.dumps(text, ensure_ascii=False)[1:-1] if self._call_frame.quotes else text

    def frame_tokens(self) -> int:
        """Return an upper bound on the tokens of the template's text around one result."""
        frame = self._call_frame
        around = (frame.before_result("n" * 64), frame.after_result(last=True))
        return sum(map(self.tokenizer.most_tokens, around))


@dataclass(frozen=True, slots=True)
class CallFrame:
    """The template's text of a call and around its result, in which `ramify_probe` stands for the tool's name.

    Attributes:
        header: The call's header.
        before: From the end token of the turn with the call up to the result.
        after: From the result to where the assistant begins to write.
    """

    header: str
    before: str
    after: str

    @property
    def quotes(self) -> bool:
        """True if results are written as JSON text, in quotation marks, as the released template does."""
        return self.before.endswith('"') and self.after.startswith('"')

    @property
    def header_end(self) -> str:
        """The end of a result's header, behind the name."""
        return self.before.partition(_PROBE)[2]

    def call_header(self, name: str) -> str:
        """Return the header of a call."""
        return self.header.replace(_PROBE, name)

    def before_result(self, name: str) -> str:
        """Return the text before the result of a tool; a name that no tool can have, which the policy wrote, is left out."""
        return self.before.replace(_PROBE, name if TOOL_NAME.fullmatch(name) else UNREADABLE)

    def after_result(self, *, last: bool) -> str:
        """Return the text behind a result; only the last one is followed by the assistant's turn."""
        return self.after if last else self.after.removesuffix(_ASSISTANT)

    def unquoted(self, result: str) -> str:
        """Return a result of a demonstration without the quotation marks and escapes that the template writes."""
        if not (self.quotes and result.startswith('"')):
            return result
        try:
            text = json.loads(result, strict=False)
        except ValueError:
            return result
        return text if isinstance(text, str) else result


_PROBE = "ramify_probe"


def read_call_frame(template: ChatTemplate, origin: str) -> CallFrame:
    """Return a template's text of a call and around its result, read from a rendering.

    Args:
        template: The chat template.
        origin: The template's folder, with which error messages begin.

    Raises:
        DataError: The template shows no tools, or writes calls or results in another way.
    """
    rendered = probed_results(template, origin, ["ramify_first"], HARMONY)
    before_arguments, arguments, after_call = rendered.partition(HARMONY.probe)
    header = before_arguments.rpartition(_ASSISTANT)[2]
    before, mark, after = after_call.partition("ramify_first")
    names_tool = f"to={FUNCTIONS}{_PROBE}" in header and before.startswith(f"{_RESULT[0]}{_PROBE}")
    if not (arguments and mark and names_tool and after.endswith(f"{END}{_ASSISTANT}")):
        raise other_form(origin, rendered, HARMONY)
    return CallFrame(header, before, after)
