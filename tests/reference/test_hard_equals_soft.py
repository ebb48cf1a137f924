"""Hard and soft advantages, and shared tokens taken once with weight d: one gradient, as long as nothing is clipped."""

import numpy as np
import pytest
import torch

from ramify.algos.credit import Weighting, credit, denominator
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.losses import LossInputs
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import annotated, random_tree, training

WIDE = ClippedSurrogate(1 - 1e-9, 1000.0, None)
NARROW = ClippedSurrogate(0.2, 0.2, None)


class World:
    """A random tree, group advantages, and logprobs of its unique tokens that are far from the old ones."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.tree = random_tree(rng, depth=4, split_turns=True)
        rewards = [Reward(float(r), {}) for r in rng.normal(size=len(self.tree.trajectories))]
        self.advantages = GroupRelative("repeat").advantages(annotated(self.tree, rewards), ())
        self.sizes = {n.id: len(n.token_ids) for n in self.tree.nodes if n.source is Source.POLICY}
        self.policy = {
            key: torch.tensor(rng.normal(-1, 0.5, n), requires_grad=True) for key, n in self.sizes.items()
        }
        self.old = {key: torch.tensor(rng.normal(-1, 0.5, n)) for key, n in self.sizes.items()}

    def packed(self, sharing, loss):
        """From the four numbers of each unique token."""
        weighting = Weighting("repeat", sharing)
        credits = credit(training(self.tree, self.advantages), weighting)

        def column(name):
            return torch.cat([torch.tensor(getattr(credits[key], name)) for key in self.sizes])

        policy, old = (torch.cat([table[key] for key in self.sizes]) for table in (self.policy, self.old))
        names = ("s_plus", "s_minus", "weight", "num_paths")
        inputs = LossInputs(*map(column, names), policy, old, torch.zeros_like(old))
        return self.gradient(loss(inputs).loss / denominator([self.tree], weighting))

    def copies(self):
        """Every trajectory with a copy of each of its tokens and its own advantage: sum of r A over (j, t)."""
        total, count = torch.zeros(()), 0
        for trajectory, advantages in zip(self.tree.trajectories, self.advantages, strict=True):
            position = 0
            for n in trajectory.nodes:
                for i in range(self.sizes.get(n.id, 0)):
                    ratio = torch.exp(self.policy[n.id][i] - self.old[n.id][i])
                    total = total - ratio * float(advantages[position])
                    position += 1
            count += position
        return self.gradient(total / count)

    def once_with_weight_d(self):
        """Every unique token once: d r mean(A) over the d trajectories through it."""
        total, count = torch.zeros(()), 0
        for key, size in self.sizes.items():
            through = [j for j, t in enumerate(self.tree.trajectories) if key in [n.id for n in t.nodes]]
            mean = sum(float(self.advantages[j][0]) for j in through if size) / len(through)
            for i in range(size):
                ratio = torch.exp(self.policy[key][i] - self.old[key][i])
                total = total - len(through) * ratio * mean
                count += len(through)
        return self.gradient(total / count)

    def gradient(self, loss):
        parts = torch.autograd.grad(loss, list(self.policy.values()), allow_unused=True)
        return torch.cat(
            [torch.zeros(n) if g is None else g for g, n in zip(parts, self.sizes.values(), strict=True)]
        )


@pytest.mark.parametrize("seed", range(8))
def test_without_clipping_they_agree(seed):
    world = World(seed)
    expected = world.copies()
    assert expected.norm() > 0
    for gradient in (world.packed("soft", WIDE), world.packed("hard", WIDE), world.once_with_weight_d()):
        assert torch.allclose(gradient, expected, rtol=1e-12, atol=1e-14)


def test_with_clipping_they_do_not():
    world = World(0)
    soft, hard = (world.packed(sharing, NARROW) for sharing in ("soft", "hard"))
    assert (soft - hard).norm() > 1e-2 * soft.norm()
