"""Trees at random, and by hand: for tests of credit, packing and the update."""

from dataclasses import replace

import numpy as np

from ramify.algos.sft import counted_once
from ramify.core.messages import Message, Problem
from ramify.core.records import (
    NO_ANNOTATIONS,
    AnnotatedTree,
    CreditedTree,
    Reward,
    TrainingTree,
    behavior_annotations,
)
from ramify.core.tree import Cut, Node, Source, StopReason, TreeKey, make_tree, node_id

PROBLEM = Problem("p", (Message.of("user", "?"),), ("1",))


def node(path, source, tokens, leaf=False, **changes):
    logprobs = (-1.0,) * len(tokens) if source is Source.POLICY else ()
    return Node(
        id=node_id(path),
        path=path,
        parent=node_id(path[:-1]) if path else None,
        source=source,
        token_ids=tuple(int(token) for token in tokens),
        text="",
        behavior_logprobs=logprobs,
        stop=StopReason.ANSWERED if leaf else None,
        **changes,
    )


def tree_of(nodes):
    return make_tree(PROBLEM, TreeKey(0, 0), nodes)


def forked_tree(*leaves, root=None):
    """A turn of two tokens and a result, below which each of `leaves` ends; `root` is a leaf of its own."""
    below = [node((0, 0, i), Source.POLICY, tokens, leaf=True) for i, tokens in enumerate(leaves)]
    beside = [] if root is None else [node((1,), Source.POLICY, root, leaf=True)]
    trunk = [node((), Source.PROMPT, [5]), node((0,), Source.POLICY, [1, 2]), node((0, 0), Source.TOOL, [9])]
    return tree_of([*trunk, *below, *beside])


def maybe_cut(rng, path, sizes):
    """In one of five cases a place inside a node above `path`, if there is one; `sizes` are tokens by path."""
    if rng.random() >= 0.2:
        return "parent"
    above = path[: rng.integers(len(path))]
    most = sizes[above] - (above == path[:-1])
    return Cut(node_id(above), int(rng.integers(1, most + 1))) if most > 0 else "parent"


def random_tree(rng, depth=3, contexts=True, vocab=50, split_turns=False, bushy=True):
    """Two or three roots; at least one path has `depth` turns; some nodes are empty.

    With `contexts`, some results stand in a fresh context, and unless it is "fresh" some results and turns go on from inside a
    node above them.

    With `split_turns`, some turns are in two nodes, of which the second may be one of several. One to three turns
    follow each tool result: two on average, or with `bushy` off one and a half.
    """
    nodes = [node((), Source.PROMPT, rng.integers(2, vocab, rng.integers(1, 6)))]
    sizes = {(): len(nodes[0].token_ids)}

    def add(path, source, tokens, context="parent", **changes):
        if contexts is True and context == "parent":
            context = maybe_cut(rng, path, sizes)
        nodes.append(node(path, source, tokens, context=context, **changes))
        sizes[path] = len(tokens)

    def grow(path, level, longest):
        if split_turns and rng.random() < 0.3:
            add(path, Source.POLICY, rng.integers(2, vocab, rng.integers(1, 4)))
            parts = rng.integers(1, 3)
            for part in range(parts):
                finish((*path, part), level, longest and part == parts - 1)
        else:
            finish(path, level, longest)

    def finish(path, level, longest):
        ends = level == depth or (not longest and rng.random() < 0.3)
        add(path, Source.POLICY, rng.integers(2, vocab, rng.integers(1, 6)), leaf=ends)
        if ends:
            return
        tool = (*path, 0)
        fresh = bool(contexts and rng.random() < 0.25)
        tokens = rng.integers(2, vocab, rng.integers(1 if fresh or not contexts else 0, 5))
        add(tool, Source.TOOL, tokens, "fresh" if fresh else "parent")
        children = rng.integers(1, 4) if bushy else 1 + rng.binomial(2, 0.25)
        for child in range(children):
            grow((*tool, child), level + 1, longest and child == children - 1)

    roots = rng.integers(2, 4)
    for root in range(roots):
        grow((root,), 1, root == 0)
    return tree_of(nodes)


def random_advantages(rng, tree):
    """A number of either sign for each written token of each trajectory."""
    return tuple(rng.normal(size=trajectory.num_written) for trajectory in tree.trajectories)


def with_behavior(tree, logprobs):
    """The tree with other behavior logprobs, given by node id."""
    nodes = [
        replace(n, behavior_logprobs=tuple(map(float, logprobs[n.id]))) if n.source is Source.POLICY else n
        for n in tree.nodes
    ]
    return make_tree(tree.problem, tree.key, nodes, list(tree.decisions))


def written_arrays(tree, make):
    """One array for each policy node, made from its size."""
    return {n.id: np.asarray(make(len(n.token_ids))) for n in tree.nodes if n.source is Source.POLICY}


def training(tree, advantages, rho=None, loss_mask=None, annotations=None):
    """The record of a tree to learn from; the old logprobs are the engine's unless annotations are given."""
    known = behavior_annotations(tree) if annotations is None else annotations
    return TrainingTree(tree, known, tuple(advantages), None if rho is None else tuple(rho), loss_mask)


def annotated(tree, rewards=None, annotations=NO_ANNOTATIONS):
    """The record of an annotated tree; rewards are 0 unless they are given."""
    paid = [Reward(0.0, {})] * len(tree.trajectories) if rewards is None else rewards
    return AnnotatedTree(tree, tuple(paid), annotations)


def credited(trees, credits, annotations=None):
    """The records of trees with credit."""
    known = map(behavior_annotations, trees) if annotations is None else annotations
    return [CreditedTree(*each) for each in zip(trees, known, credits, strict=True)]


def supervised_credit(tree):
    """Credit 1 at each written token, by node id."""
    return counted_once(tree).credit


def sampled(rng, tree, typical):
    """The tree with logprobs around `typical`, nats, and entropies."""
    nodes = [
        replace(
            node,
            behavior_logprobs=tuple(np.minimum(rng.normal(typical, 0.1, len(node.token_ids)), 0).tolist()),
            token_entropies=tuple(rng.uniform(0, 2, len(node.token_ids)).tolist()),
        )
        if node.source is Source.POLICY
        else node
        for node in tree.nodes
    ]
    return make_tree(tree.problem, tree.key, nodes)


def some_rewards(rng, tree):
    """A reward for each trajectory, right ones among them."""
    values = rng.choice([-1.0, 0.0, 1.0, 1.1], len(tree.trajectories))
    return tuple(Reward(float(v), {"correct": float(v > 0), "format": 1.0}) for v in values)
