import numpy as np
import pytest

from build import flat_tree
from ramify.algos.ops import token_weights
from ramify.algos.reinforce_pp import ReinforcePlusPlus
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.records import NO_ANNOTATIONS, NodeAnnotations, Reward
from random_trees import annotated, random_tree


def estimated(estimator, trees, numbers, annotations=None):
    rewards = [[Reward(n, {}) for n in group] for group in numbers]
    annotations = [NO_ANNOTATIONS] * len(trees) if annotations is None else annotations
    known = [annotated(*each) for each in zip(trees, rewards, annotations, strict=True)]
    sums = estimator.batch_statistics(known)
    return [estimator.advantages(tree, sums) for tree in known]


def test_each_token_answers_for_the_divergence_from_it_on():
    tree = flat_tree(3, 1)
    notes = {
        "0": NodeAnnotations(np.full(3, -1.0), np.array([-1.5, -1.0, -3.0])),
        "1": NodeAnnotations(np.full(1, -1.0), np.array([-1.0])),
    }
    (arrays,) = estimated(ReinforcePlusPlus("repeat", kl_coefficient=0.1), [tree], [[1.0, 0.0]], [notes])
    # k1 = 0.5, 0, 2 and 0.
    tokens = np.array([1 - 0.25, 1 - 0.2, 1 - 0.2, 0.0])
    expected = (tokens - tokens.mean()) / (tokens.std(ddof=1) + 1e-6)
    assert np.concatenate(arrays) == pytest.approx(expected)


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
def test_advantages_have_mean_zero_and_deviation_one_under_the_weights(shared):
    rng = np.random.default_rng(5)
    trees = [random_tree(rng, depth=4) for _ in range(4)]
    numbers = [list(rng.normal(size=len(tree.trajectories))) for tree in trees]
    arrays = estimated(ReinforcePlusPlus(shared), trees, numbers)
    advantages = np.concatenate([a for own in arrays for a in own])
    weights = np.concatenate([w for tree in trees for w in token_weights(tree, shared)])
    assert (weights * advantages).sum() == pytest.approx(0.0, abs=1e-9)
    freedom = weights.sum() - (weights**2).sum() / weights.sum()
    assert (weights * advantages**2).sum() / freedom == pytest.approx(1.0, rel=1e-4)


def test_equal_rewards_of_one_group_are_an_advantage_in_the_batch():
    arrays = estimated(
        ReinforcePlusPlus("repeat"), [flat_tree(1, 1), flat_tree(1, 1)], [[1.0, 1.0], [0.0, 0.5]]
    )
    assert arrays[0][0][0] > 0


def test_groups_of_one_and_batches_of_one_token():
    assert estimated(ReinforcePlusPlus("repeat"), [flat_tree(1)], [[0.7]])[0][0].tolist() == [0.0]
    assert estimated(ReinforcePlusPlus("repeat"), [flat_tree(0)], [[0.7]])[0][0].tolist() == []
    alone, pair = estimated(
        ReinforcePlusPlus("repeat", group_mean=True), [flat_tree(2), flat_tree(1, 1)], [[0.7], [1, 0]]
    )
    assert alone[0].tolist() == [0.0, 0.0]
    assert pair[0][0] > 0


def test_missing_and_broken_logprobs_are_refused():
    tree, estimator = flat_tree(1, 1), ReinforcePlusPlus("repeat", kl_coefficient=0.1)
    with pytest.raises(ConfigError, match="node '0' has no reference logprobs"):
        estimated(estimator, [tree], [[1.0, 0.0]])
    notes = {key: NodeAnnotations(np.zeros(1), np.array([np.nan])) for key in "01"}
    with pytest.raises(TrainingError, match="node '0': a logprob is not finite"):
        estimated(estimator, [tree], [[1.0, 0.0]], [notes])
