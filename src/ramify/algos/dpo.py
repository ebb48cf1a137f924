"""Direct preference optimization (arXiv 2305.18290): a pair is a tree with two leaves, the chosen one first.

With h(y) = sum over the written tokens of y of ln pi / pi_ref, the loss of a pair is -ln sigma(beta (h(chosen) -
h(rejected))) (equation 7). Its gradients with respect to h(chosen) and h(rejected) are -s and +s, s = beta sigma(-beta
(h(chosen) - h(rejected))). Tokens that both sides share cancel.
"""

from dataclasses import dataclass, replace

import numpy as np

from ramify.algos.losses import SequenceInputs, SequenceOutput
from ramify.core.records import AnnotatedTree, Reward, TrainingTree
from ramify.core.tree import Node, Tree, make_tree, node_id


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """L = -sum over pairs of ln sigma(beta (h(chosen) - h(rejected))).

    Attributes:
        beta: Above 0; how strongly the reference model holds the policy.
    """

    beta: float

    @property
    def needs_paths(self) -> bool:
        """True: see `SequenceLoss`."""
        return True

    @property
    def is_mean_over_trees(self) -> bool:
        """True: the loss of a step is divided by its number of pairs."""
        return True

    def __call__(self, inputs: SequenceInputs) -> SequenceOutput:
        """Return the loss and gradients of the pairs of a step.

        Divided by the number of trajectories, the sums are means over pairs: `accuracy` (share of pairs whose chosen
        side has the strictly larger reward), `margin`, `chosen_reward` and `rejected_reward`. A reward is beta h.

        Raises:
            ValueError: Reference logprobs are missing, or a tree is not a pair.
        """
        if inputs.ref_logprobs is None:
            raise ValueError("DPO compares with a reference model: its logprobs are missing")
        chosen, rejected = inputs.tree[::2], inputs.tree[1::2]
        if len(chosen) != len(rejected) or (chosen != rejected).any() or len(np.unique(chosen)) < len(chosen):
            raise ValueError("a pair is a tree with two leaves, the chosen one first")
        rewards = self.beta * (inputs.policy_logprobs - inputs.ref_logprobs).reshape(-1, 2)
        margins = rewards[:, 0] - rewards[:, 1]
        gradient = self.beta * np.exp(-np.logaddexp(0.0, margins))
        means = {
            "accuracy": margins > 0,
            "margin": margins,
            "chosen_reward": rewards[:, 0],
            "rejected_reward": rewards[:, 1],
        }
        return SequenceOutput(
            loss=float(np.logaddexp(0.0, -margins).sum()),
            gradients=np.stack([-gradient, gradient], axis=1).ravel(),
            # Twice, because the sums are divided by the number of trajectories, and each pair has two.
            sums={name: 2.0 * float(values.sum()) for name, values in means.items()},
        )


def pair(chosen: Tree, rejected: Tree) -> Tree:
    """Return two chains from one prompt as a tree with two leaves, the chosen one first.

    The common prefix is stored once: the prompt, and the turns and results that are equal on both sides.

    Raises:
        ValueError: The prompts differ, or the sides are equal.
    """
    ours, theirs = chosen.nodes, rejected.nodes
    shared = 0
    while shared < min(len(ours), len(theirs)) and _same(ours[shared], theirs[shared]):
        shared += 1
    if shared == 0 or shared == min(len(ours), len(theirs)):
        raise ValueError(
            f"problem {chosen.problem.id!r}: a pair needs one prompt and two sides that differ before either ends"
        )
    above = (0,) * (shared - 1)
    paths = [(*above, 1, *(0,) * depth) for depth in range(len(theirs) - shared)]
    moved = [
        replace(node, id=node_id(path), path=path, parent=node_id(path[:-1]))
        for node, path in zip(theirs[shared:], paths, strict=True)
    ]
    return make_tree(chosen.problem, chosen.key, [*ours, *moved])


def _same(node: Node, other: Node) -> bool:
    return (node.source, node.token_ids) == (other.source, other.token_ids)


PREFERENCE = (Reward(1.0, {}), Reward(-1.0, {}))
"""The rewards of a pair's leaves."""


def preferred(pair: AnnotatedTree) -> TrainingTree:
    """Return a pair to learn from: advantage 1 on the chosen side, -1 on the rejected one."""
    chosen, rejected = pair.tree.trajectories
    advantages = (np.ones(chosen.num_written), -np.ones(rejected.num_written))
    return TrainingTree(pair.tree, pair.annotations, advantages)
