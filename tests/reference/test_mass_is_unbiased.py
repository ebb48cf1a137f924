"""`mass` follows the exact gradient of E[R] when branching depends on the prefix only; `repeat`, `split` do not.

A toy of a few choices a | tool | b | tool | c, where whether to branch after a tool result is a fixed function of
what came before. All trees that roots can grow into are enumerated with their probabilities. What the estimators of
docs/numerics.md, section 4, are off by is printed from there, and the document has to hold what is printed.
"""

import itertools
import math
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.algos.credit import Weighting, credit
from ramify.algos.grpo import GroupRelative
from ramify.algos.ops import leaf_masses
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import annotated, node, training, tree_of

NUMERICS = Path(__file__).parents[2] / "docs" / "numerics.md"


class Toy:
    """Choices of so many options each; one branch after some of the prefixes."""

    def __init__(self, seed, sizes=(3, 2, 2)):
        rng = np.random.default_rng(seed)
        shapes = [sizes[: i + 1] for i in range(len(sizes))]
        self.logits = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
        self.tables = [torch.log_softmax(x, -1) for x in self.logits]
        self.reward = rng.random(sizes)
        self.forks = [rng.random(shape) < 0.55 for shape in shapes[:-1]]

    def prob(self, *choice):
        return float(self.tables[len(choice) - 1][choice].detach().exp())

    def subtrees(self, prefix=()):
        """(probability, choices below) of all that can hang at the tool node after `prefix`."""
        level = len(prefix)
        if level == self.reward.ndim:
            return [(1.0, ())]
        forks = level > 0 and self.forks[level - 1][prefix]
        options = [
            (self.prob(*prefix, x) * p, (x, below))
            for x in range(self.reward.shape[level])
            for p, below in self.subtrees((*prefix, x))
        ]
        return [
            (math.prod(p for p, _ in combination), tuple(c for _, c in combination))
            for combination in itertools.product(options, repeat=2 if forks else 1)
        ]

    def exact(self):
        value = sum(
            sum(table[choice[: i + 1]] for i, table in enumerate(self.tables)).exp() * self.reward[choice]
            for choice in np.ndindex(self.reward.shape)
        )
        return float(value.detach()), self.flat_gradient(value)

    def flat_gradient(self, value):
        return torch.cat([g.flatten() for g in torch.autograd.grad(value, self.logits, retain_graph=True)])


def build(roots):
    """The tree of some roots, and each policy node's choices up to and with its own."""
    nodes, prefixes = [node((), Source.PROMPT, [9])], {}

    def add(path, prefix, below):
        leaf = not below
        nodes.append(node(path, Source.POLICY, [prefix[-1]], leaf=leaf))
        prefixes[nodes[-1].id] = prefix
        if not leaf:
            nodes.append(node((*path, 0), Source.TOOL, [9]))
        for i, (x, deeper) in enumerate(below):
            add((*path, 0, i), (*prefix, x), deeper)

    for root, (a, below) in enumerate(roots):
        add((root,), (a,), below)
    return tree_of(nodes), prefixes


@cache
def groups(toy, num_roots):
    """(probability, tree, each policy node's choices) of all groups of roots, each with its roots in one order: they are
    interchangeable."""
    trees = [(p, root) for p, (root,) in toy.subtrees()]
    result = []
    for combination in itertools.combinations_with_replacement(range(len(trees)), num_roots):
        orders = math.factorial(num_roots)
        for times in Counter(combination).values():
            orders //= math.factorial(times)
        probability = orders * math.prod(trees[i][0] for i in combination)
        result.append((probability, *build([trees[i][1] for i in combination])))
    return result


def expected_gradient(toy, shared, baseline, num_roots=1):
    """Expectation over groups of sum (S+ + S-) grad ln pi: the unclipped surrogate at ratio 1.

    `baseline` is a number, or that of an estimator.
    """
    coefficients = Counter()
    for probability, tree, prefixes in groups(toy, num_roots):
        rewards = [toy.reward[prefixes[t.leaf.id]] for t in tree.trajectories]
        if isinstance(baseline, str):
            estimator = GroupRelative(shared, scale="none", baseline=baseline)
            advantages = estimator.advantages(annotated(tree, [Reward(r, {}) for r in rewards]), ())
        else:
            advantages = [
                np.full(t.num_written, r - baseline) for t, r in zip(tree.trajectories, rewards, strict=True)
            ]
        for identifier, c in credit(training(tree, advantages), Weighting(shared)).items():
            coefficients[prefixes[identifier]] += probability * float(c.s_plus[0] + c.s_minus[0])
    return toy.flat_gradient(sum(c * toy.tables[len(x) - 1][x] for x, c in coefficients.items()))


def relative_error(gradient, exact):
    """After the best common scale: a learning rate cannot mend what is left."""
    scale = (gradient @ exact) / (gradient @ gradient)
    return float((scale * gradient - exact).norm() / exact.norm())


