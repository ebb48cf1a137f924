import numpy as np
import pytest

from ramify.algos.grpo import GroupRelative
from ramify.algos.kl import KlInReward
from ramify.algos.reinforce_pp import ReinforcePlusPlus
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.records import NO_ANNOTATIONS, NodeAnnotations, Reward
from ramify.core.tree import Source
from random_trees import annotated, node, tree_of


def forked():
    return tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3], leaf=True),
            node((0, 0, 1), Source.POLICY, [], leaf=True),
        ]
    )


# k1 = 0.5 and -0.25 on the trunk, 1 on the first leaf.
NOTES = {
    "0": NodeAnnotations(np.full(2, -1.0), np.array([-1.5, -0.75])),
    "0.0.0": NodeAnnotations(np.full(1, -1.0), np.array([-2.0])),
}


def rewards(*numbers):
    return [Reward(number, {"correct": number}) for number in numbers]


def test_the_sum_over_all_written_tokens_is_taken_off_the_reward():
    arrays = KlInReward(GroupRelative("repeat", scale="none"), 2.0).advantages(
        annotated(forked(), rewards(1, 0), NOTES), ()
    )
    left = [1 - 2 * 1.25, 0 - 2 * 0.25]
    assert [a.tolist() for a in arrays] == [[left[0] + 1] * 3, [left[1] + 1] * 2]


def test_the_sums_over_the_batch_are_those_of_what_is_left():
    inner, tree = ReinforcePlusPlus("repeat"), forked()
    sums = KlInReward(inner, 2.0).batch_statistics(
        [
            annotated(*one)
            for one in zip([tree, tree], [rewards(1, 0), rewards(0, 0)], [NOTES] * 2, strict=True)
        ]
    )
    left = [rewards(1 - 2.5, -0.5), rewards(-2.5, -0.5)]
    assert sums == pytest.approx(
        inner.batch_statistics([annotated(*one) for one in zip([tree, tree], left, [NOTES] * 2, strict=True)])
    )


def test_equal_rewards_are_told_apart_by_what_they_cost():
    arrays = KlInReward(GroupRelative("repeat", scale="none"), 2.0).advantages(
        annotated(forked(), rewards(1, 1), NOTES), ()
    )
    assert [a.tolist() for a in arrays] == [[-1, -1, -1], [1, 1]]


def test_it_wraps_estimators_that_look_at_the_whole_batch():
    estimator, tree = KlInReward(ReinforcePlusPlus("repeat"), 2.0), forked()
    sums = estimator.batch_statistics(
        [annotated(*one) for one in zip([tree], [rewards(1, 1)], [NOTES], strict=True)]
    )
    arrays = estimator.advantages(annotated(tree, rewards(1, 1), NOTES), sums)
    assert sum(a.sum() for a in arrays) == pytest.approx(0)
    assert arrays[0][0] < 0 < arrays[1][0]


def test_what_is_missing_or_broken_is_said():
    estimator = KlInReward(GroupRelative("repeat"), 1.0)
    for notes in (NO_ANNOTATIONS, {"0": NodeAnnotations(np.zeros(2))}):
        with pytest.raises(ConfigError, match="node '0' has no reference logprobs; ask the annotation pass"):
            estimator.advantages(annotated(forked(), rewards(1, 0), notes), ())
    broken = {**NOTES, "0.0.0": NodeAnnotations(np.zeros(1), np.array([-np.inf]))}
    with pytest.raises(TrainingError, match=r"node '0\.0\.0': a logprob is not finite"):
        estimator.advantages(annotated(forked(), rewards(1, 0), broken), ())
