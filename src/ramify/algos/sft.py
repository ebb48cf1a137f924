"""Supervised fine-tuning on trees: each token of a demonstration's assistant turns counts once."""

import numpy as np

from ramify.algos.credit import Weighting
from ramify.algos.losses import LossInputs, LossOutput
from ramify.core.records import NodeCredit
from ramify.core.tree import Source, Tree

SUPERVISED = Weighting(shared="split")
"""A weighting in which each written token counts once."""


def supervised_credit(tree: Tree) -> dict[str, NodeCredit]:
    """Credit whose `s_plus`, `weight` and `num_paths` are 1 at each written token, by node id."""
    return {
        node.id: _counted_once(len(node.token_ids)) for node in tree.nodes if node.source is Source.POLICY
    }


def _counted_once(size: int) -> NodeCredit:
    ones = np.ones(size)
    return NodeCredit(s_plus=ones, s_minus=np.zeros(size), weight=ones, num_paths=ones)


class NegativeLogLikelihood:
    """L = -sum W ln pi."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss, summed over the tokens of a row; `nll` reports it per token."""
        loss = -(inputs.weight * inputs.policy_logprobs).sum()
        return LossOutput(loss, {"nll": -(inputs.num_paths * inputs.policy_logprobs.detach()).sum()})
