"""Supervised fine-tuning on trees: each token of a demonstration's assistant turns counts once."""

from dataclasses import dataclass

import numpy as np

from ramify.algos.credit import Weighting
from ramify.algos.losses import LossInputs, LossOutput
from ramify.core.records import CreditedTree, NodeCredit, TrainingTree, behavior_annotations
from ramify.core.tree import Source, Tree

SUPERVISED = Weighting(shared="split")
"""A weighting in which each written token counts once."""


def demonstrated(tree: Tree) -> TrainingTree:
    """Return a demonstration to learn from: advantage 1 at each written token."""
    ones = tuple(np.ones(trajectory.num_written) for trajectory in tree.trajectories)
    return TrainingTree(tree, behavior_annotations(tree), ones)


def counted_once(tree: Tree) -> CreditedTree:
    """Return the credit whose `s_plus`, `weight` and `num_paths` are 1 at each written token, for a pass over all of them."""
    policy = (node for node in tree.nodes if node.source is Source.POLICY)
    return CreditedTree(
        tree, behavior_annotations(tree), {node.id: _ones(len(node.token_ids)) for node in policy}
    )


def _ones(size: int) -> NodeCredit:
    ones = np.ones(size)
    return NodeCredit(s_plus=ones, s_minus=np.zeros(size), weight=ones, num_paths=ones)


@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood:
    """L = -sum W ln pi."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss, summed over the tokens of a row; `nll` reports it per token."""
        loss = -(inputs.weight * inputs.policy_logprobs).sum()
        return LossOutput(loss, {"nll": -(inputs.num_paths * inputs.policy_logprobs.detach()).sum()})
