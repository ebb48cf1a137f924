"""Decisions of recorded trees: the turns of the policy, each after a result or at the start, and a draw among them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramify.algos.ops import leaves_below
from ramify.core.draws import stream
from ramify.core.records import Ints
from ramify.core.tree import Node, Source, StopReason
from ramify.obs.trace import TracedTree

_WORLD_ENDED = (StopReason.FAILED, StopReason.DEADLINE)
"""Ends that say nothing about the turn."""
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Decision:
    """A turn of the policy in a recorded tree.

    Attributes:
        trace: Index of the file of trees among those of the audit.
        row: The tree's place in the file, from 0.
        problem: Id of the problem.
        turn: Number of the turn on its path, from 1.
        before: Id of the node at which the policy began the turn: the prompt, or a reply.
        nodes: Ids of the turn's nodes; two if branches share its first tokens.
        after: Id of the reply, from which others can go on after the turn; None: the turn ended the trajectory.
        reward: The recorded reward, if the turn ended the trajectory.
        entropy: Mean entropy of the turn's first tokens, nats, at least; None: not recorded.
        text: The beginning of the turn.
    """

    trace: int
    row: int
    problem: str
    turn: int
    before: str
    nodes: tuple[str, ...]
    after: str | None
    reward: float | None
    entropy: float | None
    text: str

    @property
    def node(self) -> str:
        """Id of the node that ends the turn, which names the decision."""
        return self.nodes[-1]


def decisions_of(traced: TracedTree, trace: int, row: int) -> Iterator[Decision]:
    """Yield the decisions of a tree that can be resampled, in the order of its nodes.

    Left out are turns above the tree's start, turns without tokens, and those with which no trajectory ended that counts.
    """
    below = leaves_below(traced.tree)
    for node in traced.tree.nodes:
        if node.source is Source.POLICY and node.id not in traced.tree.inherited_ids:
            decision = _decision(traced, node, below, trace, row)
            if decision is not None:
                yield decision


def _decision(
    traced: TracedTree, node: Node, below: Mapping[str, Ints], trace: int, row: int
) -> Decision | None:
    tree = traced.tree
    replies = [child for child in tree.children[node.id] if child.source is Source.TOOL]
    if (not replies and node.stop is None) or not any(traced.rewards[leaf].counts for leaf in below[node.id]):
        return None
    if node.stop in _WORLD_ENDED:
        return None
    path = tree.path_to(node)
    first = len(path)
    while path[first - 1].source is Source.POLICY:
        first -= 1
    turn = path[first:]
    if not any(part.token_ids for part in turn) or any(part.id in tree.inherited_ids for part in turn):
        return None
    before = path[first - 1]
    replied = [each for each in path[:first] if each.source is Source.TOOL]
    entropies = [part.entropy for part in turn if part.entropy is not None]
    return Decision(
        trace=trace,
        row=row,
        problem=tree.problem.id,
        turn=len(replied) + 1,
        before=before.id,
        nodes=tuple(part.id for part in turn),
        after=replies[0].id if replies else None,
        reward=None if replies else traced.rewards[int(below[node.id][0])].value,
        entropy=entropies[0].lower if entropies else None,
        text=_text(turn)[:_MOST_TEXT],
    )


def _text(turn: Sequence[Node]) -> str:
    """Return a turn's text, and after it the calls that do not stand in it: other trainers record them apart."""
    written = "".join(part.text for part in turn)
    calls = [
        f"{call.name}({call.malformed or json.dumps(dict(call.arguments), ensure_ascii=False)})"
        for call in turn[-1].calls
        if call.name not in written
    ]
    return " ".join([*([written] if written else []), *calls])


def draw_decisions(decisions: Iterable[Decision], count: int, seed: int) -> tuple[Decision, ...]:
    """Return `count` of the decisions, each as likely as any other, in the order in which they were drawn.

    A draw is a hash of the seed and the decision's name, so a larger `count` begins with the same ones.
    """

    def order(decision: Decision) -> int:
        return stream(seed, "audit", decision.trace, decision.row, decision.node)

    return tuple(sorted(decisions, key=order)[:count])
