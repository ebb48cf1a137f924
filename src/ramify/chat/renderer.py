"""Renderers: turn messages and tool results into tokens, and a turn's text into calls or an answer.

`ChatRenderer` is what the dialects share: `chat.tag_renderer` has the papers', `chat.hermes` another.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ramify.chat.control_tokens import ControlTokens
from ramify.chat.conversation import Line, Parts, Said, SaidCall, harmless, thought_opened
from ramify.chat.tags import neutralise
from ramify.chat.template import read_user_frame
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.messages import Message, ParsedTurn, Problem, ToolResult, ToolStatus, TurnOutline
from ramify.core.tree import Source, Trajectory


class ChatRenderer(ABC):
    """Implements `core.protocols.Renderer` over a tokenizer's chat template; a dialect fills in the abstract methods.

    Attributes:
        tokenizer: The model's tokenizer.
        controls: Its control tokens.
        result_end: The text at the end of each tool result in a context.
        result_tags: The tags around a tool result in the text of a demonstration.
        other_calls: Calls in other dialects, which would be trained on as text that calls nothing.
        ends_each_turn: Whether a turn with calls ends with the end token, as the last turn does.
    """

    result_end: str
    result_tags: tuple[str, str]
    other_calls: "re.Pattern[str]"
    ends_each_turn: bool

    def __init__(
        self, tokenizer: ChatTokenizer, written_tags: Sequence[str], read_tags: Sequence[str] = ()
    ) -> None:
        """Find the tokenizer's control tokens.

        Args:
            tokenizer: The model's tokenizer.
            written_tags: Names of the tags that the policy writes.
            read_tags: Names of further tags that tool results must not contain.
        """
        self.tokenizer = tokenizer
        self._tag_names = (*written_tags, *read_tags)
        self.controls = ControlTokens(tokenizer, written_tags)

    @property
    @abstractmethod
    def stops(self) -> tuple[str, ...]:
        """Strings at which a turn ends, besides the end token."""

    @abstractmethod
    def render_results(self, results: Sequence[ToolResult]) -> tuple[int, ...]:
        """Tokens of the tool results that follow a turn."""

    @abstractmethod
    def parse(self, turn: str) -> ParsedTurn:
        """Parse one whole turn of the policy."""

    @abstractmethod
    def outline(self, turn: str) -> TurnOutline:
        """Where in the text of a turn its thoughts stand, and where its call or its answer begins."""

    @abstractmethod
    def _messages(self, problem: Problem) -> tuple[Message, ...]:
        """The messages that the template renders."""

    def _template_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the template renders."""
        return ()

    @abstractmethod
    def split(self, text: str) -> Parts:
        """Split what a data set has as one text: the assistant's turns, and tool results in the dialect's tags.

        Raises:
            RowError: A result holds an answer.
        """

    @abstractmethod
    def call_text(self, call: SaidCall) -> str:
        """A call in the dialect's text; its arguments are JSON.

        Raises:
            RowError: The dialect cannot write it.
        """

    @abstractmethod
    def check_parts(self, parts: Parts, *, may_end_in_call: bool) -> None:
        """See that a rollout could have given these turns and results; the first and the last part are turns.

        Raises:
            RowError: It could not.
        """

    def repaired(self, parts: Parts) -> Parts:
        """The parts without damage that a program's text may have taken in its file."""
        return parts

    @abstractmethod
    def frame_tokens(self) -> int:
        """An upper bound on the tokens around one tool result."""

    @abstractmethod
    def written(self, parts: Parts) -> str:
        """Turns and tool results as the text of a demonstration, in one spelling; no result forges a tag."""

    @abstractmethod
    def _said(self, turn: str, number: int) -> Said:
        """A turn of the policy, without the end token, as a chat endpoint has it; `number` is its own in the conversation."""

    @abstractmethod
    def _told(self, said: Said, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        """What follows a turn with calls, as a chat endpoint has it; the results' texts are harmless already."""

    def _calls_text(self, calls: Sequence[SaidCall]) -> str:
        """Calls that a chat endpoint answered, in the dialect's text; "" if it has no such calls."""
        del calls
        return ""

    @property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint."""
        return self.tokenizer.fingerprint

    def render_prompt(self, problem: Problem) -> tuple[int, ...]:
        """Tokens of `prompt_text`; control tokens that a message spells are encoded as ordinary text."""
        return self.controls.chat_ids(self._messages(problem), self._template_tools())

    def insert(self, text: str) -> tuple[int, ...]:
        """Tokens of a text that may hold the dialect's tags; what it spells of control tokens is ordinary text."""
        return self.controls.encode(text)

    def quoted(self, text: str) -> str:
        """Foreign text in which nothing forges a tag of the dialect."""
        return self._foreign(text)[0]

    def thought(self, text: str) -> str:
        """The beginning of a turn: a whole thought that says a foreign text, in which nothing forges a tag."""
        return f"<think> {self.quoted(text.strip())}</think>"

    def foreign_control(self, problem: Problem, *sides: Parts) -> str | None:
        """A control token that the prompt's messages, the tools or demonstrations of the problem spell, or None."""
        tools = map(_as_json, self._template_tools())
        parts = (text for side in sides for _, text in side)
        told = (*(message.text for message in self._messages(problem)), *tools, *parts)
        return next(filter(None, map(self.controls.found_in, told)), None)

    def fitting(self, problems: Sequence[Problem], max_tokens: int) -> list[bool]:
        """Whether each prompt has at most `max_tokens` tokens.

        Most prompts are decided by their number of bytes, because encoding 20 MB takes a minute.

        Raises:
            DataError: The chat template refuses the messages of a problem; names the problem.
        """
        fits, undecided = [], {}
        for index, problem in enumerate(problems):
            try:
                text = self.prompt_text(problem)
            except DataError as error:
                raise DataError(f"problem {problem.id!r}: {error}") from None
            fits.append(self.tokenizer.most_tokens(text) <= max_tokens)
            if fits[index] or self.tokenizer.fewest_tokens(text) > max_tokens:
                continue
            if self.foreign_control(problem) is None:
                undecided[index] = text
            else:
                fits[index] = len(self.render_prompt(problem)) <= max_tokens
        counts = self.tokenizer.count_tokens(tuple(undecided.values()))
        for index, count in zip(undecided, counts, strict=True):
            fits[index] = count <= max_tokens
        return fits

    def prompt_text(self, problem: Problem) -> str:
        """The prompt's text, up to where the policy starts to write.

        Raises:
            DataError: The chat template refuses the messages.
        """
        return self.tokenizer.chat_text(self._messages(problem), self._template_tools())

    def render_user_turn(self, turn: str, messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens from the end of a turn to where the next one begins, if the user says `messages` in between.

        Raises:
            ConfigError: The chat template would rewrite earlier turns.
        """
        before, after = self._user_frame
        if not turn.endswith(self.ends):
            before = self.tokenizer.decode([self.tokenizer.eos_id]) + before
        said = "\n\n".join(message.text for message in messages)
        return self.controls.framed_ids((before, after), [self._foreign(said)[0]])

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn."""
        return tuple(self.tokenizer.decode([index]) for index in sorted(self.tokenizer.eos_ids))

    @cached_property
    def _user_frame(self) -> tuple[str, str]:
        end = self.tokenizer.decode([self.tokenizer.eos_id])
        return read_user_frame(self.tokenizer.template, end, f"{self.tokenizer.folder}")

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        return self.tokenizer.decode(token_ids)

    @cached_property
    def offered_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that a chat endpoint is told of, as in OpenAI's API; control tokens that they spell are broken up."""
        shown = self.controls.broken_text(_as_json(self._template_tools()))
        return tuple(json.loads(shown))

    def conversation(self, path: Trajectory) -> tuple[Line, ...]:
        """A path that ends before a turn of the policy, as a chat endpoint has it.

        No foreign text in it holds a tag of the dialect or spells a control token.
        """
        lines: list[Line] = list(self._messages(path.problem))
        said = Said("")
        for node in path.nodes[1:]:
            if node.source is Source.POLICY:
                kept = len(node.token_ids) - (node.token_ids[-1] in self.tokenizer.eos_ids)
                said = self._said(self.decode(node.token_ids[:kept]), len(lines))
                lines.append(said)
            elif node.results:
                texts = [replace(result, text=self._foreign(result.text)[0]) for result in node.results]
                lines += self._told(said, texts)
            else:
                heard = "\n\n".join(message.text for message in node.messages)
                lines.append(Message.of("user", self._foreign(heard)[0]))
        return harmless(lines, self.controls)

    def turn_text(self, said: Said) -> str:
        """The text of the turn that a chat endpoint answered, without the end token."""
        return _one_text(thought_opened(self._thought(said) + said.text), self._calls_text(said.calls))

    def demonstrated(self, said: Said) -> str:
        """The text of a turn of a data set, without the end token; results may stand in it.

        Raises:
            RowError: The dialect cannot write a call.
        """
        calls = "\n".join(map(self.call_text, said.calls))
        return _one_text(self._thought(said) + said.text, calls)

    def _thought(self, said: Said) -> str:
        """A thought that is kept apart cannot hold a call or an answer, so tags in it are escaped."""
        thought = neutralise(said.thought.strip(), self._tag_names)
        return f"<think>\n{thought}\n</think>\n\n" if thought else ""

    def tokens(self, source: Source, texts: Sequence[str]) -> tuple[int, ...]:
        """Tokens of a demonstration's turn, in one piece or several, or of the results that follow one."""
        if source is Source.TOOL:
            return self.render_results([ToolResult("", ToolStatus.OK, text) for text in texts])
        return self.controls.encode("".join(texts))

    def _foreign(self, text: str) -> tuple[str, tuple[int, ...]]:
        """Foreign text without any tag of the dialect, and its tokens."""
        safe = neutralise(text, self._tag_names)
        ids = self.tokenizer.encode_plain(safe)
        read = self.decode(ids)
        # A tokenizer may change characters (NFKC) or drop some, which can create a tag.
        while (safer := neutralise(read, self._tag_names)) != read:
            safe, ids = safer, self.tokenizer.encode_plain(safer)
            read = self.decode(ids)
        return safe, ids


def _one_text(turn: str, calls: str) -> str:
    """A turn with its calls, which begin on a line of their own."""
    return f"{turn}\n{calls}" if calls and turn and not turn.endswith("\n") else turn + calls


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
