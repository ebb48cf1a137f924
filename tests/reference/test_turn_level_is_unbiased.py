"""`turn_level` follows the exact gradient where the policy itself decides when to stop.

A toy of up to three turns: option 0 of a turn ends the trajectory, the others go on to a tool result, after which a fixed
function of the prefix says whether the tree branches. All groups are enumerated with their probabilities.
"""

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

from ramify.algos.credit import Weighting, credit
from ramify.algos.turn_level import TurnLevel
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import annotated, node, training, tree_of


class Stopping:
    """A policy over turns with `options` each, what each turn earns, and the prefixes after which a tree branches."""

    def __init__(self, seed, options=(3, 2, 2), branches=False):
        rng = np.random.default_rng(seed)
        shapes = [options[: turn + 1] for turn in range(len(options))]
        self.logits = [
            torch.tensor(rng.normal(size=s), dtype=torch.float64, requires_grad=True) for s in shapes
        ]
        self.tables = [torch.log_softmax(x, -1) for x in self.logits]
        self.paid = [rng.normal(size=shape) for shape in shapes]
        self.forks = [(rng.random(shape) < 0.8) & branches for shape in shapes]

    def is_over(self, prefix):
        return bool(prefix) and (prefix[-1] == 0 or len(prefix) == len(self.tables))

    def logprob(self, prefix):
        """Logprob of the last choice."""
        return self.tables[len(prefix) - 1][prefix]

    def subtrees(self, prefix=(), num=None):
        """(probability, choices) of all that can hang below a prefix, as `num` children."""
        if self.is_over(prefix):
            return [(1.0, ())]
        options = [
            (float(self.logprob((*prefix, x)).detach().exp()) * p, (x, below))
            for x in range(self.tables[len(prefix)].shape[-1])
            for p, below in self.subtrees((*prefix, x))
        ]
        children = num or (2 if prefix and self.forks[len(prefix) - 1][prefix] else 1)
        return [
            (math.prod(p for p, _ in combination), tuple(c for _, c in combination))
            for combination in itertools.product(options, repeat=children)
        ]

    def paths(self, prefix=()):
        """All whole trajectories."""
        if self.is_over(prefix):
            return [prefix]
        return [p for x in range(self.tables[len(prefix)].shape[-1]) for p in self.paths((*prefix, x))]

    def return_from(self, path, turn, discount):
        return sum(
            discount ** (later - turn) * self.paid[later][path[: later + 1]]
            for later in range(turn, len(path))
        )

    def gradient(self, coefficients):
        """Gradient of the sum of the logprobs of choices, each with its coefficient."""
        total = sum(c * self.logprob(prefix) for prefix, c in coefficients.items())
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, self.logits, retain_graph=True)])

    def exact(self, discount):
        """E of the sum over turns of grad ln pi times the return from there on; with a discount of 1 that is grad E[R]."""
        coefficients = Counter()
        for path in self.paths():
            p = float(sum(self.logprob(path[: i + 1]) for i in range(len(path))).detach().exp())
            for turn in range(len(path)):
                coefficients[path[: turn + 1]] += p * self.return_from(path, turn, discount)
        return self.gradient(coefficients)


def build(roots):
    """The tree of some roots, and each policy node's choices up to and with its own."""
    nodes, prefixes = [node((), Source.PROMPT, [9])], {}

    def add(path, prefix, below):
        nodes.append(node(path, Source.POLICY, [prefix[-1]], leaf=not below))
        prefixes[nodes[-1].id] = prefix
        if below:
            nodes.append(node((*path, 0), Source.TOOL, [9]))
        for i, (x, deeper) in enumerate(below):
            add((*path, 0, i), (*prefix, x), deeper)

    for root, (x, below) in enumerate(roots):
        add((root,), (x,), below)
    return tree_of(nodes), prefixes


@cache
def groups(toy, num_roots):
    """(probability, tree, choices by node) of all groups; the roots of a group are interchangeable."""
    trees = [(p, root) for p, (root,) in toy.subtrees(num=1)]
    result = []
    for combination in itertools.combinations_with_replacement(range(len(trees)), num_roots):
        orders = math.factorial(num_roots)
        for times in Counter(combination).values():
            orders //= math.factorial(times)
        probability = orders * math.prod(trees[i][0] for i in combination)
        result.append((probability, *build([trees[i][1] for i in combination])))
    return result


def expected(toy, num_roots, shared, discount):
    """The expectation of the estimator's gradient, by node's choices."""
    estimator, coefficients = TurnLevel(shared, discount=discount, scale="none"), Counter()
    for probability, tree, prefixes in groups(toy, num_roots):
        rewards = []
        for trajectory in tree.trajectories:
            earned = {
                n.id: toy.paid[len(prefixes[n.id]) - 1][prefixes[n.id]] for n in trajectory.policy_nodes
            }
            rewards.append(Reward(sum(earned.values()), {}, earned))
        advantages = estimator.advantages(annotated(tree, rewards), ())
        for identifier, c in credit(training(tree, advantages), Weighting(shared)).items():
            coefficients[prefixes[identifier]] += probability * float(c.s_plus[0] + c.s_minus[0])
    return toy.gradient(coefficients)


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("num_roots", [2, 3, 4])
@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_of_flat_groups_is_exact_in_expectation(seed, num_roots, discount):
    toy = Stopping(seed)
    gradient = expected(toy, num_roots, "repeat", discount)
    assert torch.allclose(gradient, num_roots * toy.exact(discount), rtol=0, atol=1e-9)


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("seed", range(2))
def test_so_it_is_on_trees_by_mass(seed, discount):
    toy = Stopping(seed, options=(2, 2, 2), branches=True)
    assert sum(p for p, _, _ in groups(toy, 2)) == pytest.approx(1.0)
    assert any(len(tree.trajectories) > 2 for _, tree, _ in groups(toy, 2))
    gradient = expected(toy, 2, "mass", discount)
    assert torch.allclose(gradient, 2 * toy.exact(discount), rtol=0, atol=1e-9)


def test_the_exact_gradient_is_that_of_the_mean_return():
    toy = Stopping(3)
    mean = sum(
        sum(toy.logprob(path[: i + 1]) for i in range(len(path))).exp() * toy.return_from(path, 0, 1.0)
        for path in toy.paths()
    )
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(mean, toy.logits, retain_graph=True)])
    assert torch.allclose(toy.exact(1.0), gradient, rtol=0, atol=1e-12)
