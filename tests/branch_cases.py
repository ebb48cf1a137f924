"""Candidates, histories and rules that the tests of branching rules decide on."""

from dataclasses import replace

import numpy as np

from ramify.algos.branch_aepo import BalancedBrancher
from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
from ramify.algos.branch_seed_compat import (
    ReleasedAepoBrancher,
    ReleasedAepoConfig,
    ReleasedArpoBrancher,
    ReleasedArpoConfig,
    ReleasedStatistic,
)
from ramify.core.messages import Calls, Message, Problem, Say, ToolCall, ToolResult, ToolStatus
from ramify.core.records import BranchCandidate
from ramify.core.tree import BranchDecision, Entropy, Node, Source, StopReason, Trajectory, node_id

V = 151_936
EVEN_DRAWS = (np.arange(1000) + 0.5) / 1000


def candidate(entropy_delta, draw=0.5, width=0.0):
    turns = (Entropy(1.0, 1.0 + width), Entropy(1.0 + entropy_delta, 1.0 + entropy_delta + width))
    return BranchCandidate((0, 0), 1, 0, turns, 0, draw)


def wanted(entropy_delta=0.3, planned=1):
    return BranchDecision("0.0", 1, entropy_delta, 0.6, planned, 0, True)


def monitored(root, *after, split=False, speaks=False):
    """Root 0 with a turn of each entropy (None: it has none), tool results between them.

    `split`: each turn after a result is two nodes, as where branches share its first tokens. `speaks`: an environment replies
    in words, where there are no calls.
    """
    message = (Message.of("user", "?"),)
    nodes = [Node("", (), None, Source.PROMPT, (1,), "?"), turn((0,), root)]
    for entropy in after:
        path = (*nodes[-1].path, 0)
        call = ToolCall(nodes[-1].id, "search", {"query": "?"})
        nodes[-1] = replace(nodes[-1], turn=Say("?") if speaks else Calls((call,)))
        reply = {"messages": message} if speaks else {"results": (ToolResult(call.id, ToolStatus.OK, "!"),)}
        nodes.append(Node(node_id(path), path, node_id(path[:-1]), Source.TOOL, (2,), "!", **reply))
        nodes.append(turn((*path, 0), entropy))
        if split:
            nodes.append(turn((*path, 0, 0), None))
    nodes[-1] = replace(nodes[-1], stop=StopReason.ANSWERED)
    return Trajectory(Problem("p", message, ("!",)), tuple(nodes))


def turn(path, entropy):
    known = None if entropy is None else Entropy(entropy, entropy + 0.5, 20)
    parent = node_id(path[:-1])
    return Node(node_id(path), path, parent, Source.POLICY, (3,), "t", (-0.1,), known, policy_version=0)


def threshold(**changes):
    return ThresholdBrancher(
        **({"m": 8, "min_entropy_delta": 0.0, "children": 1, "probe_tokens": 6} | changes)
    )


def bernoulli(**changes):
    settings = {"m": 8, "alpha": 0.5, "beta": 0.335, "children": 1, "probe_tokens": 6}
    return BernoulliBrancher(**(settings | changes))


def balanced(**changes):
    settings = {"alpha": 0.5, "gamma": 0.335, "slope": 0.05, "tau": 0.5, "budget_beta": 0.84}
    return BalancedBrancher(**(settings | {"children": 1, "probe_tokens": 20} | changes))


def statistic(vocab_size=V, **switches):
    off = dict.fromkeys(
        ("stale_segment", "summed_over_tokens", "child_baseline_after_branch", "baseline_never_reset"), False
    )
    return ReleasedStatistic(ReleasedArpoConfig(**(off | switches)), vocab_size)


def released_arpo(stat, m=8, **changes):
    return ReleasedArpoBrancher(m=m, config=ReleasedArpoConfig(**changes), statistic=stat)


def released_aepo(stat, m=8, **changes):
    """With dynamic rollouts where m is None, and then H_tool over the segments after results."""
    settings = {"dynamic_rollouts": True, "root_segment_in_average": False} if m is None else {}
    return ReleasedAepoBrancher(m=m, config=ReleasedAepoConfig(**(settings | changes)), statistic=stat)


def frequency(rule, make, history=()):
    return np.mean([rule.propose(make(draw), history).children for draw in EVEN_DRAWS])
