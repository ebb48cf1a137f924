from dataclasses import astuple, replace

import numpy as np
import pytest

from ramify.algos.aepo import EntropyAwareAdvantage
from ramify.algos.grpo import GroupRelative
from ramify.algos.reinforce_pp import ReinforcePlusPlus
from ramify.core.errors import ConfigError, TrainingError
from ramify.core.records import NO_ANNOTATIONS, NodeAnnotations, Reward
from ramify.core.tree import Source, make_tree
from random_trees import annotated, node, random_tree, tree_of

INNER = GroupRelative("repeat", scale="none")


def forked():
    return tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3], leaf=True),
            node((0, 0, 1), Source.POLICY, [3], leaf=True),
            node((1,), Source.POLICY, [], leaf=True),
        ]
    )


def with_entropies(tree, entropies):
    nodes = [replace(n, token_entropies=tuple(entropies.get(n.id, ()))) for n in tree.nodes]
    return make_tree(tree.problem, tree.key, nodes, list(tree.decisions))


ENTROPIES = {"0": [1.0, 2.0], "0.0.0": [0.5], "0.0.1": [4.0]}
REWARDS = [Reward(number, {}) for number in (1.0, 0.0, 0.5)]


def factors(estimator, tree, notes=NO_ANNOTATIONS):
    """What the inner advantages of +0.5, -0.5 and 0 were multiplied by."""
    sums = estimator.batch_statistics(
        [annotated(*one) for one in zip([tree], [REWARDS], [notes], strict=True)]
    )
    arrays = estimator.advantages(annotated(tree, REWARDS, notes), sums)
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
        EntropyAwareAdvantage(INNER, shared, 0.2, "behavior"), with_entropies(forked(), ENTROPIES)
    )
    assert first == pytest.approx(1 + 0.2 * (np.array([1, 2, 0.5]) - mean) / std)
    assert second == pytest.approx(1 + 0.2 * (np.array([1, 2, 4]) - mean) / std)


def test_both_sources_give_the_same_for_the_same_entropies():
    notes = {
        key: NodeAnnotations(np.zeros(len(values)), entropies=np.array(values))
        for key, values in ENTROPIES.items()
    }
    annotated = factors(EntropyAwareAdvantage(INNER, "repeat", 0.2, "annotate"), forked(), notes)
    behavior = factors(
        EntropyAwareAdvantage(INNER, "repeat", 0.2, "behavior"), with_entropies(forked(), ENTROPIES)
    )
    assert [a.tolist() for a in annotated] == [a.tolist() for a in behavior]


def test_the_factor_is_held_so_that_no_advantage_changes_its_sign():
    first, second = factors(
        EntropyAwareAdvantage(INNER, "repeat", 50.0, "behavior"), with_entropies(forked(), ENTROPIES)
    )
    assert first.tolist() == [0.5, 2.0, 0.5]
    assert second.tolist() == [0.5, 2.0, 2.0]


@pytest.mark.parametrize("entropy", [0.0, 0.1, 3.3])
def test_equal_entropies_multiply_by_exactly_one(entropy):
    equal = {key: [entropy] * len(values) for key, values in ENTROPIES.items()}
    first, second = factors(
        EntropyAwareAdvantage(INNER, "split", 0.2, "behavior"), with_entropies(forked(), equal)
    )
    assert (first == 1).all()
    assert (second == 1).all()


@pytest.mark.parametrize(
    ("source", "remedy"),
    [("behavior", 'source = "annotate"'), ("annotate", "ask the annotation pass for entropies")],
)
def test_without_entropies_it_is_refused_and_told_how_to_get_them(source, remedy):
    estimator = EntropyAwareAdvantage(INNER, "repeat", 0.2, source)
    with pytest.raises(ConfigError, match=f"node '0' has no entropies of its tokens; .*{remedy}"):
        estimator.batch_statistics(
            [annotated(*one) for one in zip([forked()], [REWARDS], [NO_ANNOTATIONS], strict=True)]
        )
    partly = {
        "0": NodeAnnotations(np.zeros(2), entropies=np.array([1.0, 2.0])),
        "0.0.0": NodeAnnotations(np.zeros(1)),
    }
    tree = with_entropies(forked(), {"0": [1.0, 2.0]})
    with pytest.raises(ConfigError, match=f"node '0.0.0' has no entropies of its tokens; .*{remedy}"):
        estimator.batch_statistics([annotated(*one) for one in zip([tree], [REWARDS], [partly], strict=True)])


def test_an_entropy_that_is_not_finite_is_refused():
    tree = with_entropies(forked(), ENTROPIES | {"0.0.1": [float("nan")]})
    with pytest.raises(TrainingError, match=r"node '0\.0\.1': an entropy is not finite"):
        EntropyAwareAdvantage(INNER, "repeat", 0.2, "behavior").batch_statistics(
            [annotated(*one) for one in zip([tree], [REWARDS], [NO_ANNOTATIONS], strict=True)]
        )


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
def test_statistics_do_not_depend_on_how_the_batch_is_cut(shared):
    rng = np.random.default_rng(4)
    trees, rewards = [], []
    for _ in range(6):
        tree = random_tree(rng)
        trees.append(
            with_entropies(tree, {n.id: rng.gamma(1, 1, len(n.behavior_logprobs)) for n in tree.nodes})
        )
        rewards.append([Reward(float(r), {}) for r in rng.normal(size=len(tree.trajectories))])
    estimator = EntropyAwareAdvantage(ReinforcePlusPlus(shared), shared, 0.2, "behavior")
    notes = [NO_ANNOTATIONS] * 6
    whole = estimator.batch_statistics([annotated(*one) for one in zip(trees, rewards, notes, strict=True)])
    for cut in range(7):
        parts = [
            estimator.batch_statistics(
                [annotated(*one) for one in zip(trees[part], rewards[part], notes[part], strict=True)]
            )
            for part in (slice(cut), slice(cut, None))
        ]
        added = [one + other for one, other in zip(*parts, strict=True)]
        assert [astuple(sums) for sums in added] == [pytest.approx(astuple(s), rel=1e-13) for s in whole]
        for tree, given in zip(trees, rewards, strict=True):
            one, other = (estimator.advantages(annotated(tree, given), sums) for sums in (whole, added))
            assert np.concatenate(one) == pytest.approx(np.concatenate(other), rel=1e-9)
