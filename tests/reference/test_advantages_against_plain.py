"""Every estimator and every importance weight on random trees, against loops over trajectories and tokens."""

from dataclasses import replace

import numpy as np
import plain_advantages as plain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import are_close
from ramify.algos.aepo import EntropyAwareAdvantage
from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.estimators import NodeValue, TreeGrpo
from ramify.algos.grpo import GroupRelative
from ramify.algos.kl import KlInReward
from ramify.algos.reinforce_pp import ReinforcePlusPlus
from ramify.algos.turn_level import TurnLevel
from ramify.core.records import NodeAnnotations, Reward, behavior_annotations
from ramify.core.tree import Source, make_tree
from random_trees import annotated, random_tree, with_behavior, written_arrays

SHARED = ["repeat", "split", "mass"]
seeds = st.integers(0, 2**32 - 1)
on_random_trees = settings(max_examples=25, deadline=None)
every_weighting = pytest.mark.parametrize("shared", SHARED)


def batch(seed, size=3):
    """Random trees with behavior logprobs and entropies, notes of all kinds, and rewards."""
    rng = np.random.default_rng(seed)
    trees, notes, rewards = [], [], []
    for _ in range(size):
        depth, split_turns = int(rng.integers(1, 5)), bool(rng.random() < 0.5)
        tree = random_tree(rng, depth=depth, split_turns=split_turns, bushy=False)
        tree = with_behavior(tree, written_arrays(tree, lambda n: rng.normal(-1.0, 0.5, n)))
        nodes = [
            replace(n, token_entropies=tuple(rng.gamma(0.5, 2.0, len(n.token_ids))))
            if n.source is Source.POLICY
            else n
            for n in tree.nodes
        ]
        trees.append(make_tree(tree.problem, tree.key, nodes))
        notes.append(
            {
                n.id: NodeAnnotations(
                    *(rng.normal(-1.0, 0.5, (2, len(n.token_ids)))), rng.gamma(1.0, 1.0, len(n.token_ids))
                )
                for n in tree.nodes
                if n.source is Source.POLICY
            }
        )
        rewards.append([float(r) for r in rng.choice([-1.0, 0.0, 0.4, 1.1], len(tree.trajectories))])
    return trees, rewards, notes


def estimated(estimator, trees, rewards, notes):
    """[P][G][T]"""
    given_rewards = [[Reward(value, {}) for value in group] for group in rewards]
    sums = estimator.batch_statistics(
        [annotated(*record) for record in zip(trees, given_rewards, notes, strict=True)]
    )
    return [
        estimator.advantages(annotated(tree, group, annotations), sums)
        for tree, group, annotations in zip(trees, given_rewards, notes, strict=True)
    ]


def assert_equal(actual, expected):
    assert [[len(row) for row in own] for own in actual] == [[len(row) for row in own] for own in expected]
    for own, wanted in zip(actual, expected, strict=True):
        for row, numbers in zip(own, wanted, strict=True):
            assert are_close(row, numbers, 1e-9)


@every_weighting
@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("baseline", ["pooled", "leave_subtree_out"])
@on_random_trees
@given(seed=seeds)
def test_group_relative(shared, scale, baseline, seed):
    trees, rewards, notes = batch(seed)
    expected = [
        plain.group_relative(tree, group, shared, scale, baseline)
        for tree, group in zip(trees, rewards, strict=True)
    ]
    assert_equal(
        estimated(GroupRelative(shared, scale=scale, baseline=baseline), trees, rewards, notes), expected
    )


@every_weighting
@on_random_trees
@given(seed=seeds)
def test_tree_grpo(shared, seed):
    trees, rewards, notes = batch(seed)
    expected = [plain.tree_grpo(tree, group, shared) for tree, group in zip(trees, rewards, strict=True)]
    assert_equal(estimated(TreeGrpo(shared), trees, rewards, notes), expected)


@every_weighting
@on_random_trees
@given(seed=seeds)
def test_node_value(shared, seed):
    trees, rewards, notes = batch(seed)
    expected = [plain.node_value(tree, group, shared) for tree, group in zip(trees, rewards, strict=True)]
    assert_equal(estimated(NodeValue(shared), trees, rewards, notes), expected)


