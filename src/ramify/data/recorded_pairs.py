"""Files of preference pairs that were sampled: each side with the sampled ids.

A row is {id, prompt, chosen, rejected, ids: {prompt, chosen, rejected}, ...}. The texts are for people; training uses
the ids. A side is a list of [source, ids], in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ramify.core.errors import RowError
from ramify.core.messages import Problem
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id

Side: TypeAlias = tuple[tuple[Source, tuple[int, ...]], ...]
"""The parts after a prompt, in order, each with its source and token ids."""


@dataclass(frozen=True, slots=True)
class RecordedPair:
    """A pair with its ids.

    Attributes:
        prompt: Ids of the prompt.
        sides: The chosen and the rejected side.
        texts: The texts of the prompt and of both sides, as they were recorded.
    """

    prompt: tuple[int, ...]
    sides: tuple[Side, Side]
    texts: tuple[str, ...]

    def trees(self, problem: Problem, key: TreeKey) -> tuple[Tree, ...]:
        """Return a tree with one leaf for each side."""
        return tuple(self._tree(problem, key, side) for side in self.sides)

    def _tree(self, problem: Problem, key: TreeKey, side: Side) -> Tree:
        nodes = [Node("", (), None, Source.PROMPT, self.prompt, self.texts[0])]
        for index, (source, ids) in enumerate(side):
            path = (0,) * (index + 1)
            nodes.append(
                Node(
                    id=node_id(path),
                    path=path,
                    parent=node_id(path[:-1]),
                    source=source,
                    token_ids=ids,
                    text="",
                    behavior_logprobs=(0.0,) * len(ids) if source is Source.POLICY else (),
                    stop=StopReason.ANSWERED if index == len(side) - 1 else None,
                )
            )
        return make_tree(problem, key, nodes)

    @property
    def ids(self) -> tuple[tuple[int, ...], ...]:
        """The ids of the prompt and of both sides."""
        return (self.prompt, *(tuple(token for _, ids in side for token in ids) for side in self.sides))

    @property
    def size(self) -> int:
        """Tokens of the longer side, prompt included."""
        prompt, *sides = map(len, self.ids)
        return prompt + max(sides)


def read_recorded_pair(row: Mapping[str, Any]) -> RecordedPair:
    """Return the pair of a row that has `ids`.

    Raises:
        RowError: The ids, or the texts, are not of this form.
    """
    ids, values = row["ids"], [row.get(name) for name in ("prompt_text", "chosen", "rejected")]
    texts = tuple(text for text in values if isinstance(text, str))
    if not isinstance(ids, Mapping) or len(texts) < len(values):
        raise RowError(
            "'ids' must be a record, with the texts 'prompt_text', 'chosen' and 'rejected' beside it"
        )
    sides = (_side(ids.get("chosen")), _side(ids.get("rejected")))
    if any(side[-1][0] is not Source.POLICY for side in sides):
        raise RowError("a side of 'ids' must end in tokens of the policy")
    pair = RecordedPair(_ids(ids.get("prompt")), sides, texts)
    _, chosen, rejected = pair.ids
    if is_prefix_pair(chosen, rejected):
        raise RowError("chosen and rejected are the same tokens up to the end of one")
    return pair


def is_prefix_pair(ids: Sequence[int], others: Sequence[int]) -> bool:
    """Return True if one side is a prefix of the other; the two are no pair then."""
    shorter = min(len(ids), len(others))
    return ids[:shorter] == others[:shorter]


def _side(value: object) -> Side:
    if not isinstance(value, Sequence) or not value:
        raise RowError("a side of 'ids' must be a list of [source, ids]")
    return tuple((_source(part), _ids(part[1])) for part in value)


def _source(part: object) -> Source:
    if isinstance(part, Sequence) and len(part) == 2 and part[0] in (Source.POLICY, Source.TOOL):
        return Source(part[0])
    raise RowError('a part of a side of \'ids\' must be ["policy", ids] or ["tool", ids]')


def _ids(value: object) -> tuple[int, ...]:
    if (
        isinstance(value, Sequence)
        and value
        and all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value)
    ):
        return tuple(value)
    raise RowError("'ids' must hold lists of token ids")


def check_tokenizer(pair: RecordedPair, decode: Callable[[Sequence[int]], str], vocab_size: int) -> None:
    """Check that the ids are those of a tokenizer of `vocab_size` tokens, whose `decode` gives the text of ids.

    Raises:
        RowError: They are another one's.
    """
    if max(map(max, pair.ids)) >= vocab_size or tuple(map(decode, pair.ids)) != pair.texts:
        raise RowError("its ids are those of another model's tokenizer; make the pairs with this one")
