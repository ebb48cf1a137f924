"""Metrics of a batch of trees: rewards, groups, tokens, calls and branching."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ramify.algos.ops import effective_leaves, leaf_masses
from ramify.core.messages import ToolStatus
from ramify.core.outcomes import counted, counted_trees
from ramify.core.records import Floats, Ints, Reward, ScoredTree
from ramify.core.tree import Source, StopReason, Trajectory, Tree
from ramify.obs.branch_metrics import branch_metrics

NGRAM = 8
_NOT_RUN = (ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL, ToolStatus.OVER_LIMIT)
"""Results of calls for which no tool was run."""


def tree_metrics(batch: Sequence[ScoredTree]) -> dict[str, float]:
    """Return the metrics of one step by name; a name is absent if there is nothing to measure.

    Entropies are nats per token: means over nodes of the lower end of each bracket, which is what branching rules use.
    `tokens/*` are totals of the batch.

    `reward/*`, `group/*` and `health/*` leave out the trajectories that do not count (`Reward.counts`); their share is
    `reward/not_counted`. The others describe all trajectories.

    `reward/mean` weighs each leaf with its mass (see `leaf_masses`). It is an unbiased estimate of the policy's mean reward if
    branching depends on the prefix only; the plain `reward/leaf_mean` is not, because the leaves of a tree are not
    independent. `group/failed` counts problems of which every trajectory failed.
    """
    trees, counts = [scored.tree for scored in batch], counted_trees(batch)
    stops = Counter(trajectory.stop for tree in trees for trajectory in tree.trajectories)
    entropies = {
        "entropy/root": _entropies_after(trees, Source.PROMPT),
        "entropy/after_result": _entropies_after(trees, Source.TOOL),
    }
    return {
        **_missing_metrics(batch),
        **(_reward_metrics(counts) if counts else {}),
        **(_group_metrics(batch) if counts else {}),
        **_token_metrics(trees),
        **_call_metrics(trees),
        **(health_metrics([scored.tree for scored in counts]) if counts else {}),
        **{f"stop/{reason}": stops[reason] / stops.total() for reason in StopReason},
        **branch_metrics(trees),
        **{name: _mean(values) for name, values in entropies.items() if values},
    }


def _missing_metrics(batch: Sequence[ScoredTree]) -> dict[str, float]:
    leaves = [reward for scored in batch for reward in scored.rewards]
    names = sorted({name for reward in leaves for name in reward.parts})
    return {
        "reward/not_counted": _mean([not reward.counts for reward in leaves]),
        # A leaf lacks a part if a judge gave no verdict, or if the part does not apply.
        **{
            f"reward/missing/{name}": missing / len(leaves)
            for name in names
            if (missing := sum(name not in leaf.parts for leaf in leaves))
        },
    }


def _reward_metrics(batch: Sequence[ScoredTree]) -> dict[str, float]:
    weights = np.concatenate([leaf_masses(scored.tree) for scored in batch])
    leaves = [reward for scored in batch for reward in scored.rewards]
    values = np.array([reward.value for reward in leaves])
    mean = float(np.average(values, weights=weights))
    names = sorted({name for reward in leaves for name in reward.parts})
    return {
        "reward/mean": mean,
        "reward/leaf_mean": float(values.mean()),
        "reward/std": float(np.sqrt(np.average((values - mean) ** 2, weights=weights))),
        **{f"reward/part/{name}": _part_mean(leaves, weights, name) for name in names},
    }


def _part_mean(leaves: Sequence[Reward], weights: Floats, name: str) -> float:
    pairs = [
        (leaf.parts[name], weight) for leaf, weight in zip(leaves, weights, strict=True) if name in leaf.parts
    ]
    return float(np.average([value for value, _ in pairs], weights=[weight for _, weight in pairs]))


def _group_metrics(batch: Sequence[ScoredTree]) -> dict[str, float]:
    pairs = [(scored, tree) for scored in batch if (tree := counted(scored)) is not None]
    # A group that a failure left with a single trajectory does not show whether the policy's rewards differ.
    dead = [
        len({reward.value for reward in tree.rewards}) == 1
        for scored, tree in pairs
        if len(tree.rewards) >= min(2, len(scored.rewards))
    ]
    return {
        "group/failed": float(sum(scored.tree.has_failed for scored in batch)),
        **({"group/zero_variance": _mean(dead)} if dead else {}),
        "group/effective_size": _mean([effective_leaves(leaf_masses(each.tree)) for _, each in pairs]),
        "group/roots": _mean([len(each.tree.roots) for _, each in pairs]),
    }


def _token_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    nodes = [node for tree in trees for node in tree.nodes]
    unique = sum(len(node.token_ids) for node in nodes)
    repeated = sum(
        len(node.token_ids) for tree in trees for trajectory in tree.trajectories for node in trajectory.nodes
    )
    return {
        "tokens/written": float(sum(len(node.token_ids) for node in nodes if node.source is Source.POLICY)),
        "tokens/unique": float(unique),
        **({"tokens/shared_ratio": repeated / unique} if unique else {}),
    }


def _call_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    counts = [len(trajectory.exchanges) for tree in trees for trajectory in tree.trajectories]
    own = [status for tree in trees for status in _own_statuses(tree)]
    executed = sum(status not in _NOT_RUN for status in own)
    return {
        "calls/per_trajectory": _mean(counts),
        "calls/executed": float(executed),
        "calls/executed_per_trajectory": executed / len(counts),
        **({"calls/ok_rate": own.count(ToolStatus.OK) / len(own)} if own else {}),
    }


def _own_statuses(tree: Tree) -> list[ToolStatus]:
    """Return how each call of this tree ended, once; what lies above its start belongs to an earlier tree."""
    above = {node.id for node in tree.path_to(tree.by_id[tree.start])}
    return [result.status for node in tree.nodes if node.id not in above for result in node.results]


def _entropies_after(trees: Sequence[Tree], source: Source) -> list[float]:
    """Return the entropy of each node whose parent has this source."""
    return [
        node.entropy.lower
        for tree in trees
        for node in tree.nodes
        if node.entropy is not None and node.parent is not None and tree.by_id[node.parent].source is source
    ]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def health_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    """Return repetition, length, invalid calls and entropy; a name is absent if there is nothing to measure.

    `health/repetition` is the share of written tokens that lie in an 8-gram which the same trajectory had written before,
    in any of its turns. A cycle of p tokens repeated over n tokens gives about 1 - p / n. The tags around a call take
    about eight tokens, so calls of the same form with different words count for little.

    `health/written` is the mean number of tokens that a trajectory wrote. `health/invalid_calls` is the share of all
    calls that could not be read or named no tool.

    `health/entropy` is the mean of -ln p over all sampled tokens, each counted once, nats. It estimates the mean entropy
    of the distributions that they were drawn from. It needs no pass of the learner, and includes dead groups, which the
    update does not compute.
    """
    written = [turns_of(trajectory) for tree in trees for trajectory in tree.trajectories]
    tokens = sum(len(turn) for turns in written for turn in turns)
    repeated = sum(repeated_tokens(turns) for turns in written)
    invalid = [
        result.status in (ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL)
        for tree in trees
        for node in tree.nodes
        for result in node.results
    ]
    logprobs = [
        p
        for tree in trees
        for node in tree.nodes
        if node.source is Source.POLICY
        for p in node.behavior_logprobs
    ]
    return {
        "health/written": tokens / len(written),
        **({"health/entropy": -float(np.mean(logprobs))} if logprobs else {}),
        **({"health/repetition": repeated / tokens} if tokens else {}),
        **({"health/invalid_calls": float(np.mean(invalid))} if invalid else {}),
    }


def turns_of(trajectory: Trajectory) -> list[Ints]:
    """Return the tokens of each turn of the policy; a turn may be two nodes. [turns][N]"""
    turns: list[list[int]] = []
    before = Source.PROMPT
    for node in trajectory.nodes:
        if node.source is Source.POLICY:
            if before is not Source.POLICY or node.context != "parent":
                turns.append([])
            turns[-1].extend(node.token_ids)
        before = node.source
    return [np.array(turn, np.int64) for turn in turns]


def repeated_tokens(turns: Sequence[Ints]) -> int:
    """Count tokens that lie in an n-gram which occurred before, in this turn or an earlier one."""
    long = [turn for turn in turns if len(turn) >= NGRAM]
    if not long:
        return 0
    grams = np.concatenate([np.lib.stride_tricks.sliding_window_view(turn, NGRAM) for turn in long])
    starts = np.concatenate([np.arange(len(turn)) < len(turn) - NGRAM + 1 for turn in long])
    # Treat rows as opaque values, so that one sort finds the first occurrence of each.
    rows = np.ascontiguousarray(grams).view(np.dtype((np.void, grams.itemsize * NGRAM)))[:, 0]
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    again = np.zeros(len(starts), bool)
    again[starts] = first[which] < np.arange(len(rows))
    covered = np.convolve(again, np.ones(NGRAM, np.int64))[: len(again)]
    return int((covered > 0).sum())
