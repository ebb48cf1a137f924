"""Seeded trees of the reasoning workload at a quarter of its length: the shape of ARPO's published rollout.

8 of the n = 16 trajectories start from the prompt. After a tool result each living trajectory branches once with
probability 0.5 while the budget lasts; when none lives, one more starts from the prompt. A trajectory makes at most
3 calls. Token ids are random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.rollout.workload import PROMPT, QUARTER, TURN, lengths, results
from ramify.core.messages import Message, Problem
from ramify.core.records import Floats
from ramify.core.tree import Node, NodePath, Source, StopReason, Tree, TreeKey, make_tree, node_id

N = 16
BRANCH_PROBABILITY = 0.5
CALL_PROBABILITY = (0.95, 0.70, 0.50)
"""Chance that a turn calls a tool, by the calls made before it; after three calls none does."""
MAX_RESPONSE = 4096
_FIRST_ID, _END_ID = 100, 8192


def reasoning_tree(seed: int, n: int = N, shorter: int = QUARTER) -> Tree:
    """One tree of n trajectories, n / 2 of them started from the prompt, with all lengths divided by `shorter`.

    Behaviour logprobs are zero until `with_behavior`.
    """
    return _Growth(np.random.default_rng([seed, n]), n, shorter).tree(seed)


def with_behavior(tree: Tree, logprobs: Floats) -> Tree:
    """The tree with behaviour logprobs, given in the order of its policy nodes' tokens. [W]"""
    nodes = []
    start = 0
    for node in tree.nodes:
        if node.source is Source.POLICY:
            stop = start + len(node.token_ids)
            nodes.append(replace(node, behavior_logprobs=tuple(logprobs[start:stop].tolist())))
            start = stop
        else:
            nodes.append(node)
    return make_tree(tree.problem, tree.key, nodes)


def grafted(tree: Tree, other: Tree) -> Tree:
    """The tree with the roots of another one behind its own, under its prompt."""
    roots = len(tree.children[""])
    nodes = list(tree.nodes)
    for node in other.nodes[1:]:
        path = (node.path[0] + roots, *node.path[1:])
        nodes.append(replace(node, id=node_id(path), path=path, parent=node_id(path[:-1])))
    return make_tree(tree.problem, tree.key, nodes)


def under_prompt_of(tree: Tree, other: Tree) -> Tree:
    """The other tree, with the prompt of the first: what `grafted` adds to it."""
    return make_tree(tree.problem, tree.key, [tree.nodes[0], *other.nodes[1:]])


def doubled(tree: Tree, seed: int) -> Tree:
    """The tree with every root twice, the second time with other tokens: twice the tree at the same depth."""
    generator = np.random.default_rng(seed)
    nodes = [
        replace(
            node,
            token_ids=tuple(generator.integers(_FIRST_ID, _END_ID, len(node.token_ids)).tolist()),
        )
        for node in tree.nodes
    ]
    return grafted(tree, make_tree(tree.problem, tree.key, nodes))


def alone(tree: Tree) -> tuple[Tree, ...]:
    """Each trajectory as a tree of its own."""
    chains = []
    for trajectory in tree.trajectories:
        nodes = []
        for depth, node in enumerate(trajectory.nodes):
            path = (0,) * depth
            parent = node_id(path[:-1]) if path else None
            nodes.append(replace(node, id=node_id(path), path=path, parent=parent))
        chains.append(make_tree(tree.problem, tree.key, nodes))
    return tuple(chains)


def one_short_tree(tree: Tree) -> Tree:
    """A chain of few tokens, to warm up on."""
    chain = alone(tree)[0]
    nodes = [
        replace(node, token_ids=node.token_ids[:8], behavior_logprobs=node.behavior_logprobs[:8])
        for node in chain.nodes
    ]
    return make_tree(chain.problem, chain.key, nodes)


@dataclass(frozen=True, slots=True)
class TreeSizes:
    """Token counts of a tree.

    Attributes:
        unique: Tokens of the tree.
        separate: Tokens of its trajectories, each on its own.
        padded: The same with every trajectory as long as the longest.
        unique_written, separate_written: Those that the policy wrote.
        separate_completions: `separate` without prompts.
        unique_pairs, separate_pairs, padded_pairs: (query, key) pairs of causal attention.
    """

    unique: int
    separate: int
    padded: int
    unique_written: int
    separate_written: int
    separate_completions: int
    unique_pairs: int
    separate_pairs: int
    padded_pairs: int


