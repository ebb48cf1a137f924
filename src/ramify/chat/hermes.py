"""The hermes dialect: JSON calls, as Qwen2.5, Qwen3 and the Hermes models write them.

    <think> .. </think> <tool_call>
    {"name": "search", "arguments": {"query": ".."}}
    </tool_call>

A turn may hold several calls; only the model's end token ends it. The results follow as the chat template writes them,
and after them begins the assistant's next turn. A turn without a call is the final answer: its text without the thought.

The JSON of a call is read first and its closing tag is looked for behind it, so a tag inside a JSON string ends nothing. A
thought ends at its first `</think>`, as chat templates read it; any other tag in it is text. In the rest, a tag is text if it
is quoted or stands within a sentence ("write `<tool_call>` first").

A context only grows. The template renders the prompt once; results are encoded once, with the template's text around
them, and appended. So a template that would rewrite earlier turns (Qwen3 drops their thoughts once the user speaks again)
never gets to do it.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

from ramify.chat.arguments import json_fault, object_at, read_object
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
from ramify.chat.renderer import DialectTools, EndpointRenderer, ExampleRenderer
from ramify.chat.template import ChatTemplate
from ramify.chat.tokenizer import ChatTokenizer, begun_turn
from ramify.core.errors import DataError, RowError
from ramify.core.messages import (
    Calls,
    Dialect,
    Final,
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

UNREADABLE = "tool_call"
"""The name of a call whose own name cannot be read; no tool may have it."""

NOTHING = "the turn holds neither a call nor an answer"
_FORGED = "the turn writes a result itself"
_RESULT = ("<tool_response>", "</tool_response>")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TAG_IN_JSON = re.compile(r"<(?=/?tool_(?:call|response)>)")
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


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a chat template writes calls.

    Attributes:
        dialect: The dialect that needs it.
        probe: The call of `ramify_probe` with the text "a".
        words: The form in words, for messages.
    """

    dialect: Dialect
    probe: str
    words: str


HERMES = CallForm(
    "hermes",
    '<tool_call>\n{"name": "ramify_probe", "arguments": {"text": "a"}}\n</tool_call>',
    "<tool_call> with JSON",
)
LLAMA3 = CallForm("llama3", '{"name": "ramify_probe", "parameters": {"text": "a"}}', "JSON")
QWEN3_XML = CallForm(
    "qwen3_xml",
    "<tool_call>\n<function=ramify_probe>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
    "<tool_call> with <function=..>",
)
HARMONY = CallForm(
    "harmony", '<|message|>{"text": "a"}<|call|>', "<|message|> with JSON in the commentary channel"
)
_FORMS = (HERMES, LLAMA3, QWEN3_XML, HARMONY)
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "ramify_probe",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


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
    result_tags = _RESULT
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
        return (_RESULT[0],)

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
        reading = _read(opened + turn, self._call_reader(tools))
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
        return _with_calls(whole, number, self._call_reader(tools)) or whole

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
        return any(not part.closed for part in _read(begun, read_call).parts)

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
        opening, closing = _RESULT
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