@every_weighting
@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("scale", ["std", "none"])
@on_random_trees
@given(seed=seeds)
def test_turn_level(shared, discount, scale, seed):
    trees, rewards, _ = batch(seed)
    rng = np.random.default_rng(seed)
    for tree, group in zip(trees, rewards, strict=True):
        # What a node was paid is the same in every trajectory through it.
        paid = {n.id: float(rng.choice([-0.5, 0.25, 1.0])) for n in tree.nodes if rng.random() < 0.5}
        events = [{n.id: paid[n.id] for n in t.policy_nodes if n.id in paid} for t in tree.trajectories]
        expected = plain.turn_level(tree, group, events, shared, discount, scale)
        known = annotated(tree, [Reward(r, {}, e) for r, e in zip(group, events, strict=True)], {})
        actual = TurnLevel(shared, discount=discount, scale=scale).advantages(known, ())
        assert_equal([actual], [expected])


@every_weighting
def test_without_events_the_first_turn_has_the_advantage_of_the_group_without_its_subtree(shared):
    trees, rewards, notes = batch(5)
    group = GroupRelative(shared, baseline="leave_subtree_out")
    turns, wanted = (estimated(estimator, trees, rewards, notes) for estimator in (TurnLevel(shared), group))
    for tree, own, other in zip(trees, turns, wanted, strict=True):
        assert len(own) == len(tree.trajectories)
        assert [row[0] for row in own] == pytest.approx([row[0] for row in other], abs=1e-12)


@every_weighting
@pytest.mark.parametrize("group_mean", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@on_random_trees
@given(seed=seeds, recomputed=st.booleans())
def test_reinforce_pp(shared, group_mean, beta, seed, recomputed):
    trees, rewards, notes = batch(seed)
    if not recomputed:
        notes = [
            {
                k: replace(n, old_logprobs=behavior_annotations(tree)[k].old_logprobs)
                for k, n in annotations.items()
            }
            for tree, annotations in zip(trees, notes, strict=True)
        ]
    expected = plain.reinforce_pp(trees, rewards, notes, shared, group_mean, beta)
    actual = estimated(
        ReinforcePlusPlus(shared, group_mean=group_mean, kl_coefficient=beta), trees, rewards, notes
    )
    assert_equal(actual, expected)


@every_weighting
@on_random_trees
@given(seed=seeds)
def test_kl_in_the_reward(shared, seed):
    trees, rewards, notes = batch(seed)
    left = [
        [
            r - 0.3 * sum(plain.k1(tree.by_id[n], annotations, i) for n, i in plain.tokens(trajectory))
            for r, trajectory in zip(group, tree.trajectories, strict=True)
        ]
        for tree, group, annotations in zip(trees, rewards, notes, strict=True)
    ]
    expected = [
        plain.group_relative(tree, group, shared, "none", "pooled")
        for tree, group in zip(trees, left, strict=True)
    ]
    assert_equal(
        estimated(KlInReward(GroupRelative(shared, scale="none"), 0.3), trees, rewards, notes), expected
    )


@every_weighting
@pytest.mark.parametrize("source", ["behavior", "annotate"])
@on_random_trees
@given(seed=seeds)
def test_entropy_aware_advantage(shared, source, seed):
    trees, rewards, notes = batch(seed)
    entropies = [
        {n.id: n.token_entropies for n in tree.nodes}
        if source == "behavior"
        else {k: n.entropies for k, n in annotations.items()}
        for tree, annotations in zip(trees, notes, strict=True)
    ]
    factors = plain.entropy_factors(trees, entropies, shared, 0.4)
    inner = plain.reinforce_pp(trees, rewards, notes, shared, False, 0.0)
    expected = [
        [[a * f for a, f in zip(x, y, strict=True)] for x, y in zip(own, of, strict=True)]
        for own, of in zip(inner, factors, strict=True)
    ]
    estimator = EntropyAwareAdvantage(ReinforcePlusPlus(shared), shared, 0.4, source)
    assert_equal(estimated(estimator, trees, rewards, notes), expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("kind", "cap", "floor"), [("truncate", 2.0, None), ("mask", 2.0, None), ("mask", 1.7, 0.4)]
)
@on_random_trees
@given(seed=seeds)
def test_importance_weights(level, kind, cap, floor, seed):
    trees, _, notes = batch(seed, size=1)
    expected = plain.importance_weights(trees[0], notes[0], level, kind, cap, floor)
    assert_equal(
        [ImportanceCorrection(level, kind, cap, floor).weights(annotated(trees[0], None, notes[0]))],
        [expected],
    )
