import numpy as np
import pytest

from ramify.algos.ops import credit, effective_leaves, leaf_masses, normalize, num_paths, token_denominator
from ramify.core.records import Reward
from ramify.core.tree import Source
from random_trees import node, random_advantages, random_tree, tree_of


def hand_tree():
    """Two roots; the first branches in three after its tool result, and one of those in two.

    Leaves: 0.0.0.0.0, 0.0.0.0.1, 0.0.1, 0.0.2, 1 with masses 1/6, 1/6, 1/3, 1/3, 1.
    """
    policy, tool = Source.POLICY, Source.TOOL
    return tree_of(
        [
            node((), Source.PROMPT, [5, 5]),
            node((0,), policy, [1, 2]),
            node((0, 0), tool, [9]),
            node((0, 0, 0), policy, [3]),
            node((0, 0, 0, 0), tool, [9]),
            node((0, 0, 0, 0, 0), policy, [4], leaf=True),
            node((0, 0, 0, 0, 1), policy, [4, 4], leaf=True),
            node((0, 0, 1), policy, [3], leaf=True),
            node((0, 0, 2), policy, [3], leaf=True),
            node((1,), policy, [1], leaf=True),
        ]
    )


def constant(tree, values):
    return [np.full(t.num_written, v) for t, v in zip(tree.trajectories, values, strict=True)]


VALUES = [6.0, -3.0, 1.0, -2.0, 0.5]


def test_paths_and_masses_by_hand():
    tree = hand_tree()
    counts = num_paths(tree)
    assert [counts[k] for k in ("", "0", "0.0", "0.0.0", "0.0.0.0.1", "0.0.2", "1")] == [5, 4, 4, 2, 1, 1, 1]
    assert leaf_masses(tree) == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3, 1])


@pytest.mark.parametrize(
    ("shared", "weight", "plus", "minus"),
    [("repeat", 4, 7, -5), ("split", 1, 7 / 4, -5 / 4), ("mass", 1, 6 / 6 + 1 / 3, -3 / 6 - 2 / 3)],
)
def test_soft_credit_of_a_trunk_by_hand(shared, weight, plus, minus):
    tree = hand_tree()
    trunk = credit(tree, constant(tree, VALUES), shared, "soft")["0"]
    assert trunk.s_plus == pytest.approx([plus] * 2)
    assert trunk.s_minus == pytest.approx([minus] * 2)
    assert trunk.weight == pytest.approx([weight] * 2)
    assert trunk.num_paths == pytest.approx([4, 4])


@pytest.mark.parametrize(
    ("shared", "total", "mean"), [("repeat", 4, 2 / 4), ("split", 1, 2 / 4), ("mass", 1, 3 / 6 - 1 / 3)]
)
def test_hard_credit_of_a_trunk_is_that_of_the_mean(shared, total, mean):
    tree = hand_tree()
    trunk = credit(tree, constant(tree, VALUES), shared, "hard")["0"]
    assert trunk.s_plus == pytest.approx([total * mean] * 2)
    assert trunk.s_minus.tolist() == [0, 0]


def test_leaves_have_their_own_credit_of_one_sign():
    tree = hand_tree()
    for sharing in ("soft", "hard"):
        credits = credit(tree, constant(tree, VALUES), "repeat", sharing)
        assert credits["0.0.0.0.1"].s_minus.tolist() == [-3, -3]
        assert credits["0.0.0.0.1"].s_plus.tolist() == [0, 0]
        assert credits["1"].s_plus.tolist() == [0.5]
    assert credit(tree, constant(tree, VALUES), "mass", "soft")["0.0.1"].s_plus == pytest.approx([1 / 3])


def test_advantages_of_each_token_stay_with_their_token():
    tree = hand_tree()
    values = [np.arange(t.num_written, dtype=float) + 10 * j for j, t in enumerate(tree.trajectories)]
    credits = credit(tree, values, "repeat", "soft")
    assert credits["0"].s_plus.tolist() == [0 + 10 + 20 + 30, 1 + 11 + 21 + 31]
    assert credits["0.0.0.0.1"].s_plus.tolist() == [13, 14]


def test_soft_and_hard_agree_without_clipping():
    rng = np.random.default_rng(0)
    tree = random_tree(rng, depth=4)
    advantages = random_advantages(rng, tree)
    for shared in ("repeat", "split", "mass"):
        soft, hard = (credit(tree, advantages, shared, sharing) for sharing in ("soft", "hard"))
        for key, c in soft.items():
            assert c.s_plus + c.s_minus == pytest.approx(hard[key].s_plus + hard[key].s_minus, abs=1e-12)
            assert c.weight == pytest.approx(hard[key].weight)


def test_credit_is_linear_in_positive_scale_and_swaps_with_sign():
    rng = np.random.default_rng(1)
    tree = random_tree(rng)
    advantages = random_advantages(rng, tree)
    one = credit(tree, advantages, "mass", "soft")
    other = credit(tree, [-2 * a for a in advantages], "mass", "soft")
    for key in one:
        assert other[key].s_plus == pytest.approx(-2 * one[key].s_minus)
        assert other[key].s_minus == pytest.approx(-2 * one[key].s_plus)


def test_denominators():
    tree = hand_tree()
    by_shared = {
        shared: token_denominator([credit(tree, constant(tree, VALUES), shared, "soft")])
        for shared in ("repeat", "split", "mass")
    }
    assert by_shared["repeat"] == sum(t.num_written for t in tree.trajectories)
    assert by_shared["split"] == sum(len(n.token_ids) for n in tree.nodes if n.source is Source.POLICY)
    written = np.array([t.num_written for t in tree.trajectories])
    assert by_shared["mass"] == pytest.approx((leaf_masses(tree) * written).sum())
    dead = credit(tree, constant(tree, [0] * 5), "repeat", "soft")
    assert token_denominator([dead, dead]) == 2 * by_shared["repeat"]


def test_masses_of_a_root_add_up_to_one():
    rng = np.random.default_rng(2)
    for _ in range(20):
        tree = random_tree(rng, depth=4)
        roots = len(tree.children[""])
        assert leaf_masses(tree).sum() == pytest.approx(roots)


def test_advantages_of_the_wrong_length_are_refused():
    tree = hand_tree()
    with pytest.raises(ValueError, match=r"'0\.0\.0\.0\.0': 3 advantages for 4 written"):
        credit(tree, [np.zeros(3)] * 5, "repeat", "soft")


def test_weighted_normalization_equals_the_plain_one_for_equal_masses():
    rewards = [Reward(v, {}) for v in (1.0, 0.0, 0.5, -1.0)]
    values = np.array([r.value for r in rewards])
    plain = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    for mass in (1.0, 0.25):
        assert normalize(rewards, np.full(4, mass)) == pytest.approx(plain, rel=1e-5)


def test_effective_leaves():
    assert effective_leaves(np.full(7, 0.5)) == pytest.approx(7)
    assert effective_leaves(leaf_masses(hand_tree())) == pytest.approx(2**2 / (2 / 36 + 2 / 9 + 1))
