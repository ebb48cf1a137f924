"""Prompts and turns: messages and tool results become tokens, and a turn's text becomes calls or an answer.

`ChatRenderer` holds the common part of the dialects (`chat.tag_renderer`: the papers'; `chat.hermes`), `ExampleRenderer` the
part for examples, `EndpointRenderer` the part for chat endpoints; a dialect is all three.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from ramify.chat.control_tokens import ControlTokens
from ramify.chat.conversation import (
    AssistantCall,
    AssistantTurn,
    Line,
    Parts,
    followed_by,
    in_opened_thought,
    thought_opened,
    with_broken_controls,
)
from ramify.chat.tags import neutralise
from ramify.chat.template import read_user_frame, thought_opening
from ramify.chat.tokenizer import ChatTokenizer, begun_turn
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import (
    Message,
    ParsedTurn,
    Problem,
    ToolResult,
    ToolSpec,
    ToolStatus,
    TurnOutline,
)
from ramify.core.tree import Source, Trajectory

_TOOL_LISTS = 256
"""Lists of tools whose computed values a renderer caches."""


@dataclass(frozen=True)
class DialectTools:
    """The values that a dialect computes once for a list of tools.

    Attributes:
        by_name: The tools that it can call, by name.
        tags: Names of the tags that foreign text must not hold.
        controls: The tokenizer's control tokens.
        description: Their description for the prompt's first message.
        listed: The tools that the chat template renders.
    """

    by_name: Mapping[str, ToolSpec]
    tags: tuple[str, ...]
    controls: ControlTokens
    description: str = ""
    listed: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def offered(self) -> tuple[Mapping[str, Any], ...]:
        """The tools for a chat endpoint; control tokens that they spell are broken up."""
        return tuple(json.loads(self.controls.broken_text(_as_json(self.listed))))


class ChatRenderer(ABC):
    """Implements `core.protocols.Renderer` over a tokenizer's chat template; a dialect fills in the abstract methods.

    Attributes:
        tokenizer: The model's tokenizer.
        result_end: A text that stands once with each tool result in a context, mostly at its end.
    """

    result_end: str

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer
        self._read_once = lru_cache(_TOOL_LISTS)(self._read_tools)
        self._latest: tuple[tuple[ToolSpec, ...], DialectTools] | None = None

    @abstractmethod
    def _refusal(self, name: str, others: Collection[str]) -> str:
        """Return why no call can name a tool like this besides `others`; "" if one can."""

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Require that the dialect can call these tools.

        Raises:
            ConfigError: A tool's name cannot be used, or two tools share it.
        """
        names: set[str] = set()
        for spec in tools:
            if refusal := self._refusal(spec.name, names):
                raise ConfigError(f"tool {spec.name!r:.80}: {refusal}")
            names.add(spec.name)

    def _callable(self, tools: Sequence[ToolSpec]) -> dict[str, ToolSpec]:
        """Return the tools by name, without those that no call can name."""
        by_name: dict[str, ToolSpec] = {}
        for spec in tools:
            if not self._refusal(spec.name, by_name):
                by_name[spec.name] = spec
        return by_name

    @abstractmethod
    def _read_tools(self, tools: tuple[ToolSpec, ...]) -> DialectTools:
        """Compute the values that depend on the tools alone, without tools whose name the dialect cannot write."""

    def tools_of(self, tools: Sequence[ToolSpec]) -> DialectTools:
        """Return the values of the dialect for these tools."""
        # Hashing a list of tools takes as long as parsing a turn, and the next turn has the same ones nearly always.
        latest = self._latest
        if latest is None or latest[0] != tools:
            key = tuple(tools)
            self._latest = latest = (key, self._read_once(key))
        return latest[1]

    @abstractmethod
    def stops(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the strings that end a turn, besides the end token."""

    @abstractmethod
    def render_results(
        self, results: Sequence[ToolResult], tools: Sequence[ToolSpec], names: Sequence[str] = ()
    ) -> tuple[int, ...]:
        """Return the tokens of the tool results that follow a turn; `names` are those of the called tools."""

    @abstractmethod
    def parse(self, turn: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse one whole turn of the policy."""

    @abstractmethod
    def outline(self, turn: str, tools: Sequence[ToolSpec]) -> TurnOutline:
        """Return the spans of a turn's thoughts, and the start of its call or its answer."""

    @abstractmethod
    def _messages(self, problem: Problem, shown: DialectTools) -> tuple[Message, ...]:
        """Return the messages that the template renders."""

    @property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint."""
        return self.tokenizer.fingerprint

    def render_prompt(self, problem: Problem, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens of `prompt_text`; control tokens that a message spells are encoded as ordinary text."""
        shown = self.tools_of(tools)
        return shown.controls.chat_ids(self._messages(problem, shown), shown.listed)

    def insert(self, text: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens of a text that may hold the dialect's tags; control tokens that it spells are ordinary text."""
        return self.tools_of(tools).controls.encode(text)

    def quoted(self, text: str, tools: Sequence[ToolSpec]) -> str:
        """Return foreign text in which nothing forges a tag of the dialect."""
        return self._foreign(text, self.tools_of(tools))[0]

    def thought(self, text: str, tools: Sequence[ToolSpec], *, first: bool = False) -> str:
        """Return the beginning of a turn: a whole thought with a foreign text, in which nothing forges a tag."""
        opening = "" if first and self.thought_opening else "<think> "
        return f"{opening}{self.quoted(text.strip(), tools)}</think>"

    def foreign_control(self, problem: Problem, tools: Sequence[ToolSpec], *sides: Parts) -> str | None:
        """Return a control token that the prompt's messages, the tools or the demonstrations `sides` spell, or None."""
        shown = self.tools_of(tools)
        parts = (text for side in sides for _, text in side)
        messages = (message.text for message in self._messages(problem, shown))
        texts = (*messages, *map(_as_json, shown.listed), *parts)
        return next(filter(None, map(shown.controls.found_in, texts)), None)

    def fitting(self, problems: Sequence[Problem], tools: Sequence[ToolSpec], max_tokens: int) -> list[bool]:
        """Return True for each prompt that has at most `max_tokens` tokens.

        Most prompts are decided by their number of bytes, because encoding 20 MB takes a minute.

        Raises:
            DataError: The chat template refuses the messages of a problem; names the problem.
        """
        fits, undecided = [], {}
        for index, problem in enumerate(problems):
            try:
                text = self.prompt_text(problem, tools)
            except DataError as error:
                raise DataError(f"problem {problem.id!r}: {error}") from None
            fits.append(self.tokenizer.most_tokens(text) <= max_tokens)
            if fits[index] or self.tokenizer.fewest_tokens(text) > max_tokens:
                continue
            if self.foreign_control(problem, tools) is None:
                undecided[index] = text
            else:
                fits[index] = len(self.render_prompt(problem, tools)) <= max_tokens
        counts = self.tokenizer.count_tokens(tuple(undecided.values()))
        for index, count in zip(undecided, counts, strict=True):
            fits[index] = count <= max_tokens
        return fits

    def prompt_text(self, problem: Problem, tools: Sequence[ToolSpec]) -> str:
        """Return the prompt's text, up to where the policy starts to write.

        Raises:
            DataError: The chat template refuses the messages.
        """
        shown = self.tools_of(tools)
        return self.tokenizer.chat_text(self._messages(problem, shown), shown.listed)

    def render_user_turn(
        self, turn: str, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """Return the tokens between the end of a turn and the start of the next one, if the user says `messages` in between.

        Raises:
            ConfigError: The chat template would rewrite earlier turns.
        """
        before, after = self._user_frame
        if not turn.endswith(self.ends):
            before = self.tokenizer.decode([self.tokenizer.eos_id]) + before
        user_text = "\n\n".join(message.text for message in messages)
        shown = self.tools_of(tools)
        return shown.controls.framed_ids((before, after), [self._foreign(user_text, shown)[0]])

    def later_message(self, text: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens from a turn's end token to the start of the next turn, if the user says `text` in a data set in between.

        Raises:
            ConfigError: The chat template would rewrite earlier turns.
        """
        return self.tools_of(tools).controls.framed_ids(self._user_frame, [text])

    @cached_property
    def keeps_turns(self) -> bool:
        """True if the chat template leaves earlier turns as they are once the user speaks again."""
        try:
            return bool(self._user_frame)
        except ConfigError:
            return False

    @cached_property
    def thought_opening(self) -> str:
        """The `<think>` with which the chat template begins each turn, and the blanks behind it; "" if it writes none."""
        try:
            return thought_opening(self.tokenizer.chat_text([Message.of("user", "q")]))
        except DataError:
            # The template takes no chat like this, and its refusal of a problem's messages says why.
            return ""

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn."""
        return tuple(self.tokenizer.decode([index]) for index in sorted(self.tokenizer.eos_ids))

    @cached_property
    def _user_frame(self) -> tuple[str, str]:
        end = self.tokenizer.decode([self.tokenizer.eos_id])
        return read_user_frame(self.tokenizer.template, end, f"{self.tokenizer.folder}")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self.tokenizer.decode(token_ids)

    def text_before_calls(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the thought and the text of a turn. Tags in a separate thought are escaped: it holds no call and no answer."""
        thought = neutralise(turn.thought.strip(), self.tools_of(tools).tags)
        return (f"<think>\n{thought}\n</think>\n\n" if thought else "") + turn.text

    def _foreign(self, text: str, shown: DialectTools) -> tuple[str, tuple[int, ...]]:
        """Return foreign text without any tag of the dialect, and its tokens."""
        safe = neutralise(text, shown.tags)
        ids = self.tokenizer.encode_plain(safe)
        read = self.decode(ids)
        # A tokenizer may change characters (NFKC) or drop some, which can create a tag.
        while (safer := neutralise(read, shown.tags)) != read:
            safe, ids = safer, self.tokenizer.encode_plain(safer)
            read = self.decode(ids)
        return safe, ids


class ExampleRenderer(ChatRenderer):
    """Reads and writes the texts of demonstrations; `chat.demonstrations` makes trees of them.

    Attributes:
        result_tags: The tags around a tool result in the text of a demonstration.
        other_calls: Calls in other dialects, which would be trained on as text that calls nothing; not their tags in quotes.
        ends_each_turn: True if a turn with calls ends with the end token, as the last turn does.
    """

    result_tags: tuple[str, str]
    other_calls: "re.Pattern[str]"
    ends_each_turn: bool

    @abstractmethod
    def split(self, text: str) -> Parts:
        """Split a demonstration in one text into the assistant's turns and the tool results in the dialect's tags.

        Raises:
            RowError: A result holds an answer.
        """

    @abstractmethod
    def call_text(self, call: AssistantCall, tools: Sequence[ToolSpec]) -> str:
        """Return a call in the dialect's text; its arguments are JSON.

        Raises:
            RowError: The dialect cannot write it.
        """

    @abstractmethod
    def check_parts(self, parts: Parts, tools: Sequence[ToolSpec], *, may_end_in_call: bool) -> None:
        """Require that a rollout could have these turns and results; the first and the last part are turns.

        Raises:
            RowError: No rollout could.
        """

    def in_opened_thoughts(self, parts: Parts) -> Parts:
        """Return the parts with each turn as it continues the thought that the chat template opens, if it opens one."""
        if not self.thought_opening:
            return parts
        continued: list[tuple[Source, str]] = []
        follows_template = True
        for source, text in parts:
            begins = follows_template and source is Source.POLICY
            continued.append((source, in_opened_thought(text, self.thought_opening) if begins else text))
            follows_template = self.ends_each_turn or source is Source.PROMPT
        return tuple(continued)

    def repaired(self, parts: Parts) -> Parts:
        """Repair damage to the texts of programs, such as escaped line breaks."""
        return parts

    def result_text(self, text: str) -> str:
        """Return a result's text as the chat template writes it."""
        return text

    @abstractmethod
    def frame_tokens(self) -> int:
        """Return an upper bound on the tokens around one tool result."""

    @abstractmethod
    def written(self, parts: Parts, tools: Sequence[ToolSpec]) -> str:
        """Write turns and tool results as the text of a demonstration, in one spelling; no result forges a tag."""

    def demonstrated(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of a turn of a data set, without the end token; results may stand in it.

        Raises:
            RowError: The dialect cannot write a call.
        """
        calls = "\n".join(self.call_text(call, tools) for call in turn.calls)
        return followed_by(self.text_before_calls(turn, tools), calls)

    def end_id(self, text: str) -> int:  # noqa: ARG002 - the same for all turns
        """Return the token that ends a turn of a demonstration, of which this is the text."""
        return self.tokenizer.eos_id

    def earlier_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return a turn of an earlier exchange as the text of a message for the chat template.

        Raises:
            RowError: The dialect cannot write it.
        """
        return self.demonstrated(turn, tools) if turn.calls else turn.whole_text

    def tokens(
        self,
        source: Source,
        texts: Sequence[str],
        tools: Sequence[ToolSpec],
        turn: str = "",  # noqa: ARG002 - results are alike
    ) -> tuple[int, ...]:
        """Return the tokens of a demonstration's turn, in one piece or several, or of the results that follow `turn`."""
        if source is Source.TOOL:
            return self.render_results([ToolResult("", ToolStatus.OK, text) for text in texts], tools)
        return self.insert("".join(texts), tools)


class EndpointRenderer(ChatRenderer):
    """Writes what services with a chat endpoint read, and reads what they answer (`chat.conversation`)."""

    @abstractmethod
    def _assistant_turn(self, turn: str, number: int, tools: Sequence[ToolSpec]) -> AssistantTurn:
        """Return a turn of the policy, without the end token, as a chat endpoint has it; `number` is its index in the conversation."""

    @abstractmethod
    def _result_lines(self, turn: AssistantTurn, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        """Return the lines after a turn with calls, as a chat endpoint has them. The results' texts forge no tag."""

    def _calls_text(self, calls: Sequence[AssistantCall], tools: Sequence[ToolSpec]) -> str:
        """Return the calls of a chat endpoint's answer in the dialect's text; "" if the dialect has no such calls."""
        del calls, tools
        return ""

    def offered_tools(self, tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], ...]:
        """Return the tools for a chat endpoint, as in OpenAI's API; control tokens that they spell are broken up."""
        return self.tools_of(tools).offered

    def conversation(self, path: Trajectory, tools: Sequence[ToolSpec]) -> tuple[Line, ...]:
        """Return a path that ends before a turn of the policy, as a chat endpoint has it.

        No foreign text in it holds a tag of the dialect or spells a control token.

        Raises:
            ConfigError: The prompt ends with a turn of the assistant.
        """
        if begun_turn(path.problem.messages):
            raise ConfigError(
                f"problem {path.problem.id!r}: its prompt ends with a turn of the assistant, which a chat endpoint does not continue. "
                "Leave out this turn, or use another engine"
            )
        shown = self.tools_of(tools)
        lines: list[Line] = list(self._messages(path.problem, shown))
        turn = AssistantTurn("")
        for node in path.nodes[1:]:
            if node.source is Source.POLICY:
                end = len(node.token_ids) - (node.token_ids[-1] in self.tokenizer.eos_ids)
                turn = self._assistant_turn(self.decode(node.token_ids[:end]), len(lines), tools)
                lines.append(turn)
            elif node.results:
                texts = [
                    replace(result, text=self._foreign(result.text, shown)[0]) for result in node.results
                ]
                lines += self._result_lines(turn, texts)
            else:
                user_text = "\n\n".join(message.text for message in node.messages)
                lines.append(Message.of("user", self._foreign(user_text, shown)[0]))
        return with_broken_controls(lines, shown.controls)

    def turn_text(self, turn: AssistantTurn, tools: Sequence[ToolSpec]) -> str:
        """Return the text of the turn that a chat endpoint answered, without the end token."""
        text = thought_opened(self.text_before_calls(turn, tools))
        return followed_by(text, self._calls_text(turn.calls, tools))


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
