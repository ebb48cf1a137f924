"""Files of training examples, read row by row: demonstrations for SFT, pairs for DPO.

A row of a sampled pair is {id, prompt, chosen, rejected, ids: {prompt, chosen, rejected}, ...}. The texts are for people; training
uses the ids. A side is a list of [source, ids], in order.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from ramify.chat.conversation import CompletionLines
from ramify.core.errors import RowError, RowOmittedError
from ramify.core.messages import Problem
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id
from ramify.data.configs import DataFiles
from ramify.data.example_formats import PAIR, Format, Sides, read_row
from ramify.data.problems import listed, read_identifier
from ramify.data.row_columns import ColumnNames, Row, is_missing, with_own_names
from ramify.data.row_messages import WEIGHTS
from ramify.data.sources import DataRow, data_files, read_data

RowName: TypeAlias = int | str
"""The number of a row in its file; of several files the file's name with it."""


@dataclass(frozen=True, slots=True)
class Example:
    """A problem, and the lines of the assistant and its tools after it, perhaps with later messages of the user.

    Attributes:
        problem: The problem; its id is the row's `id` in the plain format, else the row's number.
        sides: One side of a demonstration; of a pair the chosen and the rejected one.
        tools: The row's own tools (`row_tools.read_tools`); "" if it has none.
        format: The row's format.
        row: Its number in the file, or its name.
        recorded: Of a pair that was sampled: its ids, which are trained on in place of the sides' texts.
    """

    problem: Problem
    sides: tuple[CompletionLines, ...]
    tools: str
    format: Format
    row: RowName
    recorded: "RecordedPair | None" = None


def read_examples(
    data: DataFiles | str,
    names: Sides,
    columns: ColumnNames = MappingProxyType({}),
    weights: Sequence[float] = (),
    limit: int | None = None,
) -> Iterator[tuple[RowName, Example | RowError]]:
    """Yield the examples of files with the names of their rows; in place of one that cannot be read, the reason.

    Args:
        data: Files, folders or data sets of the hub (`data.sources`).
        names: The sides of an example.
        columns: By our name for a column the file's.
        weights: For each of the data how often its rows come.
        limit: Read the first `limit` rows only.

    Raises:
        DataError: There is no such file, or it cannot be read from some row on.
    """
    row_of_id: dict[tuple[Path, str], RowName] = {}
    is_one = len(data_files(data)) == 1
    for row in read_data(data, weights, limit=limit):
        name = row.number if is_one else f"{row.path.name}:{row.number}"
        example: Example | RowError
        try:
            example = _read(name, row, names, columns, row_of_id)
        except RowError as error:
            example = error
        except ValueError as error:
            example = RowError(str(error))
        for _ in range(row.copies):
            yield name, example


def _read(
    name: RowName,
    row: DataRow,
    names: Sides,
    columns: ColumnNames,
    row_of_id: dict[tuple[Path, str], RowName],
) -> Example:
    own = with_own_names(row.record(), columns)
    _require_trained(own)
    reading = read_row(own, names)
    identifier = f"{name}"
    if reading.format == "plain":
        identifier = read_identifier(own, identifier)
        is_own = own.get("id") is not None
        if is_own and (first := row_of_id.setdefault((row.path, identifier), name)) != name:
            raise RowError("duplicate id", f"{identifier!r:.40} is that of row {first}")
    # Equal tools are one text in memory.
    tools = sys.intern(reading.tools)
    recorded = read_recorded_pair(own) if names == PAIR and own.get("ids") is not None else None
    problem = Problem(identifier, reading.prompt, ())
    return Example(problem, reading.sides, tools, reading.format, name, recorded)


def _require_trained(row: Row) -> None:
    """Require that a row is trained on: KTO's `label` is not false, and its weight is not 0.

    Raises:
        RowOmittedError: It is not.
        RowError: Its weight is neither 0 nor 1.
    """
    label = row.get("label")
    # Other labels are classes or golds, unless KTO's own column of the answer stands beside a number.
    if label is False or str(label).casefold() == "false":
        raise RowOmittedError("label = false")
    if isinstance(label, int | float) and label == 0 and not is_missing(row.get("completion")):
        raise RowOmittedError("label = 0")
    for name in WEIGHTS:
        value = row.get(name)
        weight = 1.0 if is_missing(value) else _as_number(value)
        if weight == 0:
            raise RowOmittedError(f"{name} = 0")
        if weight != 1:
            raise RowError("the weight of a row must be 0 or 1", f"{name!r} is {value!r:.40}")


def _as_number(value: object) -> float | None:
    """Return a number or a truth value, which tables in text spell; None for anything else."""
    if isinstance(value, str):
        value = {"false": "0", "true": "1"}.get(value.casefold(), value)
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


class RefusedRows:
    """Rows of a file that cannot be used, by reason.

    Attributes:
        count: Number of rows.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[str, list[RowName]] = {}
        self._first_detail: dict[str, str] = {}

    def add(self, row: RowName, error: RowError) -> None:
        """Count a row."""
        self.count += 1
        self._rows.setdefault(error.reason, []).append(row)
        self._first_detail.setdefault(error.reason, error.detail)

    def __str__(self) -> str:
        """Return one line: the reasons, the most frequent first, each with its number of rows and the first of them."""
        by_count = sorted(self._rows.items(), key=lambda item: -len(item[1]))
        lines = [self._describe(reason, rows) for reason, rows in by_count[:_MOST_REASONS]]
        if more := by_count[_MOST_REASONS:]:
            lines.append(f"{sum(len(rows) for _, rows in more)} rows for {len(more)} more reasons")
        return "; ".join(lines)

    def _describe(self, reason: str, rows: list[RowName]) -> str:
        detail = self._first_detail[reason]
        if len(rows) == 1:
            return f"row {rows[0]}: {reason}{': ' * bool(detail)}{detail}"
        shown = f" (the first: {detail})" if detail else ""
        return f"{len(rows):,} rows ({listed(rows)}): {reason}{shown}"


_MOST_REASONS = 12


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


def check_tokenizer(pair: RecordedPair, decode: Callable[[Sequence[int]], str], num_ids: int) -> None:
    """Check that the ids are those of a model that can sample `num_ids` of them, whose tokenizer's `decode` gives the text of ids.

    Raises:
        RowError: They are another one's.
    """
    if max(map(max, pair.ids)) >= num_ids or tuple(map(decode, pair.ids)) != pair.texts:
        raise RowError("its ids are those of another model's tokenizer; make the pairs with this one")
