"""Repetition against plain loops, and the signs of collapse on trees worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from obs_trees import call, policy, problem, prompt, small_tree, tool

from ramify.core.messages import Calls, ToolStatus
from ramify.core.tree import StopReason, TreeKey, make_tree
from ramify.obs.health_metrics import NGRAM, health_metrics, repeated_tokens, turns_of


def plainly(turns):
    seen, count = set(), 0
    for turn in turns:
        marks = [False] * len(turn)
        for start in range(len(turn) - NGRAM + 1):
            gram = tuple(turn[start : start + NGRAM])
            if gram in seen:
                marks[start : start + NGRAM] = [True] * NGRAM
            seen.add(gram)
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
    assert repeated_tokens(turns) == plainly(turns)


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
        node = policy(
            path, len(tokens), **({"stop": StopReason.ANSWERED} if last else {"turn": Calls((call(path),))})
        )
        nodes.append(
            type(node)(**{**{f: getattr(node, f) for f in node.__slots__}, "token_ids": tuple(tokens)})
        )
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
    """Of draws from a known distribution it comes near that distribution's entropy; shared tokens count once."""
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
    told = {node.id: -2.0 if node.id == "0" else -1.0 for node in small_tree().nodes}
    nodes = [
        replace(node, behavior_logprobs=(told[node.id],) * len(node.behavior_logprobs))
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
