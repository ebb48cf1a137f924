"""`Tree` and `Trees`: recorded or freshly grown trees, with rewards and credit as far as these are known."""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from ramify.algos.ops import by_node
from ramify.api.tables import require, short
from ramify.api.views import Node, Spell, Table, Trajectory, frame, html_table, token_rows
from ramify.assemble.recorded_credit import TreeCredit
from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.core.records import Floats, Reward, ScoredTree
from ramify.core.tree import Node as CoreNode
from ramify.core.tree import Source, StopReason, TreeKey
from ramify.core.tree import Tree as CoreTree

_DRAWN_CHARS = 72


@dataclass(frozen=True, repr=False)
class Tree:
    """All trajectories of one problem: `tree["0.0.1"]` is a node, `tree.best` the trajectory with the highest reward.

    Attributes:
        core: The record.
        rewards: One for each trajectory; None before `ramify.score`.
        credit: Advantages and credit; None before `ramify.credit`, and for a tree of which no trajectory counts or that its
            step did not learn from.
        spell: Returns the text of token ids, if the tokenizer is known.
        temperature: That of the sampling distribution.
        is_learned: False if the step of its run learned from other trees only.
    """

    core: CoreTree
    rewards: tuple[Reward, ...] | None = None
    credit: TreeCredit | None = None
    spell: Spell | None = None
    temperature: float = 1.0
    is_learned: bool = True

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.core.problem

    @property
    def key(self) -> TreeKey:
        """Step, slot and attempt, which key its draws."""
        return self.core.key

    @property
    def question(self) -> str:
        """The last message of the prompt."""
        return self.problem.messages[-1].text

    @property
    def mean(self) -> float | None:
        """The mean reward of the trajectories that count; None if there is none."""
        values = [reward.value for reward in self.rewards or () if reward.counts]
        return sum(values) / len(values) if values else None

    @property
    def best(self) -> Trajectory:
        """The trajectory with the highest reward, the first of equals.

        Raises:
            DataError: The tree has no rewards.
        """
        if self.rewards is None:
            raise DataError("tree.best: the tree has no rewards. Score it with ramify.score")
        return max(self.trajectories, key=lambda each: -np.inf if each.reward is None else each.reward)

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """One for each leaf, in depth-first order."""
        rewards: Sequence[Reward | None] = self.rewards or (None,) * len(self.core.trajectories)
        views = []
        for core, reward in zip(self.core.trajectories, rewards, strict=True):
            own = None if self.credit is None else self.credit.advantages.get(core.leaf.id)
            parts = {} if own is None else {node.id: part for node, part in by_node(core, own)}
            rows = [row for node in core.nodes for row in self._rows(node, parts.get(node.id))]
            mean = None if own is None else float(own.mean()) if len(own) else 0.0
            views.append(Trajectory(core, reward, Table(rows), mean))
        return tuple(views)

    @property
    def tokens(self) -> Table:
        """A row for each token, each once: token, source, mask, logprob, entropy, and after `ramify.credit` what it is credited."""
        return Table([row for node in self.core.nodes for row in self._rows(node)])

    @property
    def text(self) -> str:
        """A drawing of the tree in lines: id, source, and the beginning of each text."""
        return "\n".join(self._lines())

    def __getitem__(self, path: str) -> Node:
        """Return the node of a path such as "0.0.1"; "" is the prompt.

        Raises:
            KeyError: There is no such node.
        """
        node = self.core.by_id.get(path)
        if node is None:
            raise KeyError(
                f"{path!r}: the tree has no such node. It has {', '.join(map(repr, self.core.by_id))}"[:400]
            )
        children = tuple(child.id for child in self.core.children[path])
        return Node(node, Table(list(self._rows(node))), children, self.core)

    def __iter__(self) -> Iterator[Node]:
        return (self[node.id] for node in self.core.nodes)

    def __len__(self) -> int:
        return len(self.core.trajectories)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas need not be installed
        """Return a pandas frame with a row for each token."""
        return self.tokens.to_pandas()

    def scored(self) -> ScoredTree:
        """Return the record with its rewards.

        Raises:
            DataError: The tree has none.
        """
        if self.rewards is None:
            raise DataError(
                f"problem {self.problem.id!r}: the tree has no rewards. Score it with ramify.score"
            )
        return ScoredTree(self.core, self.rewards)

    def __repr__(self) -> str:
        mean = "no rewards" if self.mean is None else f"mean {self.mean:.3g}"
        return short(f"Tree({self.problem.id!r}, {len(self)} trajectories, {mean}, {self.question!r})")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"

    def _rows(self, node: CoreNode, advantages: Floats | None = None) -> Iterator[Mapping[str, Any]]:
        credit = None if self.credit is None else self.credit.nodes.get(node.id)
        if advantages is None and self.credit is not None:
            advantages = self.credit.means.get(node.id)
        is_trained = node.id not in self.core.inherited_ids
        return token_rows(node, self.spell, is_trained=is_trained, credit=credit, advantages=advantages)

    def _lines(self) -> Iterator[str]:
        rewards = {each.id: each.reward for each in self.trajectories}
        yield f"problem {self.problem.id}: {short(self.question, _DRAWN_CHARS)}"
        for node in self.core.nodes[1:]:
            end = ""
            if node.stop is not None:
                reward = rewards[node.id]
                end = f"  [{node.stop}{'' if reward is None else f', reward {reward:.3g}'}]"
            mark = {Source.POLICY: "", Source.TOOL: "= "}.get(node.source, "")
            yield f"{'  ' * len(node.path)}{node.id} {mark}{short(node.text, _DRAWN_CHARS)}{end}"


