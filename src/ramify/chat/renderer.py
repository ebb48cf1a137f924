"""Renderers: turn messages and tool results into tokens, and a turn's text into calls or an answer.

`ChatRenderer` is what the dialects share. `TagRenderer` is the papers' dialect; `chat.hermes` has another.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

from ramify.chat.arguments import describe_tools
from ramify.chat.control_tokens import ControlTokens
from ramify.chat.conversation import (
    Line,
    Said,
    SaidCall,
    harmless,
    outline,
    split_thought,
    thought_opened,
)
from ramify.chat.tags import (
    RESULT_CLOSE,
    RESULT_OPEN,
    TAG_NAMES,
    callable_tools,
    neutralise,
    parse_turn,
    split_completion,
    stop_strings,
    tidy_turn,
    words_before,
)
from ramify.chat.template import read_user_frame
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.messages import (
    Final,
    Message,
    ParsedTurn,
    Problem,
    ToolResult,
    ToolSpec,
    ToolStatus,
    TurnOutline,
)
from ramify.core.tree import Node, Source, StopReason, Trajectory, Tree, TreeKey, make_tree, node_id

Parts: TypeAlias = tuple[tuple[Source, str], ...]
"""The assistant's turns and the tool results of a demonstration, in order."""

_ESCAPED = str.maketrans(dict.fromkeys("<\ufe64\uff1c", "&lt;"))
"""The longest text that neutralising a result can give; some tokenizers read look-alikes as `<`."""


class ChatRenderer(ABC):
    """Implements `core.protocols.Renderer` over a tokenizer's chat template; a dialect fills in the abstract methods.

    Attributes:
        tokenizer: The model's tokenizer.
        controls: Its control tokens.
        result_end: The text at the end of each tool result in a context.
    """

    result_end: str
    _result_tags: tuple[str, str]
    """The tags around a tool result in the text of a demonstration."""
    _other_calls: "re.Pattern[str]"
    """Calls in other dialects, which would be trained on as text that calls nothing."""
    _ends_each_turn: bool
    """Whether a turn with calls ends with the end token, as the last turn does."""

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
    def after(self, results: Sequence[ToolResult]) -> tuple[int, ...]:
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
    def _split(self, completion: str) -> Parts:
        """Split a demonstration, without checking it."""

    @abstractmethod
    def _frame_tokens(self) -> int:
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

    def start(self, problem: Problem) -> tuple[int, ...]:
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

    def foreign_control(self, problem: Problem, *completions: str) -> str | None:
        """A control token that the prompt's messages, the tools or a demonstration of the problem spell, or None."""
        tools = map(_as_json, self._template_tools())
        parts = (text for completion in completions for _, text in self._split(completion))
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
                fits[index] = len(self.start(problem)) <= max_tokens
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

    def hear(self, turn: str, messages: Sequence[Message]) -> tuple[int, ...]:
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
        """The text of the turn that a chat endpoint answered, without the end token.

        A thought that the service keeps apart cannot hold a call or an answer, so tags in it are escaped.
        """
        thought = neutralise(said.thought.strip(), self._tag_names)
        before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
        turn = thought_opened(before + said.text)
        calls = self._calls_text(said.calls)
        return f"{turn}\n{calls}" if calls and turn and not turn.endswith("\n") else turn + calls

    def demonstrate(
        self, problem: Problem, completion: str, key: TreeKey, what: str = "demonstration"
    ) -> Tree:
        """A demonstration as a tree with one leaf: the assistant's turns are trained on, the tool results are not.

        Args:
            problem: The problem that it solves.
            completion: The assistant's turns and the tool results between them, in the dialect's text.
            key: The tree's key: where in the run the demonstration is used.
            what: What error messages call it; the problem's id follows.

        Raises:
            DataError: The completion does not begin and end with a turn of the assistant, or a turn holds an unpaired
                result tag, an end of turn, or a call in another dialect.
        """
        parts = self.turns(f"{what} {problem.id!r}", completion)
        prompt = self.start(problem)
        nodes = [Node("", (), None, Source.PROMPT, prompt, self.decode(prompt))]
        steps = [
            (source, [text for _, text in group]) for source, group in groupby(parts, lambda part: part[0])
        ]
        for index, (source, texts) in enumerate(steps):
            nodes.append(self._demonstrated(nodes[-1], source, texts, last=index == len(steps) - 1))
        return make_tree(problem, key, nodes)

    def turns(self, place: str, completion: str) -> Parts:
        """Split a demonstration into the assistant's turns and the tool results, without encoding anything.

        Args:
            place: Prefix of error messages.
            completion: As for `demonstrate`.

        Raises:
            DataError: As for `demonstrate`.
        """
        parts = self._split(completion)
        if not parts or parts[-1][0] is not Source.POLICY:
            raise DataError(f"{place}: it must end in a turn of the assistant")
        if parts[0][0] is not Source.POLICY:
            raise DataError(f"{place}: it must begin with a turn of the assistant")
        for text in (text for source, text in parts if source is Source.POLICY):
            if call := self._other_calls.search(text):
                raise DataError(
                    f"{place}: it calls a tool as another dialect does ({call[0]}); see model.dialect"
                )
            if any(tag in text for tag in self._result_tags):
                raise DataError(f"{place}: a result tag has no partner: {_start(text)}")
            if any(end in text for end in self.ends):
                raise DataError(
                    f"{place}: an end of turn stands inside (a further turn of the user is not supported): {_start(text)}"
                )
        return parts

    def token_bounds(self, problem: Problem, parts: Parts) -> tuple[int, int]:
        """Lower and upper bound of a demonstration's length in tokens, prompt included, without encoding it.

        Args:
            problem: The problem that it solves.
            parts: Its parts, from `turns`.

        Raises:
            DataError: The chat template refuses the problem's messages.
        """
        prompt = self.prompt_text(problem)
        fewest, most = self.tokenizer.fewest_tokens(prompt), self.tokenizer.most_tokens(prompt)
        for source, text in parts:
            if source is Source.TOOL:
                most += self._frame_tokens()
                most += self.tokenizer.most_tokens(text.translate(_ESCAPED))
            else:
                fewest += self.tokenizer.fewest_tokens(text)
                most += self.tokenizer.most_tokens(text) + 1
        return fewest, most

    def are_same(self, parts: Parts, others: Parts) -> bool:
        """Whether two demonstrations have the same tokens; encodes only parts whose texts differ, up to the first
        difference in tokens."""
        if [source for source, _ in parts] != [source for source, _ in others]:
            return False
        return all(
            one == other or self._tokens(one[0], [one[1]]) == self._tokens(other[0], [other[1]])
            for one, other in zip(parts, others, strict=True)
        )

    def _tokens(self, source: Source, texts: Sequence[str]) -> tuple[int, ...]:
        if source is Source.TOOL:
            return self.after([ToolResult("", ToolStatus.OK, text) for text in texts])
        return self.controls.encode("".join(texts))

    def _demonstrated(self, parent: Node, source: Source, texts: Sequence[str], last: bool) -> Node:
        path = (*parent.path, 0)
        ids = self._tokens(source, texts)
        if source is Source.TOOL:
            # The node gets no `results`, because no tool ran.
            return Node(node_id(path), path, parent.id, source, ids, self.decode(ids))
        if last or self._ends_each_turn:
            ids += (self.tokenizer.eos_id,)
        text = self.decode(ids)
        turn = self.parse(text)
        return Node(
            node_id(path),
            path,
            parent.id,
            source,
            ids,
            text,
            behavior_logprobs=(0.0,) * len(ids),
            turn=turn,
            stop=_stop(turn) if last else None,
        )

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


