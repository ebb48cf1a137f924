"""Files of preference pairs that were sampled: each side with the very ids that the policy wrote, and where it is recorded.

A row is {id, prompt, chosen, rejected, ids: {prompt, chosen, rejected}, ...}. The texts are for people; what is trained on
are the ids. A side is a list of [source, ids], in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id

Side: TypeAlias = tuple[tuple[Source, tuple[int, ...]], ...]
"""What follows a prompt, in order: tokens that the policy wrote, and others."""


@dataclass(frozen=True, slots=True)
class RecordedPair:
    """A pair with its ids; `row` is the row in the file, from 1."""

    problem: Problem
    prompt: tuple[int, ...]
    chosen: Side
    rejected: Side
    texts: tuple[str, ...]
    row: int

    def side(self, which: str, key: TreeKey) -> Tree:
        """The "chosen" or the "rejected" side as a tree with one leaf."""
        nodes = [Node("", (), None, Source.PROMPT, self.prompt, self.texts[0])]
        parts = self.chosen if which == "chosen" else self.rejected
        for index, (source, ids) in enumerate(parts):
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
                    stop=StopReason.ANSWERED if index == len(parts) - 1 else None,
                )
            )
        return make_tree(self.problem, key, nodes)

    @property
    def ids(self) -> tuple[tuple[int, ...], ...]:
        """The ids of the prompt and of both sides."""
        sides = (tuple(token for _, ids in side for token in ids) for side in (self.chosen, self.rejected))
        return (self.prompt, *sides)


def read_recorded_pair(problem: Problem, row: Mapping[str, Any], number: int) -> RecordedPair:
    """The pair of a row that has `ids`.

    Raises:
        ValueError: The ids, or the texts, are not of this form.
    """
    ids, told = row["ids"], [row.get(name) for name in ("prompt_text", "chosen", "rejected")]
    texts = tuple(text for text in told if isinstance(text, str))
    if not isinstance(ids, Mapping) or len(texts) < len(told):
        raise ValueError(
            "'ids' must be a record, with the texts 'prompt_text', 'chosen' and 'rejected' beside it"
        )
    pair = RecordedPair(
        problem, _ids(ids.get("prompt")), _side(ids.get("chosen")), _side(ids.get("rejected")), texts, number
    )
    for side in (pair.chosen, pair.rejected):
        if side[-1][0] is not Source.POLICY:
            raise ValueError("a side of 'ids' must end in tokens of the policy")
    if pair.chosen == pair.rejected:
        raise ValueError("'chosen' and 'rejected' have the same ids")
    return pair


def _side(value: object) -> Side:
    if not isinstance(value, Sequence) or not value:
        raise ValueError("a side of 'ids' must be a list of [source, ids]")
    return tuple((_source(part), _ids(part[1])) for part in value)


def _source(part: object) -> Source:
    if isinstance(part, Sequence) and len(part) == 2 and part[0] in (Source.POLICY, Source.TOOL):
        return Source(part[0])
    raise ValueError('a part of a side of \'ids\' must be ["policy", ids] or ["tool", ids]')


def _ids(value: object) -> tuple[int, ...]:
    if (
        isinstance(value, Sequence)
        and value
        and all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value)
    ):
        return tuple(value)
    raise ValueError("'ids' must hold lists of token ids")


def check_tokenizer(pair: RecordedPair, decode: Callable[[Sequence[int]], str]) -> None:
    """See that the ids are those of a tokenizer, whose `decode` gives the text of ids.

    Raises:
        DataError: They are another one's.
    """
    if tuple(map(decode, pair.ids)) != pair.texts:
        raise DataError("its ids are those of another model's tokenizer; make the pairs with this one")