def sizes(trees: Sequence[Tree]) -> TreeSizes:
    """Summed over trees, each padded on its own."""
    counts = [_sizes(tree) for tree in trees]
    return TreeSizes(**{key: sum(count[key] for count in counts) for key in counts[0]})


def _sizes(tree: Tree) -> Mapping[str, int]:
    depth: dict[str, int] = {}
    unique_pairs = 0
    for node in tree.nodes:
        before = depth[node.parent] if node.parent is not None else 0
        depth[node.id] = before + len(node.token_ids)
        unique_pairs += _pairs(depth[node.id]) - _pairs(before)
    whole = [depth[trajectory.leaf.id] for trajectory in tree.trajectories]
    written = [len(node.token_ids) for node in tree.nodes if node.source is Source.POLICY]
    return {
        "unique": sum(len(node.token_ids) for node in tree.nodes),
        "separate": sum(whole),
        "padded": len(whole) * max(whole),
        "unique_written": sum(written),
        "separate_written": sum(trajectory.num_written for trajectory in tree.trajectories),
        "separate_completions": sum(whole) - len(whole) * depth[""],
        "unique_pairs": unique_pairs,
        "separate_pairs": sum(map(_pairs, whole)),
        "padded_pairs": len(whole) * _pairs(max(whole)),
    }


def _pairs(length: int) -> int:
    return length * (length + 1) // 2


@dataclass(slots=True)
class _Growth:
    """A tree in the making."""

    generator: np.random.Generator
    n: int
    shorter: int
    nodes: list[Node] = field(default_factory=list)
    children: dict[NodePath, int] = field(default_factory=dict)

    def tree(self, seed: int) -> Tree:
        """Grow in rounds, as the published loop does."""
        prompt = lengths(self.generator, PROMPT, 1, self.shorter)[0]
        room = MAX_RESPONSE // self.shorter
        self._add((), Source.PROMPT, prompt)
        started = self.n // 2
        living: list[tuple[NodePath, int, int]] = [((), 0, room)] * started
        while living:
            living = [went_on for state in living if (went_on := self._turn(*state))]
            if not living and started < self.n:
                living = [((), 0, room)]
                started += 1
                continue
            for state in list(living):
                if started < self.n and self.generator.random() < BRANCH_PROBABILITY:
                    living.append(state)
                    started += 1
        problem = Problem(id=str(seed), messages=(Message.of("user", ""),), answer=("",))
        return make_tree(problem, TreeKey(0, 0), self.nodes)

    def _turn(self, above: NodePath, calls: int, room: int) -> tuple[NodePath, int, int] | None:
        """Write a turn and, where it calls a tool, its result; None where the trajectory ends."""
        size = min(lengths(self.generator, TURN, 1, self.shorter)[0], room)
        calls_tool = calls < len(CALL_PROBABILITY) and self.generator.random() < CALL_PROBABILITY[calls]
        result = results(self.generator, 1, self.shorter)[0]
        fits = room - size - result > 0
        goes_on = calls_tool and fits
        stop = None if goes_on else StopReason.TOKENS if calls_tool else StopReason.ANSWERED
        path = self._add(above, Source.POLICY, size, stop)
        if not goes_on:
            return None
        return self._add(path, Source.TOOL, result), calls + 1, room - size - result

    def _add(self, above: NodePath, source: Source, size: int, stop: StopReason | None = None) -> NodePath:
        path = above
        if source is not Source.PROMPT:
            index = self.children.get(above, 0)
            self.children[above] = index + 1
            path = (*above, index)
        written = size if source is Source.POLICY else 0
        self.nodes.append(
            Node(
                id=node_id(path),
                path=path,
                parent=None if source is Source.PROMPT else node_id(above),
                source=source,
                token_ids=tuple(self.generator.integers(_FIRST_ID, _END_ID, size).tolist()),
                text="",
                behavior_logprobs=(0.0,) * written,
                stop=stop,
            )
        )
        return path
