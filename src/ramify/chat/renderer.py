"""The one renderer: messages and tool results to tokens, a turn's text to calls or an answer."""

from collections.abc import Sequence

from ramify.chat.tags import (
    RESULT_CLOSE,
    RESULT_OPEN,
    TAG_NAMES,
    argument_names,
    neutralise,
    parse_turn,
    split_completion,
    stop_strings,
)
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.messages import ParsedTurn, Problem, ToolResult, ToolSpec, ToolStatus
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id


class TagRenderer:
    """Implements `core.protocols.Renderer` over a tokenizer's chat template and the papers' tags."""

    def __init__(self, tokenizer: ChatTokenizer, specs: Sequence[ToolSpec]) -> None:
        self.tokenizer = tokenizer
        self._arguments = argument_names(specs)
        self._tag_names = tuple(dict.fromkeys((*TAG_NAMES, *self._arguments)))
        self._open = tokenizer.encode(RESULT_OPEN)
        self._close = tokenizer.encode(RESULT_CLOSE)

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings at which a turn ends."""
        return stop_strings(tuple(self._arguments))

    def start(self, problem: Problem, tools: Sequence[ToolSpec]) -> tuple[int, ...]:  # noqa: ARG002
        """Tokens of the prompt. The dialect names its tools in the problem's own messages, as the papers do."""
        return self.tokenizer.encode(self.tokenizer.chat_text(problem.messages))

    def after(self, results: Sequence[ToolResult]) -> tuple[int, ...]:
        """Tokens of tool results: ` <result>`, the neutralised text, `</result>`."""
        ids: list[int] = []
        for result in results:
            text = self.tokenizer.encode_plain(neutralise(result.text, self._tag_names))
            ids += [*self._open, *text, *self._close]
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens."""
        return self.tokenizer.decode(token_ids)

    def parse(self, turn: str) -> ParsedTurn:
        """Read one whole turn of the policy."""
        return parse_turn(turn, self._arguments)

    def demonstrate(self, problem: Problem, completion: str, key: TreeKey) -> Tree:
        """A demonstration as a tree with one leaf: the policy's turns are trained, the tool's results are not.

        Args:
            problem: Where it starts.
            completion: The assistant's whole message; `<result>` spans are the tool's.
            key: Where in the run it is used.

        Raises:
            DataError: The completion does not end in a turn of the policy.
        """
        parts = split_completion(completion)
        if not parts or parts[-1][0] is not Source.POLICY:
            raise DataError(f"demonstration {problem.id!r}: it must end in a turn of the assistant")
        prompt = self.start(problem, ())
        nodes = [Node("", (), None, Source.PROMPT, prompt, self.decode(prompt))]
        for index, (source, text) in enumerate(parts):
            last = index == len(parts) - 1
            nodes.append(self._demonstrated(nodes[-1], source, text, last))
        return make_tree(problem, key, nodes)

    def _demonstrated(self, parent: Node, source: Source, text: str, last: bool) -> Node:
        path = (*parent.path, 0)
        if source is Source.TOOL:
            result = ToolResult(parent.id, ToolStatus.OK, text)
            ids = self.after([result])
            return Node(node_id(path), path, parent.id, source, ids, self.decode(ids), results=(result,))
        ids = self.tokenizer.encode(text) + ((self.tokenizer.eos_id,) if last else ())
        return Node(
            node_id(path),
            path,
            parent.id,
            source,
            ids,
            self.decode(ids),
            behavior_logprobs=(0.0,) * len(ids),
            stop=StopReason.ANSWERED if last else None,
        )
