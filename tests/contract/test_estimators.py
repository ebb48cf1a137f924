"""Laws of every estimator that a recipe can name, with what acts on rewards and advantages around it."""

from dataclasses import astuple, replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import own_parts
from build import flat_tree
from closeness import are_close
from ramify.assemble.algorithm import build_estimator
from ramify.config.mistakes import form_of
from ramify.config.schema_algorithm import AlgorithmSection, EstimatorSection
from ramify.core.errors import DataError
from ramify.core.records import NodeAnnotations, Reward
from ramify.core.tree import Cut, Source, make_tree, node_id
from random_trees import annotated, random_tree

NAMES = [form_of(s)[1][0] for s in get_args(get_args(EstimatorSection)[0])]
ESTIMATORS = {
    "group": {"name": "group"},
    "group without std": {"name": "group", "scale": "none"},
    "leave_subtree_out": {"name": "group", "scale": "none", "baseline": "leave_subtree_out"},
    "reinforce_pp": {"name": "reinforce_pp"},
    "reinforce_pp with group_mean": {"name": "reinforce_pp", "group_mean": True},
    "tree_grpo": {"name": "tree_grpo"},
    "node_value": {"name": "node_value"},
    "turn_level": {"name": "turn_level"},
    "file": {"name": "file", "path": own_parts.__file__, "function": "advantage"},
}
AROUND = {
    "bare": {},
    "kl": {"kl": {"place": "reward", "estimator": "k1", "coefficient": 0.2}},
    "entropy": {"entropy_advantage": {"weight": 0.3}},
    "both": {
        "kl": {"place": "reward", "estimator": "k1", "coefficient": 0.2},
        "entropy_advantage": {"weight": 0.3, "source": "annotate"},
    },
}
SHARED = ["repeat", "split", "mass"]
weightings = st.sampled_from(SHARED)
seeds = st.integers(0, 2**32 - 1)
on_random_batches = settings(max_examples=8, deadline=None)
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)
every_weighting = pytest.mark.parametrize("shared", SHARED)
everything_around = pytest.mark.parametrize("around", AROUND)


def estimator(name, shared="repeat", around="bare"):
    table = {"estimator": ESTIMATORS[name], "loss": {"name": "clip"}, "shared": shared, **AROUND[around]}
    return build_estimator(AlgorithmSection.model_validate(table))


def dressed(rng, tree):
    """The tree with behavior logprobs and entropies, and notes of all kinds."""
    nodes, notes = [], {}
    for n in tree.nodes:
        if n.source is Source.POLICY:
            size = len(n.token_ids)
            logprobs, entropies = rng.normal(-1.0, 0.4, size), rng.gamma(1.0, 1.0, size)
            n = replace(n, behavior_logprobs=tuple(logprobs), token_entropies=tuple(entropies))
            notes[n.id] = NodeAnnotations(logprobs, rng.normal(-1.0, 0.4, size), entropies)
        nodes.append(n)
    return make_tree(tree.problem, tree.key, nodes), notes


def batch(seed, size=3):
    rng = np.random.default_rng(seed)
    pairs = [dressed(rng, random_tree(rng, depth=3, split_turns=True, bushy=False)) for _ in range(size)]
    trees, notes = map(list, zip(*pairs, strict=True))
    rewards = [[float(r) for r in rng.choice([-1.0, 0.0, 0.4, 1.1], len(t.trajectories))] for t in trees]
    return trees, rewards, notes


def scored(rewards):
    return [[Reward(value, {}) for value in group] for group in rewards]


def estimated(tested, trees, rewards, notes):
    """[P][G][T]"""
    known = [annotated(*each) for each in zip(trees, scored(rewards), notes, strict=True)]
    sums = tested.batch_statistics(known)
    return [tested.advantages(tree, sums) for tree in known]


def all_numbers(arrays):
    return np.concatenate([a for own in arrays for a in own])


def test_all_estimators_are_here():
    assert {table["name"] for table in ESTIMATORS.values()} == set(NAMES)


@every_estimator
@everything_around
@on_random_batches
@given(seed=seeds, shared=weightings)
def test_one_finite_number_for_each_written_token_and_the_same_ones_again(name, shared, around, seed):
    trees, rewards, notes = batch(seed)
    tested = estimator(name, shared, around)
    arrays = estimated(tested, trees, rewards, notes)
    for tree, own in zip(trees, arrays, strict=True):
        assert [len(a) for a in own] == [t.num_written for t in tree.trajectories]
    assert np.isfinite(all_numbers(arrays)).all()
    assert all_numbers(estimated(tested, trees, rewards, notes)).tolist() == all_numbers(arrays).tolist()


@every_weighting
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("group", lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6)),
        ("group without std", lambda r: r - r.mean()),
        ("leave_subtree_out", lambda r: r - (r.sum() - r) / (len(r) - 1)),
        ("tree_grpo", lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6)),
        ("node_value", lambda r: r - r.mean()),
        ("file", lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6)),
    ],
)
def test_a_flat_group_gets_what_the_paper_says(name, shared, published):
    rewards = np.array([1.1, 0.0, -1.0, 0.4])
    (arrays,) = estimated(estimator(name, shared), [flat_tree(1, 3, 0, 2)], [rewards], [{}])
    for array, expected in zip(arrays, published(rewards), strict=True):
        assert array == pytest.approx([expected] * len(array))


