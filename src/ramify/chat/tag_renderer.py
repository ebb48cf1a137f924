"""The papers' tag dialect (`chat.tags`) as a renderer."""

import ast
import json
import re
import warnings
from collections.abc import Collection, Sequence

from ramify.chat.arguments import argument_fault, describe_tools, text_argument
from ramify.chat.control_tokens import ControlTokens
from ramify.chat.conversation import (
    UNBALANCED,
    UNFIT_ARGUMENTS,
    UNNAMED_TOOL,
    AssistantCall,
    AssistantTurn,
    Line,
    Parts,
    outline,
    split_at_spans,
    split_thought,
    thought_opened,
)
from ramify.chat.renderer import DialectTools, EndpointRenderer, ExampleRenderer
from ramify.chat.tags import (
    RESULT_CLOSE,
    RESULT_OPEN,
    TAG_NAMES,
    TOOLS,
    check_parts,
    parse_turn,
    refusal,
    split_completion,
    stop_strings,
    tidy_turn,
    words_before,
)
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import RowError
from ramify.core.messages import Message, ParsedTurn, Problem, ToolResult, ToolSpec, TurnOutline
from ramify.core.tree import Source

_ANSWER = ("<answer>", "</answer>")
_PYTHON = ("<python>", "</python>")
_BREAK = r"\n"
_LITERAL_OR_BREAK = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"""'
    r"|'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''"
    r'|"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    r"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"
    r"|#(?:(?!\\n)[^\n])*+"
    r"|(?P<break>\\n)",
    re.DOTALL,
)
_MOST_CHARS = 20_000
"""Longest program that is repaired; Python's parser needs a bound."""


