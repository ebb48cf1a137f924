"""Metrics of trees against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from obs_trees import SMALL_REWARDS, call, policy, problem, prompt, small_tree, tool

from ramify.core.messages import Calls, ToolStatus
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import StopReason, TreeKey, make_tree
from ramify.learner.guard import Guard, GuardConfig
from ramify.obs.tree_metrics import NGRAM, health_metrics, repeated_tokens, tree_metrics, turns_of


def flat_tree():
    nodes = [prompt(5), *(policy((i,), 2, stop=StopReason.ANSWERED) for i in range(2))]
    return make_tree(problem("flat"), TreeKey(3, 0), nodes)


def test_small_tree_by_hand():
    metrics = tree_metrics([ScoredTree(small_tree(), SMALL_REWARDS)])
    mean = (0.5 * 1.0 + 0.5 * 0.0 + 1.1) / 2
    variance = (0.5 * (1 - mean) ** 2 + 0.5 * mean**2 + (1.1 - mean) ** 2) / 2
    assert metrics == pytest.approx(
        {
            "reward/not_counted": 0.0,
            "reward/mean": mean,
            "reward/leaf_mean": 2.1 / 3,
            "reward/std": variance**0.5,
            "reward/part/correct": 0.75,
            "group/zero_variance": 0.0,
            "group/effective_size": 4 / 1.5,
            "group/roots": 2.0,
            "group/failed": 0.0,
            "tokens/written": 10.0,
            "tokens/unique": 18.0,
            "tokens/shared_ratio": (14 + 15 + 6) / 18,
            "calls/per_trajectory": 2 / 3,
            "calls/executed": 1.0,
            "calls/executed_per_trajectory": 1 / 3,
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
            "stop/ended": 0.0,
            "stop/failed": 0.0,
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
    decision = replace(
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
    rewards = (Reward(1.0, {"correct": 1.0, "judge": 1.0}), Reward(1.0, {"correct": 1.0}))
    row = tree_metrics([ScoredTree(flat_tree(), rewards)])
    assert row["reward/missing/judge"] == 0.5
    assert row["reward/part/judge"] == 1.0
    assert "reward/missing/correct" not in row


def test_what_does_not_count_is_in_no_reward_group_or_health():
    """Whatever it was paid: the metrics are those of the tree without it, and of the batch without that tree."""
    prefixes = ("reward/", "group/", "health/")
    whole = ScoredTree(small_tree(), SMALL_REWARDS)
    lost = [policy((2,), 9, stop=StopReason.FAILED), policy((0, 0, 2), 5, stop=StopReason.DEADLINE)]
    tree = make_tree(problem(), TreeKey(0, 0), [*small_tree().nodes, *lost], list(small_tree().decisions))
    (a, b, c), none = SMALL_REWARDS, Reward(-7.0, {"correct": 0.0}, counts=False)
    expected = {name: value for name, value in tree_metrics([whole]).items() if name.startswith(prefixes)}
    for batch in (
        [ScoredTree(tree, (a, b, none, c, none))],
        [whole, ScoredTree(flat_tree(), (none, none))],
    ):
        metrics = tree_metrics(batch)
        assert metrics.pop("reward/not_counted") == 2 / 5
        assert {n: v for n, v in metrics.items() if n.startswith(prefixes)} | {
            "reward/not_counted": 0.0
        } == expected


def test_a_group_that_a_failure_left_with_one_shows_no_variance():
    halved = ScoredTree(flat_tree(), (Reward(1.0, {}), Reward(0.0, {}, counts=False)))
    assert "group/zero_variance" not in tree_metrics([halved])
    dead = ScoredTree(flat_tree(), (Reward(1.0, {}), Reward(1.0, {})))
    assert tree_metrics([halved, dead])["group/zero_variance"] == 1.0
    alone = make_tree(problem(), TreeKey(0, 0), [prompt(), policy((0,), 2, stop=StopReason.ANSWERED)])
    assert tree_metrics([ScoredTree(alone, (Reward(1.0, {}),))])["group/zero_variance"] == 1.0


def test_where_nothing_counts_the_collapse_detector_sees_nothing():
    nothing = Reward(-1.0, {"correct": 0.0}, counts=False)
    metrics = tree_metrics([ScoredTree(flat_tree(), (nothing, nothing))])
    assert metrics["reward/not_counted"] == 1.0
    assert not [
        name for name in metrics if name.startswith(("group/", "health/", "reward/mean", "reward/part"))
    ]
    strict = GuardConfig(
        max_repetition=0.0, max_length=0.0, max_zero_variance=0.0, max_fall=0.0, min_entropy=9.0
    )
    assert Guard(strict, max_tokens=10).look(metrics) is None


def repeated_by_a_loop(turns):
    earlier, count = set(), 0
    for turn in turns:
        marks = [False] * len(turn)
        for start in range(len(turn) - NGRAM + 1):
            gram = tuple(turn[start : start + NGRAM])
            if gram in earlier:
                marks[start : start + NGRAM] = [True] * NGRAM
            earlier.add(gram)
        count += sum(marks)
    return count


def arrays(*turns):
    return [np.array(turn, np.int64) for turn in turns]


@pytest.mark.parametrize("seed", range(20))
def test_repeated_tokens_are_those_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    phrase = rng.integers(0, 1000, 11)
    turns = [
        np.concatenate([rng.integers(0, 2, rng.integers(0, 30)), phrase[: rng.integers(0, 12)]])
        for _ in range(rng.integers(1, 6))
    ]
    assert repeated_tokens(turns) == repeated_by_a_loop(turns)


@pytest.mark.parametrize(
    ("turns", "repeated"),
    [
        (arrays(range(100)), 0),
        (arrays([5] * 7), 0),
        (arrays([5] * 8), 0),
        (arrays([5] * 100), 99),
        (arrays([1, 2, 3] * 40), 117),
        (arrays(range(8), range(8)), 8),
        (arrays(range(7), range(7)), 0),
        (arrays(range(20), [99, *range(5, 15), 98]), 10),
        ([], 0),
    ],
)
def test_repetition_by_hand(turns, repeated):
    assert repeated_tokens(turns) == repeated


def chain(*turns, statuses=()):
    """One trajectory: turns of these tokens, with a result of each status between them."""
    path, nodes = (), [prompt()]
    for index, tokens in enumerate(turns):
        path = (*path, 0)
        last = index == len(turns) - 1
        end = {"stop": StopReason.ANSWERED} if last else {"turn": Calls((call(path),))}
        nodes.append(replace(policy(path, len(tokens), **end), token_ids=tuple(tokens)))
        if not last:
            path = (*path, 0)
            nodes.append(tool(path, status=statuses[index]))
    return make_tree(problem(), TreeKey(0, 0), nodes)


def test_signs_by_hand():
    tree = chain(range(10), [7] * 20, statuses=[ToolStatus.MALFORMED])
    fine = chain(range(4), range(4), range(2), statuses=[ToolStatus.OK, ToolStatus.UNKNOWN_TOOL])
    assert health_metrics([tree, fine]) == {
        "health/repetition": 19 / 40,
        "health/written": (30 + 10) / 2,
        "health/entropy": pytest.approx(0.1),
        "health/invalid_calls": 2 / 3,
    }


def test_entropy_is_the_mean_surprise_at_the_tokens_that_were_sampled():
    """It comes near the entropy of the distribution that was drawn from; shared tokens count once."""
    p = np.array([0.7, 0.2, 0.1])
    drawn = np.random.default_rng(0).choice(3, 20_000, p=p)
    node = replace(
        policy((0,), stop=StopReason.ANSWERED),
        token_ids=tuple(drawn.tolist()),
        behavior_logprobs=tuple(np.log(p)[drawn].tolist()),
        token_entropies=(),
    )
    tree = make_tree(problem(), TreeKey(0, 0), [prompt(), node])
    assert health_metrics([tree])["health/entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=0.02)
    logprobs = {node.id: -2.0 if node.id == "0" else -1.0 for node in small_tree().nodes}
    nodes = [
        replace(node, behavior_logprobs=(logprobs[node.id],) * len(node.behavior_logprobs))
        for node in small_tree().nodes
    ]
    shared = make_tree(problem(), TreeKey(0, 0), nodes, small_tree().decisions)
    assert health_metrics([shared])["health/entropy"] == pytest.approx((4 * 2 + (2 + 3 + 1) * 1) / 10)


def test_what_many_trajectories_share_counts_for_each():
    assert health_metrics([small_tree()])["health/written"] == (4 + 2 + 4 + 3 + 1) / 3


def test_a_turn_in_two_nodes_is_one_turn():
    nodes = [prompt(), policy((0,), 5), policy((0, 0), 6, stop=StopReason.TOKENS)]
    (trajectory,) = make_tree(problem(), TreeKey(0, 0), nodes).trajectories
    assert [len(turn) for turn in turns_of(trajectory)] == [11]


def test_where_nothing_was_called_or_written_nothing_is_said():
    nodes = [prompt(), policy((0,), 0, stop=StopReason.DEADLINE)]
    assert health_metrics([make_tree(problem(), TreeKey(0, 0), nodes)]) == {"health/written": 0.0}


def test_an_executed_call_counts_once_and_a_refused_one_or_one_above_the_start_does_not():
    def metrics(start, last):
        nodes = [
            prompt(),
            policy((0,), turn=Calls((call((0,)),))),
            tool((0, 0)),
            policy((0, 0, 0), turn=Calls((call((0, 0, 0)),))),
            tool((0, 0, 0, 0), status=last),
            *(policy((0, 0, 0, 0, leaf), stop=StopReason.ANSWERED) for leaf in range(2)),
            policy((0, 0, 1), stop=StopReason.ANSWERED),
        ]
        tree = make_tree(problem(), TreeKey(0, 0), nodes, start=start)
        return tree_metrics([ScoredTree(tree, (Reward(1.0, {}),) * 3)])

    name = "calls/executed_per_trajectory"
    assert [metrics("", status)[name] for status in ToolStatus] == [
        pytest.approx((1 + (status not in ("malformed", "unknown_tool", "over_limit"))) / 3)
        for status in ToolStatus
    ]
    assert metrics("0.0", ToolStatus.ERROR)[name] == pytest.approx(1 / 3)
    assert metrics("0.0", ToolStatus.OK)["calls/per_trajectory"] == pytest.approx(5 / 3)