def answer_begins(turn: str, ends: Sequence[str]) -> int:
    """Return the start of the sentence or line with the first box, in a turn that thinks aloud; without a box, the turn's end."""
    text = turn[: min((at for end in ends if (at := turn.find(end)) >= 0), default=len(turn))]
    box = text.find("\\boxed")
    return len(text) if box < 0 else max(text.rfind("\n", 0, box), text.rfind(". ", 0, box), -1) + 1


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """The template's text around tool results, from the end token of the turn with the calls on.

    Attributes:
        before: Up to the first result.
        between: Between two results.
        after: From the last result to where the assistant begins to write.
        trims: The template leaves out blanks around a result, as that of Qwen3.5 does.
    """

    before: str
    between: str
    after: str
    trims: bool

    @property
    def result_end(self) -> str:
        """The text that closes each result: with what follows it begins alike, whether that is another result or not."""
        pairs = zip(self.between, self.after, strict=False)
        return "".join(character for character, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def pieces(self, results: int) -> tuple[str, ...]:
        """Return the texts around `results` results, at least 1; one more than there are results."""
        return (self.before, *(self.between,) * (results - 1), self.after)


@lru_cache(maxsize=4)
def read_frame(template: ChatTemplate, end: str, origin: str, form: CallForm) -> ResultFrame:
    """Return a template's text around tool results, read from renderings of a call with one result, with two, and with blanks around one.

    Args:
        template: The chat template.
        end: The text of the end token.
        origin: The template's folder, with which error messages begin.
        form: How the template must write calls.

    Raises:
        DataError: The template shows no tools, writes calls or results in another way, or ends turns with another token.
    """
    key = f'model.dialect = "{form.dialect}"'
    marks = ["ramify_first", "ramify_second"]
    one_result = probed_results(template, origin, marks[:1], form)
    two_results = probed_results(template, origin, marks, form)
    trims = probed_results(template, origin, [f" \n{marks[0]}\n "], form) == one_result
    _, call, after_call = two_results.partition(form.probe)
    if call and not after_call.startswith(end):
        raise DataError(
            f"{origin}: the chat template ends a turn with {after_call.partition(chr(10))[0]!r:.60}, but eos_token in "
            f"tokenizer_config.json is {end!r}. {key} needs them equal"
        )
    if not call or any(two_results.count(mark) != 1 for mark in marks):
        raise other_form(origin, two_results, form)
    before, _, after_first = after_call.removeprefix(end).partition(marks[0])
    between, _, after = after_first.partition(marks[1])
    frame = ResultFrame(before, between, after, trims)
    if not one_result.endswith(form.probe + end + before + marks[0] + after):
        raise DataError(
            f"{origin}: the chat template writes one tool result differently from two, which {key} does not "
            'support. Use "tags" or another template'
        )
    return frame


def other_form(origin: str, rendered: str, form: CallForm) -> DataError:
    """Return the refusal of a template that writes calls or results in another form, as this rendering of them shows."""
    others = (each.dialect for each in _FORMS if each != form and each.probe in rendered)
    return DataError(
        f'{origin}: the chat template does not write calls and results as model.dialect = "{form.dialect}" does '
        f'({form.words}, then the end of the turn). Use "{next(others, "tags")}" or another template'
    )


def probed_results(template: ChatTemplate, origin: str, results: Sequence[str], form: CallForm) -> str:
    """Render a call of `ramify_probe` with the text "a", and results.

    Raises:
        DataError: The template shows no tools, or refuses such a chat.
    """
    key = f'model.dialect = "{form.dialect}"'
    if "ramify_probe" not in template.render([{"role": "user", "content": "q"}], [_PROBE_TOOL]):
        raise DataError(
            f'{origin}: the chat template shows the model no tools, which {key} needs. Use "tags" or another template'
        )
    call = {"type": "function", "function": {"name": "ramify_probe", "arguments": {"text": "a"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        *({"role": "tool", "name": "ramify_probe", "content": text} for text in results),
    ]
    try:
        return template.render(messages, [_PROBE_TOOL])
    except DataError as error:
        raise DataError(f"{error} (a call and its results, for {key})") from None


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
    if _RESULT[0] in turn:
        return MalformedTurn(_FORGED)
    end = next((end for end in ends if turn.endswith(end)), None)
    if end is None:
        return MalformedTurn("the turn does not end")
    body = turn.removesuffix(end)
    reading = _read(body, read or read_call)
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
        if _RESULT[1] in unnamed:
            return MalformedTurn(_FORGED)
        stray = next((tag for tag in ("</think>", "</tool_call>") if tag in unnamed), None)
        if stray is not None:
            return MalformedTurn(f"{stray} closes nothing")
    if calls:
        return Calls(tuple(calls))
    return Final(answer) if answer else MalformedTurn(NOTHING)


@dataclass(frozen=True, slots=True)
class _Part:
    """A thought or a call of a turn, from its opening tag up to the end of its closing tag or, without one, of the turn.

    `call` is None for a thought.
    """

    start: int
    end: int
    closed: bool
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    """The thoughts and calls of a turn in order, and the pattern of the tags that its other text only names."""

    parts: tuple[_Part, ...]
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


def _read(turn: str, read: Callable[[str], ToolCall], *, after_thought: bool = False) -> _Reading:
    """Read the thoughts and calls of a turn; `after_thought` says that a thought stands before it."""
    parts: list[_Part] = []
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
            part = _Part(start, closing + len("</think>") if closing >= 0 else len(turn), closing >= 0)
            # `hm </think> so it is` is a broken thought, not words about a tag, before a thought has ended and in nested ones.
            nested = nested or "<think>" in turn[position : part.end]
            named = _NAMED_CALL if nested else _NAMED
        if part is not None:
            parts.append(part)
            position = part.end
    return _Reading(tuple(parts), named)


def _read_call_part(
    turn: str, start: int, content: int, named: "re.Pattern[str]", read: Callable[[str], ToolCall]
) -> _Part | None:
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
                return _Part(start, closing_tag.end(), True, _as_call(call))
    inside = start + len("<tool_call>")
    following = turn.find("<tool_call>", inside)
    closing = turn.rfind("</tool_call>", inside, len(turn) if following < 0 else following)
    if is_named and (closing < 0 or named.match(turn, closing)):
        return None
    if closing < 0 <= following:
        closing = turn.find("</tool_call>", following)
    if closing < 0:
        return _Part(start, len(turn), False, read(turn[inside:]))
    return _Part(start, closing + len("</tool_call>"), True, read(turn[inside:closing]))


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


def _with_calls(turn: AssistantTurn, number: int, read: Callable[[str], ToolCall]) -> AssistantTurn | None:
    """Split a turn's calls from its text; None if it has no call, or one that cannot be read."""
    calls: list[AssistantCall] = []
    texts: list[str] = []
    position = 0
    for part in _read(turn.text, read, after_thought=bool(turn.thought)).parts:
        if part.call is None:
            continue
        if part.call.malformed is not None:
            return None
        calls.append(sent_call(part.call, number, len(calls)))
        texts.append(turn.text[position : part.start])
        position = part.end
    texts.append(turn.text[position:])
    return replace(turn, text="".join(texts).rstrip(), calls=tuple(calls)) if calls else None
