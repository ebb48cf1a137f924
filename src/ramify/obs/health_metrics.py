"""Signs of a collapsing policy, measured on the trees of a step."""

from collections.abc import Sequence

import numpy as np

from ramify.core.messages import ToolStatus
from ramify.core.records import Ints
from ramify.core.tree import Source, Trajectory, Tree

NGRAM = 8


def health_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    """Repetition, length, invalid calls and entropy; a name is absent if there is nothing to measure.

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
    """The tokens of each turn of the policy; a turn may be two nodes. [turns][N]"""
    turns: list[list[int]] = []
    before = Source.PROMPT
    for node in trajectory.nodes:
        if node.source is Source.POLICY:
            if before is not Source.POLICY or node.opens_context:
                turns.append([])
            turns[-1].extend(node.token_ids)
        before = node.source
    return [np.array(turn, np.int64) for turn in turns]


def repeated_tokens(turns: Sequence[Ints]) -> int:
    """Tokens that lie in an n-gram which occurred before, in this turn or an earlier one."""
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
