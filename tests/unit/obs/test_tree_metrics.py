"""Metrics of trees against numbers worked out by hand."""

import dataclasses

import numpy as np
import pytest
from obs_trees import SMALL_REWARDS, call, policy, problem, prompt, small_tree, tool

from ramify.core.messages import Calls, ToolStatus
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import StopReason, TreeKey, make_tree
from ramify.obs.tree_metrics import omega, tree_metrics


def flat_tree():
    nodes = [prompt(5), *(policy((i,), 2, stop=StopReason.ANSWERED) for i in range(2))]
    return make_tree(problem("flat"), TreeKey(3, 0), nodes)


def test_small_tree_by_hand():
    metrics = tree_metrics([ScoredTree(small_tree(), SMALL_REWARDS)])
    mean = (0.5 * 1.0 + 0.5 * 0.0 + 1.1) / 2
    variance = (0.5 * (1 - mean) ** 2 + 0.5 * mean**2 + (1.1 - mean) ** 2) / 2
    assert metrics == pytest.approx(
        {
            "reward/mean": mean,
            "reward/leaf_mean": 2.1 / 3,
            "reward/std": variance**0.5,
            "reward/part/correct": 0.75,
            "group/zero_variance": 0.0,
            "group/effective_size": 4 / 1.5,
            "group/roots": 2.0,
            "tokens/written": 10.0,
            "tokens/unique": 18.0,
            "tokens/shared_ratio": (14 + 15 + 6) / 18,
            "calls/per_trajectory": 2 / 3,
            "calls/ok_rate": 1.0,
            "health/written": (6 + 7 + 1) / 3,
            "health/repetition": 0.0,
            "health/entropy": 0.1,
            "health/invalid_calls": 0.0,
            "stop/answered": 2 / 3,
            "stop/malformed": 0.0,
            "stop/tokens": 1 / 3,
            "stop/calls": 0.0,
            "stop/deadline": 0.0,
            "branch/planned": 2.0,
            "branch/taken": 1.0,
            "branch/by_entropy": 1.0,
            "branch/withheld": 0.0,
            "branch/after_budget": 0.0,
            "branch/flat": 0.0,
            "branch/rate": 1.0,
            "branch/matched_rate": 1.0,
            "branch/p_mean": 0.7,
            "branch/p_std": 0.0,
            "branch/entropy_delta_mean": 0.6,
            "branch/entropy_delta_std": 0.0,
            "branch/entropy_acted": 1.0,
            "branch/decisions": 1.0,
            "branch/undecided": 0.0,
            "entropy/root": (0.2 + 0.4) / 2,
            "entropy/after_result": 0.8,
        }
    )


def test_omega_multiplies_over_nested_branches_and_each_root_carries_one():
    nodes = [
        prompt(),
        policy((0,), turn=Calls((call((0,)),))),
        tool((0, 0)),
        policy((1,), stop=StopReason.ANSWERED),
    ]
    nodes += [policy((0, 0, 0), stop=StopReason.ANSWERED), policy((0, 0, 1), turn=Calls((call((0, 0, 1)),)))]
    nodes.append(tool((0, 0, 1, 0)))
    nodes += [policy((0, 0, 1, 0, i), stop=StopReason.ANSWERED) for i in range(3)]
    weights = omega(make_tree(problem(), TreeKey(0, 0), nodes))
    np.testing.assert_allclose(weights, [1 / 2, 1 / 6, 1 / 6, 1 / 6, 1.0])


def test_flat_groups_without_calls_leave_out_what_was_not_measured():
    equal = (Reward(1.0, {}), Reward(1.0, {}))
    metrics = tree_metrics(
        [ScoredTree(flat_tree(), equal), ScoredTree(flat_tree(), (Reward(0.0, {}), Reward(1.0, {})))]
    )
    assert metrics["reward/mean"] == metrics["reward/leaf_mean"] == 0.75
    assert metrics["group/zero_variance"] == 0.5
    assert metrics["group/effective_size"] == 2.0
    assert not {"calls/ok_rate", "branch/rate", "entropy/root", "entropy/after_result"} & set(metrics)


def test_roots_of_all_trees_count_the_same():
    three = (Reward(0.0, {}),) * 3
    metrics = tree_metrics(
        [ScoredTree(small_tree(), three), ScoredTree(flat_tree(), (Reward(1.0, {}), Reward(1.0, {})))]
    )
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/leaf_mean"] == 0.4


def test_failed_calls_and_refused_branches_are_counted():
    tree = small_tree()
    failed = tool((0, 0), status=ToolStatus.TIMEOUT)
    decision = dataclasses.replace(
        tree.decisions[0], planned=0, taken=0, probability=0.1, entropy_acted=False, undecided=True
    )
    other = make_tree(problem(), tree.key, [failed if n.id == "0.0" else n for n in tree.nodes], [decision])
    metrics = tree_metrics([ScoredTree(tree, SMALL_REWARDS), ScoredTree(other, SMALL_REWARDS)])
    assert metrics["calls/ok_rate"] == 0.5
    assert metrics["branch/rate"] == 0.5
    assert metrics["branch/p_std"] == pytest.approx(0.3)
    assert metrics["branch/entropy_acted"] == 0.5
    assert metrics["branch/undecided"] == 0.5
    assert metrics["branch/decisions"] == 2.0


def test_the_share_without_a_part_is_told_where_there_is_one():
    given = (Reward(1.0, {"correct": 1.0, "judge": 1.0}), Reward(1.0, {"correct": 1.0}))
    row = tree_metrics([ScoredTree(flat_tree(), given)])
    assert row["reward/missing/judge"] == 0.5
    assert row["reward/part/judge"] == 1.0
    assert "reward/missing/correct" not in row


def test_rewards_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="3 leaves, 2 rewards"):
        ScoredTree(small_tree(), SMALL_REWARDS[:2])
    with pytest.raises(ValueError, match="at least one tree"):
        tree_metrics([])