class Trees(Sequence[Tree]):
    """The trees of a rollout, in the order of its problems."""

    def __init__(self, trees: Iterable[Tree]) -> None:
        """Hold trees."""
        self._trees = tuple(trees)

    @overload
    def __getitem__(self, key: int) -> Tree: ...

    @overload
    def __getitem__(self, key: slice) -> "Trees": ...

    def __getitem__(self, key: int | slice) -> "Tree | Trees":
        return Trees(self._trees[key]) if isinstance(key, slice) else self._trees[key]

    def __len__(self) -> int:
        return len(self._trees)

    @property
    def temperature(self) -> float:
        """The temperature that they were sampled at.

        Raises:
            DataError: They were sampled at several.
        """
        temperatures = sorted({tree.temperature for tree in self._trees}) or [1.0]
        if len(temperatures) > 1:
            raise DataError(
                f"trees: sampled at temperatures {temperatures}. Learn from those of one temperature at a time"
            )
        return temperatures[0]

    @property
    def scored(self) -> tuple[ScoredTree, ...]:
        """The records with their rewards.

        Raises:
            DataError: A tree has none.
        """
        return tuple(tree.scored() for tree in self._trees)

    @property
    def mean(self) -> float | None:
        """The mean of the trees' mean rewards; None before `ramify.score`."""
        means = [tree.mean for tree in self._trees if tree.mean is not None]
        return sum(means) / len(means) if means else None

    @property
    def best(self) -> Trajectory:
        """The trajectory with the highest reward of all."""
        if not self._trees:
            raise DataError("trees.best: there is no tree")
        return max(
            (tree.best for tree in self._trees),
            key=lambda each: -np.inf if each.reward is None else each.reward,
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of a step of these trees, under the names that a run's `metrics.jsonl` has."""
        from ramify.obs.tree_metrics import tree_metrics

        return tree_metrics(self.scored)

    def summary(self) -> Table:
        """Return a row for each tree."""
        return Table(
            [
                {
                    "problem": tree.problem.id,
                    "question": tree.question,
                    "trajectories": len(tree),
                    "mean": tree.mean,
                    "right": _right(tree),
                    "failed": sum(each.stop is StopReason.FAILED for each in tree.trajectories),
                }
                for tree in self._trees
            ]
        )

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas need not be installed
        """Return a pandas frame with a row for each trajectory."""
        return frame(
            [
                {
                    "problem": tree.problem.id,
                    "leaf": each.id,
                    "reward": each.reward,
                    "answer": each.answer,
                    "stop": str(each.stop),
                    "calls": each.calls,
                    "tokens": each.core.num_written,
                    "text": each.text,
                }
                for tree in self._trees
                for each in tree.trajectories
            ]
        )

    def __repr__(self) -> str:
        leaves = sum(map(len, self._trees))
        mean = "no rewards" if self.mean is None else f"mean {self.mean:.3g}"
        return f"Trees({len(self)} trees, {leaves} trajectories, {mean})"

    def _repr_html_(self) -> str:
        table = self.summary()
        return html_table(table.columns, table)


def _right(tree: Tree) -> int | None:
    """Return how many trajectories are right, by the part `correct` of their rewards; None without this part."""
    parts = [reward.parts["correct"] for reward in tree.rewards or () if "correct" in reward.parts]
    return sum(value >= 1 for value in parts) if parts else None


def as_trees(trees: "Trees | Tree | Iterable[Tree]", what: str) -> Trees:
    """Return trees of whatever holds them; `what` begins the message.

    Raises:
        ConfigError: It holds none.
    """
    if isinstance(trees, Trees):
        return trees
    expected = f"{what}: expected trees of agent.rollout or of a run"
    require(trees, Iterable, expected)
    listed = [trees] if isinstance(trees, Tree) else list(trees)
    for tree in listed:
        require(tree, Tree, expected)
    return Trees(listed)


def with_rewards(tree: Tree, rewards: Sequence[Reward]) -> Tree:
    """Return a tree with other rewards, and no credit."""
    return replace(tree, rewards=tuple(rewards), credit=None, is_learned=True)