class TagRenderer(ChatRenderer):
    """The papers' tag dialect (`chat.tags`): one assistant message holds the whole trajectory."""

    result_end = RESULT_CLOSE
    _result_tags = ("<result>", "</result>")
    _other_calls = re.compile(r"<tool_call>|<function_call>|<function=|<\|python_tag\|>|\[TOOL_CALLS\]")
    _ends_each_turn = False

    def __init__(self, tokenizer: ChatTokenizer, specs: Sequence[ToolSpec]) -> None:
        self._tools = callable_tools(specs)
        self._tools_text = describe_tools(specs)
        super().__init__(tokenizer, tuple(dict.fromkeys((*TAG_NAMES, *self._tools))))
        self._open = tokenizer.encode(RESULT_OPEN)
        self._close = tokenizer.encode(RESULT_CLOSE)

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings at which a turn ends."""
        return stop_strings(tuple(self._tools))

    def after(self, results: Sequence[ToolResult]) -> tuple[int, ...]:
        """Tokens of tool results, each as ` <result>`, its neutralised text, `</result>`."""
        ids: list[int] = []
        for result in results:
            ids += [*self._open, *self._foreign(result.text)[1], *self._close]
        return tuple(ids)

    def parse(self, turn: str) -> ParsedTurn:
        """Parse one whole turn of the policy."""
        return parse_turn(turn, self._tools, self.ends)

    def outline(self, turn: str) -> TurnOutline:
        """Where in the text of a turn its thoughts stand, and where its call or its answer begins."""
        return outline(turn, words_before(turn, self._tools))

    def _messages(self, problem: Problem) -> tuple[Message, ...]:
        """The problem's messages, with the descriptions of tools that ask for one added to the first message.

        They go to the end of a system message, or in front of any other message. (The papers' tools are explained by
        the problem's own messages.) No message is added, because not every chat template accepts a system message.
        """
        messages = problem.messages
        if self._tools_text and messages:
            first = messages[0]
            pieces = (
                (first.text, self._tools_text) if first.role == "system" else (self._tools_text, first.text)
            )
            messages = (Message.of(first.role, "\n\n".join(pieces)), *messages[1:])
        return messages

    def _said(self, turn: str, number: int) -> Said:
        del number
        return split_thought(turn)

    def _told(self, said: Said, results: Sequence[ToolResult]) -> tuple[Line, ...]:
        del said
        texts = [f"{RESULT_OPEN}{result.text}{RESULT_CLOSE}".strip() for result in results]
        return (Message.of("user", "\n".join(texts)),)

    def _split(self, completion: str) -> Parts:
        return split_completion(completion)

    def _frame_tokens(self) -> int:
        return len(self._open) + len(self._close)

    def written(self, parts: Parts) -> str:
        """As for every dialect."""
        return "".join(
            tidy_turn(text, self._tools)
            if source is Source.POLICY
            else f"{RESULT_OPEN}{self.quoted(text)}{RESULT_CLOSE}"
            for source, text in parts
        )


def _stop(turn: ParsedTurn) -> StopReason:
    return StopReason.ANSWERED if isinstance(turn, Final) else StopReason.MALFORMED


def _start(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
