import math
from dataclasses import replace

import numpy as np
import pytest

from ramify.algos.dpo import PREFERENCE, DpoLoss, OrpoLoss, SimPoLoss, pair, preferred
from ramify.algos.losses import Objective, SequenceInputs
from ramify.core.tree import Source
from random_trees import annotated, node, tree_of


def inputs(policy, reference, tree=None):
    size = len(policy)
    return SequenceInputs(
        policy_logprobs=np.array(policy),
        old_logprobs=np.zeros(size),
        ref_logprobs=None if reference is None else np.array(reference),
        advantages=np.zeros(size),
        weights=np.ones(size),
        num_written=np.full(size, 3),
        tree=np.repeat(np.arange(size // 2), 2) if tree is None else np.array(tree),
    )


def test_loss_slopes_and_sums_by_hand():
    """Two pairs, beta 0.5: margins 0.5 (2 - (-1)) = 1.5 and 0.5 (-1 - 1) = -1."""
    out = DpoLoss(0.5)(inputs([-3.0, -5.0, -2.0, -2.0], [-5.0, -4.0, -1.0, -3.0]))
    losses = [math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(1.0))]
    assert out.loss == pytest.approx(sum(losses), rel=1e-15)
    gradients = [0.5 / (1 + math.exp(1.5)), 0.5 / (1 + math.exp(-1.0))]
    np.testing.assert_allclose(
        out.gradients, [-gradients[0], gradients[0], -gradients[1], gradients[1]], rtol=1e-15
    )
    means = {name: value / 4 for name, value in out.sums.items()}
    assert means == pytest.approx(
        {"accuracy": 0.5, "margin": 0.25, "chosen_reward": 0.25, "rejected_reward": 0.0}
    )


@pytest.mark.parametrize("far", [1e4, -1e4])
def test_margins_far_from_zero_stay_finite(far):
    out = DpoLoss(1.0)(inputs([far, 0.0], [0.0, 0.0]))
    assert out.loss == pytest.approx(max(-far, 0.0))
    np.testing.assert_allclose(out.gradients, [-1.0, 1.0] if far < 0 else [0.0, 0.0])


@pytest.mark.parametrize("loss", [SimPoLoss(2.0, 1.0), OrpoLoss(0.5)])
@pytest.mark.parametrize(("chosen", "rejected"), [(0.0, -1e4), (-1e4, 0.0), (0.0, 0.0)])
def test_certain_and_impossible_sides_stay_finite(loss, chosen, rejected):
    out = loss(inputs([chosen, rejected], None))
    assert math.isfinite(out.loss)
    assert np.isfinite(out.gradients).all()
    assert out.gradients[0] < 0 or chosen == 0.0
    assert out.gradients[1] >= 0


def test_a_tie_is_no_success():
    assert DpoLoss(1.0)(inputs([-1.0, -1.0], [-1.0, -1.0])).sums["accuracy"] == 0.0


@pytest.mark.parametrize("tree", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1]])
def test_what_is_no_pair(tree):
    with pytest.raises(ValueError, match="two leaves"):
        DpoLoss(1.0)(inputs([0.0] * len(tree), [0.0] * len(tree), tree))


def test_a_reference_is_needed():
    with pytest.raises(ValueError, match="reference"):
        DpoLoss(1.0)(inputs([0.0, 0.0], None))


def chain(*parts):
    """A prompt and turns and results below it, in turn."""
    nodes = [node((), Source.PROMPT, parts[0])]
    for depth, tokens in enumerate(parts[1:], start=1):
        source = Source.POLICY if depth % 2 else Source.TOOL
        nodes.append(node((0,) * depth, source, tokens, leaf=depth == len(parts) - 1))
    return tree_of(nodes)


def contexts(tree):
    return [trajectory.segments[0].token_ids for trajectory in tree.trajectories]


@pytest.mark.parametrize(
    ("chosen", "rejected", "ids"),
    [
        (([5], [6, 7]), ([5], [8]), ["", "0", "1"]),
        (([5], [6], [9], [4]), ([5], [8]), ["", "0", "0.0", "0.0.0", "1"]),
        (([5], [6], [9], [4]), ([5], [6], [9], [3]), ["", "0", "0.0", "0.0.0", "0.0.1"]),
        (([5], [6], [9], [4]), ([5], [6], [8], [4]), ["", "0", "0.0", "0.0.0", "0.1", "0.1.0"]),
        (([5], [6, 1]), ([5], [6], [9], [4, 1]), ["", "0", "1", "1.0", "1.0.0"]),
    ],
)
def test_a_pair_stores_what_both_sides_begin_with_once(chosen, rejected, ids):
    tree = pair(chain(*chosen), chain(*rejected))
    assert [n.id for n in tree.nodes] == ids
    assert contexts(tree) == [tuple(token for part in side for token in part) for side in (chosen, rejected)]


def test_a_turn_is_not_a_result_of_the_same_tokens():
    ours = tree_of([node((), Source.PROMPT, [5]), node((0,), Source.POLICY, [6], leaf=True)])
    theirs = tree_of(
        [
            node((), Source.PROMPT, [5]),
            replace(node((0,), Source.TOOL, [6])),
            node((0, 0), Source.POLICY, [7], leaf=True),
        ]
    )
    assert [n.id for n in pair(ours, theirs).nodes] == ["", "0", "1", "1.0"]


@pytest.mark.parametrize("other", [([4], [7]), ([5], [6]), ([5], [6], [9], [4])])
def test_sides_that_make_no_pair(other):
    with pytest.raises(ValueError, match="two sides"):
        pair(chain([5], [6]), chain(*other))


def test_the_paths_of_pairs():
    trees = [pair(chain([5], [6, 7]), chain([5], [8])), pair(chain([5], [6], [2], [3]), chain([5], [9]))]
    objective = Objective(DpoLoss(0.1))
    learned = [preferred(annotated(tree, PREFERENCE)) for tree in trees]
    assert [[set(a.tolist()) for a in tree.advantages] for tree in learned] == [[{1.0}, {-1.0}]] * 2
    assert objective.denominator(learned) == 2.0
    paths = objective.paths(learned)
    assert paths.num_written.tolist() == [2, 1, 2, 1]
    assert paths.tree.tolist() == [0, 0, 1, 1]
    assert paths.weights.tolist() == [1.0] * 4
