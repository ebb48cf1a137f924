"""Frozen trees of small worlds with executed effects, on which any estimator of credit can be scored without a model."""

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ramify.algos.file_parts import not_numbers
from ramify.assemble.recorded_credit import RecordedAlgorithm
from ramify.core.outcomes import counted
from ramify.core.tree import Node, Tree
from ramify.files.durable import dump_line
from ramify.files.user_code import UserFunction
from ramify.obs.trace import TracedTree, parse_tree, tree_record
from ramify.study.audit import Audit
from ramify.study.credits import credit_of
from ramify.study.decisions import Decision, decisions_of
from ramify.study.effects import Effect, read_effect
from ramify.study.ranking import Ranking

WORLDS = ("quick start", "contrast", "ambiguous")
"""The worlds, by their names in tables."""
_FOLDER = "worlds"


@dataclass(frozen=True)
class BenchWorld:
    """A world's trees, and the effects of decisions in them.

    Attributes:
        name: Of the world.
        about: The commands and seeds that it is the result of.
        trees: All trees of the rollout.
        effects: Of decisions in them; `row` is the place of the tree.
    """

    name: str
    about: Mapping[str, Any]
    trees: tuple[TracedTree, ...]
    effects: tuple[Effect, ...]

    @cached_property
    def audit(self) -> Audit:
        """The effects as an audit."""
        return Audit(self.effects)

    @cached_property
    def _decisions(self) -> list[Decision]:
        by_name = {
            (row, each.node): each
            for row, traced in enumerate(self.trees)
            for each in decisions_of(traced, 0, row)
        }
        return [by_name[effect.row, effect.node] for effect in self.audit.known]

    def rank_algorithm(self, name: str, algorithm: RecordedAlgorithm) -> Ranking:
        """Score an algorithm's estimator.

        Raises:
            ConfigError: It needs what the trees do not hold.
        """
        trees = algorithm.credit(self.trees).trees
        return self.audit.rank(name, [credit_of(each, trees[each.row]) for each in self._decisions])

    def rank_function(self, name: str, function: UserFunction) -> Ranking:
        """Score a function `f(rewards, tree)` of the user's own.

        Raises:
            ConfigError: It raised, or returned neither a number for each trajectory nor numbers of nodes.
        """
        by_node = [_node_scores(self.name, function, traced) for traced in self.trees]
        scores = [_turn_score(each, self.trees, by_node[each.row]) for each in self._decisions]
        if all(score is None for score in scores):
            about = f"world {self.name!r}: "
            raise function.refused(
                "it returned no number of a turn that was resampled", "Return ids of policy nodes", about
            )
        return self.audit.rank(name, scores)


def _node_scores(world: str, function: UserFunction, traced: TracedTree) -> Mapping[str, float]:
    """Return a number for each node that the function has one for; of trajectories, the mean of those through the node."""
    scored = counted(traced)
    if scored is None:
        return {}
    tree, size = scored.tree, len(scored.rewards)
    about = f"world {world!r}, problem {tree.problem.id!r}: "
    returned = function.call(np.array([reward.value for reward in scored.rewards]), tree, about=about)
    if isinstance(returned, Mapping):
        return _checked_nodes(function, tree, returned, about)
    if problem := not_numbers(returned, size):
        remedy = f"Return {size} finite numbers, one for each trajectory, or a mapping of ids of nodes"
        raise function.refused(problem, remedy, about)
    values = np.asarray(returned, dtype=np.float64)
    through: dict[str, list[float]] = {}
    for trajectory, value in zip(scored.tree.trajectories, values, strict=True):
        for node in trajectory.policy_nodes:
            through.setdefault(node.id, []).append(float(value))
    # Divided first, so that sums of large numbers stay finite.
    return {node: sum(value / len(each) for value in each) for node, each in through.items()}


def _checked_nodes(
    function: UserFunction, tree: Tree, returned: Mapping[Any, Any], about: str
) -> dict[str, float]:
    """Return a mapping of a number for each node, as it was returned."""
    if strange := [node for node in returned if node not in tree.by_id]:
        raise function.refused(
            f"it returned a number of node {strange[0]!r:.80}", "Return ids of the tree's nodes", about
        )
    for node, score in returned.items():
        if not_numbers([score], 1):
            raise function.refused(
                f"it returned {score!r:.80} for node {node!r}", "Return a finite number", about
            )
    return {node: float(score) for node, score in returned.items()}


def _turn_score(decision: Decision, trees: Sequence[TracedTree], scores: Mapping[str, float]) -> float | None:
    """Return the mean over the tokens of a turn."""
    by_id = trees[decision.row].tree.by_id
    parts = [(scores[node], len(by_id[node].token_ids)) for node in decision.nodes if node in scores]
    tokens = sum(size for _, size in parts)
    return sum(score * (size / tokens) for score, size in parts) if tokens else None


@cache
def read_world(name: str) -> BenchWorld:
    """Return a world that ships with ramify.

    Raises:
        DataError: Its file is damaged.
    """
    path = files("ramify.study").joinpath(_FOLDER, f"{name.replace(' ', '_')}.jsonl.xz")
    about, *lines = lzma.decompress(path.read_bytes()).splitlines()
    trees, effects = [], []
    for row, line in enumerate(lines, start=2):
        record = json.loads(line)
        if "schema" in record:
            trees.append(parse_tree(Path(f"{path}"), row, line))
        else:
            # Of a file of trees of its own, which does not ship.
            effects.append(read_effect({**record, "line": record["row"] + 1}))
    return BenchWorld(name, json.loads(about), tuple(trees), tuple(effects))


def pack_world(
    about: Mapping[str, Any], trees: Sequence[TracedTree], effects: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return the file of a world. Logprobs and entropies of tokens are rounded to three digits, so that it is small."""
    lines = [
        dump_line(dict(about)),
        *(dump_line(tree_record(TracedTree(_rounded(each.tree), each.rewards))) for each in trees),
        *map(dump_line, effects),
    ]
    content = "".join(f"{line}\n" for line in lines).encode()
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def _rounded(tree: Tree) -> Tree:
    return replace(tree, nodes=tuple(map(_rounded_node, tree.nodes)))


def _rounded_node(node: Node) -> Node:
    def short(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(float(np.float16(value)) for value in values)

    return replace(
        node,
        behavior_logprobs=short(node.behavior_logprobs),
        token_entropies=short(node.token_entropies),
    )
