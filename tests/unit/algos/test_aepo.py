"""AEPO: entropy-aware advantages, and the four regions of the gradient of its clip."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from loss_inputs import logprob_gradients, token_inputs
from ramify.algos.aepo import EntropyAwareAdvantage, StopGradientClip
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.records import NO_ANNOTATIONS, NodeAnnotations, Reward
from ramify.core.tree import make_tree
from random_trees import annotated, forked_tree

INNER = GroupRelative("repeat", scale="none")
FORKED = forked_tree([3], [3], root=[])
ENTROPIES = {"0": [1.0, 2.0], "0.0.0": [0.5], "0.0.1": [4.0]}
REWARDS = [Reward(number, {}) for number in (1.0, 0.0, 0.5)]


def with_entropies(tree, entropies):
    nodes = [replace(n, token_entropies=tuple(entropies.get(n.id, ()))) for n in tree.nodes]
    return make_tree(tree.problem, tree.key, nodes, list(tree.decisions))


def factors(estimator, tree, annotations=NO_ANNOTATIONS):
    """The factors of the inner advantages of +0.5, -0.5 and 0."""
    known = annotated(tree, REWARDS, annotations)
    arrays = estimator.advantages(known, estimator.batch_statistics([known]))
    assert not arrays[2].any()
    return arrays[0] / 0.5, arrays[1] / -0.5


@pytest.mark.parametrize(
    ("shared", "tokens", "weights"),
    [
        ("repeat", [1, 2, 1, 2, 0.5, 4], [1, 1, 1, 1, 1, 1]),
        ("split", [1, 2, 1, 2, 0.5, 4], [0.5, 0.5, 0.5, 0.5, 1, 1]),
        ("mass", [1, 2, 1, 2, 0.5, 4], [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_the_factor_by_hand(shared, tokens, weights):
    tokens, weights = np.array(tokens), np.array(weights)
    mean = np.average(tokens, weights=weights)
    freedom = weights.sum() - (weights**2).sum() / weights.sum()
    std = np.sqrt((weights * (tokens - mean) ** 2).sum() / freedom)
    first, second = factors(
        EntropyAwareAdvantage(INNER, shared, 0.2, "behavior"), with_entropies(FORKED, ENTROPIES)
    )
    assert first == pytest.approx(1 + 0.2 * (np.array([1, 2, 0.5]) - mean) / std)
    assert second == pytest.approx(1 + 0.2 * (np.array([1, 2, 4]) - mean) / std)


def test_the_factor_is_held_so_that_no_advantage_changes_its_sign():
    first, second = factors(
        EntropyAwareAdvantage(INNER, "repeat", 50.0, "behavior"), with_entropies(FORKED, ENTROPIES)
    )
    assert first.tolist() == [0.5, 2.0, 0.5]
    assert second.tolist() == [0.5, 2.0, 2.0]


@pytest.mark.parametrize("entropy", [0.0, 0.1, 3.3])
def test_equal_entropies_multiply_by_exactly_one(entropy):
    equal = {key: [entropy] * len(values) for key, values in ENTROPIES.items()}
    first, second = factors(
        EntropyAwareAdvantage(INNER, "split", 0.2, "behavior"), with_entropies(FORKED, equal)
    )
    assert (first == 1).all()
    assert (second == 1).all()


@pytest.mark.parametrize(
    ("source", "remedy"),
    [("behavior", 'source = "annotate"'), ("annotate", "Ask the annotation pass")],
)
def test_without_entropies_it_is_refused_and_told_how_to_get_them(source, remedy):
    estimator = EntropyAwareAdvantage(INNER, "repeat", 0.2, source)
    with pytest.raises(ConfigError, match=f"node '0' has no entropies of its tokens. .*{remedy}"):
        estimator.batch_statistics([annotated(FORKED, REWARDS)])
    partly = {
        "0": NodeAnnotations(np.zeros(2), entropies=np.array([1.0, 2.0])),
        "0.0.0": NodeAnnotations(np.zeros(1)),
    }
    tree = with_entropies(FORKED, {"0": [1.0, 2.0]})
    with pytest.raises(ConfigError, match=f"node '0.0.0' has no entropies of its tokens. .*{remedy}"):
        estimator.batch_statistics([annotated(tree, REWARDS, partly)])


def test_an_entropy_that_is_not_finite_is_refused():
    tree = with_entropies(FORKED, ENTROPIES | {"0.0.1": [float("nan")]})
    with pytest.raises(TrainingError, match=r"node '0\.0\.1': an entropy is not finite"):
        EntropyAwareAdvantage(INNER, "repeat", 0.2, "behavior").batch_statistics([annotated(tree, REWARDS)])


LOW, HIGH = 0.2, 0.28


def at(ratio, advantage, paths=None):
    log_ratio = math.log(ratio)
    plus, minus = max(advantage, 0.0), min(advantage, 0.0)
    return token_inputs([plus], [minus], [log_ratio], paths=paths, dtype=torch.float64)


def coefficient(ratio, advantage, dual):
    """F of the paper, and the dual clip."""
    if ratio > 1 + HIGH and advantage > 0:
        return 1 + HIGH
    if ratio < 1 - LOW and advantage < 0:
        return 0.0
    if dual is not None and ratio > dual and advantage < 0:
        return 0.0
    return ratio


def frozen(log_ratio, centre, advantage, dual):
    """min(r A, clip(r, 1 - low, (1 + high) / sg(r) r) A) with sg(r) taken at `centre`, and the dual clip."""
    ratio, held = math.exp(log_ratio), math.exp(centre)
    clipped = min(max(ratio, 1 - LOW), (1 + HIGH) / held * ratio)
    value = min(ratio * advantage, clipped * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 2.9, 3.1, 8.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_numeric_gradient_is_f_in_every_region(ratio, advantage, dual):
    centre, step = math.log(ratio), 1e-7
    above, below = (frozen(centre + sign * step, centre, advantage, dual) for sign in (1, -1))
    numeric = (above - below) / (2 * step)
    assert numeric == pytest.approx(coefficient(ratio, advantage, dual) * advantage, rel=1e-6, abs=1e-6)
    (gradient,) = logprob_gradients(StopGradientClip(LOW, HIGH, dual), at(ratio, advantage))
    assert gradient == pytest.approx(-coefficient(ratio, advantage, dual) * advantage)


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.5, 5.0])
@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_value_and_clip_fraction_are_those_of_ppo(ratio, advantage, dual):
    inputs = at(ratio, advantage)
    ours, theirs = StopGradientClip(LOW, HIGH, dual)(inputs), ClippedSurrogate(LOW, HIGH, dual)(inputs)
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-15)
    assert ours.sums["clip_fraction"] == theirs.sums["clip_fraction"]


def test_the_gradient_above_is_bounded_however_extreme_the_ratio():
    far = token_inputs([1.0, 0.0], [0.0, -1.0], [100.0, -100.0])
    assert logprob_gradients(StopGradientClip(LOW, HIGH, None), far) == pytest.approx([-1.28, 0.0])


def test_the_share_above_the_edge_counts_paths_with_positive_credit():
    inputs = token_inputs(
        [1.0, 1.0, 0.0, 2.0], [0.0, -4.0, -1.0, 0.0], [1.0, 1.0, 1.0, 0.1], paths=[1, 3, 5, 7]
    )
    sums = StopGradientClip(LOW, HIGH, None)(inputs).sums
    assert sums["above_clip_high"] == 1 + 3
    assert sums["clip_fraction"].item() == pytest.approx(1 + 3 / 5)