def test_the_enumeration_is_complete():
    toy = Toy(0)
    trees = [(p, tree) for p, tree, _ in groups(toy, 1)]
    assert sum(p for p, _ in trees) == pytest.approx(1.0)
    assert max(len(tree.trajectories) for _, tree in trees) == 4
    assert all(leaf_masses(tree).sum() == pytest.approx(1.0) for _, tree in trees)
    assert sum(p for p, _, _ in groups(Toy(0, (3, 2)), 3)) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_mass_is_the_exact_gradient(seed):
    toy = Toy(seed)
    value, exact = toy.exact()
    for baseline in (0.0, value):
        assert torch.allclose(expected_gradient(toy, "mass", baseline), exact, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_mass_with_the_subtree_left_out_is_the_exact_gradient_of_every_root(seed):
    toy = Toy(seed, (3, 2))
    _, exact = toy.exact()
    gradient = expected_gradient(toy, "mass", "leave_subtree_out", num_roots=2)
    assert torch.allclose(gradient, 2 * exact, atol=1e-12)


@pytest.mark.parametrize("shared", ["repeat", "split"])
def test_repeat_and_split_are_not(shared):
    errors = []
    for seed in range(8):
        toy = Toy(seed)
        value, exact = toy.exact()
        errors.append(relative_error(expected_gradient(toy, shared, value), exact))
    assert np.mean(errors) > 0.05


def trunk_factor(n, d, baseline):
    """Gradient of a token with d of n leaves below it, over that of the same leaves without a baseline.

    The token is one of two, of probabilities 0.3 and 0.7; a leaf below it wins with probability 0.8 or 0.2 after it,
    any other one with probability 0.4. Who wins does not matter, only how many: all counts are enumerated.
    """
    nodes = [node((), Source.PROMPT, [9]), node((0,), Source.POLICY, [1]), node((0, 0), Source.TOOL, [9])]
    nodes += [node((0, 0, i), Source.POLICY, [1], leaf=True) for i in range(d)]
    nodes += [node((i,), Source.POLICY, [1], leaf=True) for i in range(1, n - d + 1)]
    tree, estimator = tree_of(nodes), GroupRelative("repeat", scale="none", baseline=baseline)
    actual = wanted = 0.0
    for (p, win, by_logit), below, beside in itertools.product(
        [(0.3, 0.8, 0.7), (0.7, 0.2, -0.3)], range(d + 1), range(n - d + 1)
    ):
        probability = p * binomial(d, below, win) * binomial(n - d, beside, 0.4)
        wins = [1.0] * below + [0.0] * (d - below) + [1.0] * beside + [0.0] * (n - d - beside)
        advantages = estimator.advantages(annotated(tree, [Reward(r, {}) for r in wins]), ())
        trunk = credit(training(tree, advantages), Weighting("repeat"))["0"]
        actual += probability * by_logit * float(trunk.s_plus[0] + trunk.s_minus[0])
        wanted += probability * by_logit * below
    return actual / wanted


def binomial(trials, successes, chance):
    return math.comb(trials, successes) * chance**successes * (1 - chance) ** (trials - successes)


@pytest.mark.parametrize(("n", "d"), [(2, 1), (4, 1), (4, 3), (7, 5), (5, 5)])
def test_leaving_the_subtree_out_restores_the_trunk(n, d):
    pooled, restored = (trunk_factor(n, d, baseline) for baseline in ("pooled", "leave_subtree_out"))
    assert pooled == pytest.approx(1 - d / n, abs=1e-12)
    assert restored == pytest.approx(float(d < n), abs=1e-12)


@pytest.mark.parametrize("shared", ["repeat", "split"])
@pytest.mark.parametrize(("n", "d"), [(4, 1), (4, 3), (16, 12)])
def test_on_every_draw_the_trunk_is_a_multiple_of_the_pooled_one(shared, n, d):
    rng = np.random.default_rng(n + d)
    nodes = [node((), Source.PROMPT, [9]), node((0,), Source.POLICY, [1]), node((0, 0), Source.TOOL, [9])]
    nodes += [node((0, 0, i), Source.POLICY, [1], leaf=True) for i in range(d)]
    nodes += [node((i,), Source.POLICY, [1], leaf=True) for i in range(1, n - d + 1)]
    tree = tree_of(nodes)
    for _ in range(10):
        rewards = [Reward(float(r), {}) for r in rng.normal(size=n)]
        sums = []
        for baseline in ("pooled", "leave_subtree_out"):
            advantages = GroupRelative(shared, scale="std", baseline=baseline).advantages(
                annotated(tree, rewards), ()
            )
            trunk = credit(training(tree, advantages), Weighting(shared))["0"]
            sums.append(float(trunk.s_plus[0] + trunk.s_minus[0]))
        assert sums[1] == pytest.approx(n / (n - d) * sums[0])


def bias_tables():
    """The two tables of docs/numerics.md, section 4."""
    toys = [Toy(seed, (3, 2)) for seed in range(12)]
    rows = ["| `shared` | baseline E[R] | `pooled` | `leave_subtree_out` |", "| --- | --- | --- | --- |"]
    for shared in ("repeat", "split", "mass"):
        errors = []
        for baseline in (None, "pooled", "leave_subtree_out"):
            each = []
            for toy in toys:
                value, exact = toy.exact()
                gradient = expected_gradient(
                    toy, shared, value if baseline is None else baseline, 1 if baseline is None else 3
                )
                each.append(relative_error(gradient, exact))
            errors.append(f"{abs(np.mean(each)):.3f}")
        rows.append(f"| `{shared}` | {' | '.join(errors)} |")
    leaves = (1, 4, 8, 12, 16)
    rows += [
        "",
        f"| leaves below, of 16 | {' | '.join(map(str, leaves))} |",
        "| --- | " + "--- | " * 4 + "--- |",
    ]
    for baseline in ("pooled", "leave_subtree_out"):
        factors = [f"{abs(trunk_factor(16, d, baseline)):.2f}" for d in leaves]
        rows.append(f"| `{baseline}` | {' | '.join(factors)} |")
    return "\n".join(rows)


def test_the_document_holds_the_table_of_biases():
    tables = bias_tables()
    print(tables)  # noqa: T201
    for table in tables.split("\n\n"):
        assert table in NUMERICS.read_text()
