"""`mass` follows the exact gradient of E[R] when branching depends on the prefix only; `repeat`, `split` do not.

A toy of three choices a | tool | b | tool | c, where whether to branch after a tool result is a fixed function of
what came before. All trees that one root can grow into are enumerated with their probabilities.
"""

import itertools

import numpy as np
import pytest
import torch

from ramify.algos.ops import credit, leaf_masses
from ramify.core.tree import Source
from random_trees import node, tree_of

NUM_A, NUM_B, NUM_C = 3, 2, 2


class Toy:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        shapes = [(NUM_A,), (NUM_A, NUM_B), (NUM_A, NUM_B, NUM_C)]
        self.logits = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
        self.tables = [torch.log_softmax(x, -1) for x in self.logits]
        self.reward = rng.random((NUM_A, NUM_B, NUM_C))
        self.branch_a = rng.random(NUM_A) < 0.6
        self.branch_b = rng.random((NUM_A, NUM_B)) < 0.5

    def prob(self, *choice):
        return float(self.tables[len(choice) - 1][choice].detach().exp())

    def subtrees(self, prefix):
        """(probability, choices below) of all that can hang at the tool node after `prefix`."""
        level = len(prefix)
        if level == 3:
            return [(1.0, ())]
        forks = self.branch_a[prefix] if level == 1 else level == 2 and self.branch_b[prefix]
        options = [
            (self.prob(*prefix, x) * p, (x, below))
            for x in range((NUM_A, NUM_B, NUM_C)[level])
            for p, below in self.subtrees((*prefix, x))
        ]
        return [
            (float(np.prod([p for p, _ in combination])), tuple(c for _, c in combination))
            for combination in itertools.product(options, repeat=2 if forks else 1)
        ]

    def exact(self):
        value = sum(
            (self.tables[0][a] + self.tables[1][a, b] + self.tables[2][a, b, c]).exp() * self.reward[a, b, c]
            for a, b, c in np.ndindex(self.reward.shape)
        )
        return float(value.detach()), self.flat_gradient(value)

    def flat_gradient(self, value):
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, self.logits, retain_graph=True)])


def build(choices):
    """The tree of one root, and each policy node's choices up to and with its own."""
    nodes, prefixes = [node((), Source.PROMPT, [9])], {}

    def add(path, prefix, below):
        leaf = not below
        nodes.append(node(path, Source.POLICY, [prefix[-1]], leaf=leaf))
        prefixes[nodes[-1].id] = prefix
        if not leaf:
            nodes.append(node((*path, 0), Source.TOOL, [9]))
        for i, (x, deeper) in enumerate(below):
            add((*path, 0, i), (*prefix, x), deeper)

    ((a, below),) = choices
    add((0,), (a,), below)
    return tree_of(nodes), prefixes


def expected_gradient(toy, shared, baseline):
    """Expectation over trees of sum (S+ + S-) grad ln pi: the unclipped surrogate at ratio 1."""
    total = torch.zeros((), dtype=torch.float64)
    for probability, choices in toy.subtrees(()):
        tree, prefixes = build(choices)
        rewards = [toy.reward[prefixes[t.leaf.id]] for t in tree.trajectories]
        advantages = [
            np.full(t.num_written, r - baseline) for t, r in zip(tree.trajectories, rewards, strict=True)
        ]
        for identifier, c in credit(tree, advantages, shared, "soft").items():
            prefix = prefixes[identifier]
            total = (
                total + probability * float(c.s_plus[0] + c.s_minus[0]) * toy.tables[len(prefix) - 1][prefix]
            )
    return toy.flat_gradient(total)


def relative_error(gradient, exact):
    """After the best common scale: a learning rate cannot mend what is left."""
    scale = (gradient @ exact) / (gradient @ gradient)
    return float((scale * gradient - exact).norm() / exact.norm())


def test_the_enumeration_is_complete():
    toy = Toy(0)
    trees = toy.subtrees(())
    assert sum(p for p, _ in trees) == pytest.approx(1.0)
    assert max(len(build(choices)[0].trajectories) for _, choices in trees) == 4
    assert all(leaf_masses(build(choices)[0]).sum() == pytest.approx(1.0) for _, choices in trees)


@pytest.mark.parametrize("seed", range(4))
def test_mass_is_the_exact_gradient(seed):
    toy = Toy(seed)
    value, exact = toy.exact()
    for baseline in (0.0, value):
        assert torch.allclose(expected_gradient(toy, "mass", baseline), exact, atol=1e-12)


@pytest.mark.parametrize("shared", ["repeat", "split"])
def test_repeat_and_split_are_not(shared):
    errors = []
    for seed in range(8):
        toy = Toy(seed)
        value, exact = toy.exact()
        errors.append(relative_error(expected_gradient(toy, shared, value), exact))
    assert np.mean(errors) > 0.05