class TagRenderer(ExampleRenderer, EndpointRenderer):
    """The papers' tag dialect (`chat.tags`): one assistant message holds the whole trajectory."""

    result_end = RESULT_CLOSE
    result_tags = ("<result>", "</result>")
    other_calls = re.compile(
        r"(?<![`'\"(])(?:<tool_call>|<function_call>|<function=|<\|python_tag\|>|\[TOOL_CALLS\])"
    )
    ends_each_turn = False

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        super().__init__(tokenizer)
        self._open = tokenizer.encode(RESULT_OPEN, continues=True)
        self._close = tokenizer.encode(RESULT_CLOSE, continues=True)

    def _refusal(self, name: str, others: Collection[str]) -> str:
        return refusal(name, others)

    def _read_tools(self, tools: tuple[ToolSpec, ...]) -> DialectTools:
        by_name = self._callable(tools)
        tags = tuple(dict.fromkeys((*TAG_NAMES, *by_name)))
        description = describe_tools(tuple(by_name.values()))
        return DialectTools(by_name, tags, ControlTokens(self.tokenizer, tags), description)

    def stops(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the strings that end a turn."""
        return stop_strings(tuple(self.tools_of(tools).by_name))

    def render_results(
        self,
        results: Sequence[ToolResult],
        tools: Sequence[ToolSpec],
        names: Sequence[str] = (),  # noqa: ARG002 - no result names its tool
    ) -> tuple[int, ...]:
        """Return the tokens of tool results, each as ` <result>`, its neutralised text, `</result>`."""
        shown = self.tools_of(tools)
        ids: list[int] = []
        for result in results:
            ids += [*self._open, *self._foreign(result.text, shown)[1], *self._close]
        return tuple(ids)

    def parse(self, turn: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse one whole turn of the policy."""
        whole = thought_opened(turn) if self.thought_opening else turn
        return parse_turn(whole, self.tools_of(tools).by_name, self.ends)

    def outline(self, turn: str, tools: Sequence[ToolSpec]) -> TurnOutline:
        """Return the spans of a turn's thoughts, and the start of its call or its answer."""
        return outline(turn, words_before(turn, self.tools_of(tools).by_name))

    def _messages(self, problem: Problem, shown: DialectTools) -> tuple[Message, ...]:
        """Return the problem's messages, with the descriptions of tools that ask for one added to the first message.

        They go to the end of a system message, or in front of any other message. (The papers' tools are explained by
        the problem's own messages.) No message is added, because not every chat template accepts a system message.
        """
        messages = problem.messages
        if shown.description and messages:
            first = messages[0]
            pieces = (
                (first.text, shown.description) if first.role == "system" else (shown.description, first.text)
            )
            messages = (Message.of(first.role, "\n\n".join(pieces)), *messages[1:])
        return messages

    def _assistant_turn(self, turn: str, number: int, tools: Sequence[ToolSpec]) -> AssistantTurn:
        del number, tools
        return split_thought(turn)

    def _result_lines(self, turn: AssistantTurn, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        del turn
        texts = [f"{RESULT_OPEN}{result.text}{RESULT_CLOSE}".strip() for result in results]
        return (Message.of("user", "\n".join(texts)),)

    def split(self, text: str) -> Parts:
        """Split a demonstration at its `<result>` tags."""
        parts = split_completion(text)
        if any(tag in inside for source, inside in parts if source is Source.TOOL for tag in _ANSWER):
            raise RowError("an answer stands in a result")
        return parts

    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:
        """Write a call as a tag that holds the tool's only argument, if that is a text, or a JSON object."""
        arguments = json.loads(call.arguments)
        by_name = self.tools_of(tools).by_name
        if call.name in by_name:
            only = text_argument(by_name[call.name])
        elif by_name or call.name not in TOOLS:
            raise RowError(UNNAMED_TOOL, call.name)
        else:
            # The papers' tools take one text, whatever the data set calls it.
            only = next(iter(arguments), "")
        if only is None:
            # Inside JSON a tag can only stand in a string, where it has another spelling: a closing tag would end the turn.
            tags = "|".join(map(re.escape, self.tools_of(tools).tags))
            arguments = re.sub(rf"<(?=/?(?:{tags})>)", r"\\u003c", call.arguments)
            return f"<{call.name}> {arguments} </{call.name}>"
        if list(arguments) != [only] or not isinstance(arguments[only], str):
            fault = argument_fault(by_name[call.name].parameters, arguments) if call.name in by_name else ""
            raise RowError(UNFIT_ARGUMENTS, f"{call.name} {fault or 'takes one text'}")
        return f"<{call.name}> {arguments[only]} </{call.name}>"

    def check_parts(self, parts: Parts, tools: Sequence[ToolSpec], *, may_end_in_call: bool) -> None:
        """Require that the tags are paired and that each call has a result."""
        if self.thought_opening:
            (source, text), *following = parts
            parts = ((source, f"<think>{text}"), *following)
        if any("</result>" in text for source, text in parts if source is Source.POLICY):
            raise RowError(UNBALANCED, "</result> has no partner")
        check_parts(parts, self.tools_of(tools).by_name, may_end_in_call=may_end_in_call)

    def repaired(self, parts: Parts) -> Parts:
        """Restore escaped line breaks of programs."""
        return tuple(
            (source, with_line_breaks(text) if source is Source.POLICY else text) for source, text in parts
        )

    def frame_tokens(self) -> int:
        """Return the number of tokens of the tags around one result."""
        return len(self._open) + len(self._close)

    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Write turns and results one after the other."""
        by_name = self.tools_of(tools).by_name
        return "".join(
            tidy_turn(text, by_name)
            if source is Source.POLICY
            else f"{RESULT_OPEN}{self.quoted(text, tools)}{RESULT_CLOSE}"
            for source, text in parts
        )


def with_line_breaks(turn: str) -> str:
    r"""Return a turn in the tag dialect whose python calls have their line breaks back.

    A program is changed only if it has `\n` outside of its literals, parses with line breaks in those places, and does not parse
    as it stands. One line that parses because a comment swallows the rest is changed too.
    """
    if _BREAK not in turn:
        return turn
    pieces = split_at_spans(turn, *_PYTHON)
    return "".join(
        _repaired(piece).join(_PYTHON) if index % 2 else piece for index, piece in enumerate(pieces)
    )


def _repaired(program: str) -> str:
    if _BREAK not in program or len(program) > _MOST_CHARS:
        return program
    before = _parsed(program)
    if before is not None and "\n" in program.strip():
        return program
    broken = _LITERAL_OR_BREAK.sub(lambda match: "\n" if match["break"] else match[0], program)
    after = _parsed(broken)
    return program if after is None or _same(before, after) else broken


def _parsed(program: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(program.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _same(before: ast.Module | None, after: ast.Module) -> bool:
    """Return True if two programs parse alike, or are nested too deeply to tell."""
    try:
        return before is not None and ast.dump(before) == ast.dump(after)
    except RecursionError:
        return True