@every_weighting
@pytest.mark.parametrize("centred", [False, True])
def test_a_flat_batch_is_whitened_over_its_tokens(centred, shared):
    name = "reinforce_pp with group_mean" if centred else "reinforce_pp"
    arrays = estimated(
        estimator(name, shared), [flat_tree(2, 1), flat_tree(1, 3)], [[1.0, 0.0], [0.5, 0.4]], [{}, {}]
    )
    rewards = np.array([0.5, -0.5, 0.05, -0.05] if centred else [1.0, 0.0, 0.5, 0.4])
    tokens = np.repeat(rewards, [2, 1, 1, 3])
    assert all_numbers(arrays) == pytest.approx((tokens - tokens.mean()) / (tokens.std(ddof=1) + 1e-6))


@every_estimator
@pytest.mark.parametrize("around", ["bare", "entropy"])
def test_equal_rewards_give_exactly_no_advantage(name, around):
    trees, rewards, notes = batch(7)
    for shared, reward in product(SHARED, (0.1, 0.0, -1.0)):
        equal = [[reward] * len(group) for group in rewards]
        assert not all_numbers(estimated(estimator(name, shared, around), trees, equal, notes)).any()


@every_estimator
@everything_around
def test_a_group_of_one_in_a_batch_of_its_own_has_no_advantage(name, around):
    tree, notes = dressed(np.random.default_rng(1), flat_tree(1))
    for shared in SHARED:
        tested = estimator(name, shared, around)
        assert all_numbers(estimated(tested, [tree], [[0.7]], [notes])).tolist() == [0.0]


@every_estimator
@on_random_batches
@given(seed=seeds, shared=weightings)
def test_adding_a_number_to_all_rewards_changes_nothing(name, shared, seed):
    trees, rewards, notes = batch(seed)
    moved = [[r + 3.0 for r in group] for group in rewards]
    plain, shifted = (estimated(estimator(name, shared), trees, r, notes) for r in (rewards, moved))
    assert all_numbers(shifted) == pytest.approx(all_numbers(plain), rel=1e-6, abs=1e-8)


def shuffled(rng, tree, notes):
    """The same tree with the children of each node in another order, its notes, and new ids by old ones."""
    paths = {"": ()}
    for n in tree.nodes:
        order = rng.permutation(len(tree.children[n.id]))
        for child, index in zip(tree.children[n.id], order, strict=True):
            paths[child.id] = (*paths[n.id], int(index))
    names = {old: node_id(path) for old, path in paths.items()}
    nodes = [
        replace(
            n,
            id=names[n.id],
            path=paths[n.id],
            parent=None if n.parent is None else names[n.parent],
            context=Cut(names[n.context.node], n.context.tokens) if isinstance(n.context, Cut) else n.context,
        )
        for n in tree.nodes
    ]
    return make_tree(tree.problem, tree.key, nodes), {names[key]: n for key, n in notes.items()}, names


@every_estimator
@everything_around
@on_random_batches
@given(seed=seeds, shared=weightings)
def test_the_order_of_children_and_of_trees_does_not_matter(name, shared, around, seed):
    trees, rewards, notes = batch(seed)
    tested, rng = estimator(name, shared, around), np.random.default_rng(seed)
    there = []
    for tree, own_rewards, own_notes in zip(trees, rewards, notes, strict=True):
        other, other_notes, names = shuffled(rng, tree, own_notes)
        numbers = {t.leaf.id: j for j, t in enumerate(other.trajectories)}
        places = [numbers[names[t.leaf.id]] for t in tree.trajectories]
        moved = [0.0] * len(places)
        for index, reward in zip(places, own_rewards, strict=True):
            moved[index] = reward
        there.append((other, moved, other_notes, places))
    arrays = estimated(tested, trees, rewards, notes)
    backwards = [list(column) for column in zip(*((t, r, n) for t, r, n, _ in there[::-1]), strict=True)]
    others = estimated(tested, *backwards)[::-1]
    for own, other, (_, _, _, places) in zip(arrays, others, there, strict=True):
        for array, index in zip(own, places, strict=True):
            assert are_close(other[index], array, 1e-9)


@every_estimator
@everything_around
@on_random_batches
@given(seed=seeds, shared=weightings, cut=st.integers(0, 3))
def test_sums_of_parts_of_a_batch_add_up_to_those_of_the_whole(name, shared, around, seed, cut):
    trees, rewards, notes = batch(seed)
    tested = estimator(name, shared, around)
    whole = tested.batch_statistics(
        [annotated(*each) for each in zip(trees, scored(rewards), notes, strict=True)]
    )
    parts = [
        tested.batch_statistics(
            [annotated(*each) for each in zip(trees[part], scored(rewards[part]), notes[part], strict=True)]
        )
        for part in (slice(cut), slice(cut, None))
    ]
    added = [first + second for first, second in zip(*parts, strict=True)]
    assert [astuple(sums) for sums in added] == [
        pytest.approx(astuple(sums), rel=1e-12, abs=1e-12) for sums in whole
    ]
    for tree, group, own_notes in zip(trees, scored(rewards), notes, strict=True):
        known = annotated(tree, group, own_notes)
        plain, summed = (tested.advantages(known, sums) for sums in (whole, added))
        assert are_close(all_numbers([summed]), all_numbers([plain]), 1e-9)


@every_estimator
@everything_around
def test_a_reward_that_is_not_finite_is_refused(name, around):
    trees, rewards, notes = batch(3)
    for rewards[1][1] in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(DataError, match="trajectory 1: the reward function returned no finite number"):
            estimated(estimator(name, "repeat", around), trees, rewards, notes)
