"""Views of a tree that show themselves: a node, a trajectory, a table of tokens. A core record never draws itself."""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, overload

from ramify.api.tables import short
from ramify.core.errors import ConfigError
from ramify.core.records import Floats, NodeCredit, Reward
from ramify.core.tree import Node as CoreNode
from ramify.core.tree import Source, StopReason
from ramify.core.tree import Trajectory as CoreTrajectory
from ramify.core.tree import Tree as CoreTree

Spell: TypeAlias = Callable[[Sequence[int]], str]
"""The text of token ids."""
Row: TypeAlias = Mapping[str, Any]

_SHOWN_ROWS = 60


class Table(Sequence[Row]):
    """Rows of a table; a list of dictionaries that shows itself and becomes a pandas frame. A row may lack columns."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Hold rows."""
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...

    @overload
    def __getitem__(self, key: slice) -> "Table": ...

    def __getitem__(self, key: int | slice) -> "Row | Table":
        return Table(self._rows[key]) if isinstance(key, slice) else self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column; None of a row that lacks it.

        Raises:
            ConfigError: There is no such column; lists those that there are.
        """
        if name not in self.columns:
            raise ConfigError(f"column: there is no {name!r}. The columns are {', '.join(self.columns)}")
        return [row.get(name) for row in self._rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(dict.fromkeys(name for row in self._rows for name in row))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas need not be installed
        """Return a pandas frame.

        Raises:
            ConfigError: pandas is not installed.
        """
        return frame(self._rows)

    def __repr__(self) -> str:
        return short(f"Table({len(self)} rows: {', '.join(self.columns)})")

    def _repr_html_(self) -> str:
        return html_table(self.columns, self._rows)


def frame(rows: Sequence[Row]) -> Any:  # noqa: ANN401 - pandas need not be installed
    """Return rows as a pandas frame.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ConfigError("to_pandas: pandas is not installed. Install it with pip install pandas") from None
    return pandas.DataFrame([dict(row) for row in rows])


def html_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the first rows as an HTML table, without scripts."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(row.get(name)))}</td>" for name in columns) + "</tr>"
        for row in rows[:_SHOWN_ROWS]
    )
    more = f"<p>{len(rows) - _SHOWN_ROWS} more rows</p>" if len(rows) > _SHOWN_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def cell(value: object) -> str:
    """Return a value as a short text."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)[:200]


def token_rows(
    node: CoreNode,
    spell: Spell | None,
    *,
    is_trained: bool,
    credit: NodeCredit | None = None,
    advantages: Floats | None = None,
) -> Iterator[Row]:
    """Yield a row for each token of a node; credit and advantages are those of the node's own tokens."""
    is_policy = node.source is Source.POLICY
    for i, token in enumerate(node.token_ids):
        plus, minus, weight = (
            (None,) * 3
            if credit is None
            else (float(credit.s_plus[i]), float(credit.s_minus[i]), float(credit.weight[i]))
        )
        yield {
            "node": node.id,
            "token": None if spell is None else spell([token]),
            "id": token,
            "source": str(node.source),
            "mask": is_policy and is_trained,
            "logprob": node.behavior_logprobs[i] if is_policy else None,
            "entropy": node.token_entropies[i] if node.token_entropies else None,
            "advantage": None if advantages is None else float(advantages[i]),
            "S+": plus,
            "S-": minus,
            "W": weight,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """The tokens that one party added at one point of a tree.

    Attributes:
        core: The record.
        tokens: A row for each token.
        children: Ids of the nodes that follow.
        tree: The record of its tree.
    """

    core: CoreNode
    tokens: Table
    children: tuple[str, ...]
    tree: CoreTree

    @property
    def id(self) -> str:
        """Its path, such as "0.0.1"; "" is the prompt."""
        return self.core.id

    @property
    def source(self) -> str:
        """Who wrote it: prompt, policy or tool."""
        return str(self.core.source)

    @property
    def text(self) -> str:
        """Its tokens as text."""
        return self.core.text

    @property
    def entropy(self) -> float | None:
        """Mean entropy of its first tokens, nats; None if it was not measured."""
        return None if self.core.entropy is None else self.core.entropy.lower

    def __repr__(self) -> str:
        return short(f"Node({self.id!r}, {self.source}, {len(self.core.token_ids)} tokens, {self.text!r})")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


@dataclass(frozen=True, slots=True, repr=False)
class Trajectory:
    """A path from the prompt to a leaf.

    Attributes:
        core: The record.
        scored: Its reward; None before `ramify.score`.
        tokens: A row for each token; the advantages are the trajectory's own.
        advantage: Mean over its response tokens; None before `ramify.credit`.
    """

    core: CoreTrajectory
    scored: Reward | None
    tokens: Table
    advantage: float | None

    @property
    def id(self) -> str:
        """The id of its leaf."""
        return self.core.leaf.id

    @property
    def text(self) -> str:
        """All text after the prompt, results included."""
        return "".join(node.text for node in self.core.nodes[1:])

    @property
    def answer(self) -> str:
        """The final answer; "" if there is none."""
        from ramify.rewards.extract import answer_of

        return answer_of(self.core)

    @property
    def reward(self) -> float | None:
        """The reward that trains; None before `ramify.score`."""
        return None if self.scored is None else self.scored.value

    @property
    def stop(self) -> StopReason:
        """Why it ended."""
        return self.core.stop

    @property
    def calls(self) -> int:
        """Tool calls that got a result."""
        return len(self.core.exchanges)

    def __repr__(self) -> str:
        reward = "no reward" if self.reward is None else f"reward {self.reward:.4g}"
        return short(
            f"Trajectory({self.id!r}, {reward}, {self.stop}, {self.core.num_written} tokens, {self.text!r})"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"
