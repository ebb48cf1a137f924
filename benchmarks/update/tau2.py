"""A seeded tree with the shape of tau2's conversations: one long prompt, 12 short turns, 16 leaves.

The prompt holds a policy and the schemas of the tools. A turn is a call or a sentence; what comes back is a tool's JSON
or the words of the user. Each trajectory after the first leaves a random earlier one after a random turn. The lengths
are assumed, not taken from a published run: (median, sigma, least, most) of log-normal draws, all divided by `shorter`.
"""

import numpy as np

from benchmarks.rollout.workload import lengths
from ramify.core.messages import Message, Problem
from ramify.core.tree import Node, NodePath, Source, StopReason, Tree, TreeKey, make_tree, node_id

LEAVES, TURNS = 16, 12
EIGHTH = 8
PROMPT_TOKENS = 4800
WRITTEN = (90, 0.5, 40, 300)
RETURNED = (180, 0.7, 40, 800)
_FIRST_ID, _END_ID = 100, 8192


def tau2_tree(seed: int, leaves: int = LEAVES, turns: int = TURNS, shorter: int = EIGHTH) -> Tree:
    """One tree; behaviour logprobs are zero until `with_behavior`. Token ids are random."""
    generator = np.random.default_rng([seed, leaves, turns])
    children: dict[NodePath, int] = {}
    nodes = [_node(generator, (), Source.PROMPT, PROMPT_TOKENS // shorter)]
    trajectories: list[list[NodePath]] = []
    for number in range(leaves):
        shared: list[NodePath] = [()]
        if number:
            other = trajectories[int(generator.integers(number))]
            shared = other[: int(generator.integers(turns)) + 1]
        places = list(shared)
        for turn in range(len(shared) - 1, turns):
            last = turn == turns - 1
            path = _child(children, places[-1])
            written = lengths(generator, WRITTEN, 1, shorter)[0]
            nodes.append(
                _node(generator, path, Source.POLICY, written, StopReason.ANSWERED if last else None)
            )
            if not last:
                path = _child(children, path)
                nodes.append(_node(generator, path, Source.TOOL, lengths(generator, RETURNED, 1, shorter)[0]))
            places.append(path)
        trajectories.append(places)
    problem = Problem(id=f"tau2-{seed}", messages=(Message.of("user", ""),), answer=("",))
    return make_tree(problem, TreeKey(0, 0), nodes)


def _child(children: dict[NodePath, int], above: NodePath) -> NodePath:
    index = children.get(above, 0)
    children[above] = index + 1
    return (*above, index)


def _node(
    generator: np.random.Generator, path: NodePath, source: Source, size: int, stop: StopReason | None = None
) -> Node:
    return Node(
        id=node_id(path),
        path=path,
        parent=None if source is Source.PROMPT else node_id(path[:-1]),
        source=source,
        token_ids=tuple(generator.integers(_FIRST_ID, _END_ID, size).tolist()),
        text="",
        behavior_logprobs=(0.0,) * size if source is Source.POLICY else (),
        stop=stop,
    )
