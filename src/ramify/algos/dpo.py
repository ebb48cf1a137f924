"""Losses on preferences, DPO, SimPO and ORPO: a pair is a tree with two leaves, the chosen one first.

DPO (arXiv 2305.18290): with h(y) = sum over the written tokens of y of ln pi / pi_ref, the loss of a pair is
-ln sigma(beta (h(chosen) - h(rejected))) (equation 7). Its gradients with respect to h(chosen) and h(rejected) are -s and +s,
s = beta sigma(-beta (h(chosen) - h(rejected))). Tokens that both sides share cancel.

SimPO and ORPO need no reference model. With a(y) the mean of ln pi over the written tokens of y, tokens that both sides share
cancel only if the sides are equally long.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ramify.algos.losses import SequenceInputs, SequenceOutput
from ramify.core.records import AnnotatedTree, Floats, Reward, TrainingTree
from ramify.core.tree import Node, Tree, make_tree, node_id


class _OnPairs:
    """A sequence loss whose mean is one over pairs."""

    __slots__ = ()

    @property
    def needs_paths(self) -> bool:
        """True: see `SequenceLoss`."""
        return True

    @property
    def is_mean_over_trees(self) -> bool:
        """True: the loss of a step is divided by its number of pairs."""
        return True


@dataclass(frozen=True, slots=True)
class DpoLoss(_OnPairs):
    """L = -sum over pairs of ln sigma(beta (h(chosen) - h(rejected))).

    Attributes:
        beta: Above 0; how strongly the reference model holds the policy.
    """

    beta: float

    def __call__(self, inputs: SequenceInputs) -> SequenceOutput:
        """Return the loss and gradients of the pairs of a step.

        Divided by the number of trajectories, the sums are means over pairs: `accuracy` (share of pairs whose chosen
        side has the strictly larger reward), `margin`, `chosen_reward` and `rejected_reward`. A reward is beta h.

        Raises:
            ValueError: Reference logprobs are missing, or a tree is not a pair.
        """
        if inputs.ref_logprobs is None:
            raise ValueError("DPO compares with a reference model: its logprobs are missing")
        _require_pairs(inputs)
        rewards = self.beta * (inputs.policy_logprobs - inputs.ref_logprobs).reshape(-1, 2)
        margins = rewards[:, 0] - rewards[:, 1]
        gradient = self.beta * np.exp(-np.logaddexp(0.0, margins))
        return SequenceOutput(
            loss=float(np.logaddexp(0.0, -margins).sum()),
            gradients=np.stack([-gradient, gradient], axis=1).ravel(),
            sums=_sums(rewards),
        )


@dataclass(frozen=True, slots=True)
class SimPoLoss(_OnPairs):
    """L = -sum over pairs of ln sigma(beta (a(chosen) - a(rejected)) - margin) (arXiv 2405.14734, equation 6).

    Attributes:
        beta: Above 0; the scale of a reward, beta a.
        margin: At least 0, the paper's gamma: what the chosen reward has to be ahead by.
    """

    beta: float
    margin: float

    def __call__(self, inputs: SequenceInputs) -> SequenceOutput:
        """Return the loss and gradients of the pairs of a step; sums as of DPO, with the reward beta a.

        Raises:
            ValueError: A tree is not a pair.
        """
        _require_pairs(inputs)
        lengths = inputs.num_written.reshape(-1, 2)
        rewards = self.beta * inputs.policy_logprobs.reshape(-1, 2) / lengths
        ahead = rewards[:, 0] - rewards[:, 1] - self.margin
        gradient = self.beta * np.exp(-np.logaddexp(0.0, ahead))
        return SequenceOutput(
            loss=float(np.logaddexp(0.0, -ahead).sum()),
            gradients=(np.stack([-gradient, gradient], axis=1) / lengths).ravel(),
            sums=_sums(rewards),
        )


@dataclass(frozen=True, slots=True)
class OrpoLoss(_OnPairs):
    """L = sum over pairs of -a(chosen) - beta ln sigma(o(chosen) - o(rejected)), o = ln p / (1 - p), p = exp a (arXiv 2403.07691, equations 4 to 7).

    Attributes:
        beta: Above 0, the paper's lambda: the weight of the odds ratio beside the likelihood of the chosen side.
    """

    beta: float

    def __call__(self, inputs: SequenceInputs) -> SequenceOutput:
        """Return the loss and gradients of the pairs of a step; sums as of DPO, with the reward beta a.

        Raises:
            ValueError: A tree is not a pair.
        """
        _require_pairs(inputs)
        lengths = inputs.num_written.reshape(-1, 2)
        # At p = 1 the odds have no value.
        means = np.minimum(inputs.policy_logprobs.reshape(-1, 2) / lengths, -1e-12)
        log_rest = np.log(-np.expm1(means))
        odds = means - log_rest
        ratio = odds[:, 0] - odds[:, 1]
        # sigma(-ratio) / (1 - p), of which both factors may leave the range of numbers.
        pull = self.beta * np.exp(-np.logaddexp(0.0, ratio)[:, None] - log_rest)
        gradients = np.stack([-1.0 - pull[:, 0], pull[:, 1]], axis=1) / lengths
        return SequenceOutput(
            loss=float((self.beta * np.logaddexp(0.0, -ratio) - means[:, 0]).sum()),
            gradients=gradients.ravel(),
            sums=_sums(self.beta * means),
        )


PreferenceLoss: TypeAlias = DpoLoss | SimPoLoss | OrpoLoss


def _require_pairs(inputs: SequenceInputs) -> None:
    chosen, rejected = inputs.tree[::2], inputs.tree[1::2]
    if len(chosen) != len(rejected) or (chosen != rejected).any() or len(np.unique(chosen)) < len(chosen):
        raise ValueError("a pair is a tree with two leaves, the chosen one first")


def _sums(rewards: Floats) -> dict[str, float]:
    """Return the sums of a step from the rewards of both sides of each pair. [P, 2]"""
    margins = rewards[:, 0] - rewards[:, 1]
    means = {
        "accuracy": margins > 0,
        "margin": margins,
        "chosen_reward": rewards[:, 0],
        "rejected_reward": rewards[:, 1],
    }
    # Twice, because the sums are divided by the number of trajectories, and each pair has two.
    return {name: 2.0 * float(values.sum()) for name, values in means.items()}


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
