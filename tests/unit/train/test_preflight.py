"""What the preflight makes of a few trees."""

import pytest

from ramify.core.messages import Calls, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree
from ramify.train.preflight import make_report

CALL = ToolCall("0", "search", {"query": "x"})


def tree(*roots):
    """Roots that call a tool (True) or answer at once (False)."""
    nodes = [Node("", (), None, Source.PROMPT, (1,), "q")]
    for root, calls in enumerate(roots):
        turn = {"source": Source.POLICY, "token_ids": (2,), "text": "t", "behavior_logprobs": (-0.5,)}
        if not calls:
            nodes.append(Node(str(root), (root,), "", **turn, stop=StopReason.ANSWERED))
            continue
        nodes.append(Node(str(root), (root,), "", **turn, turn=Calls((CALL,))))
        result = (ToolResult("0", ToolStatus.OK, "r"),)
        nodes.append(Node(f"{root}.0", (root, 0), str(root), Source.TOOL, (3,), "r", results=result))
        nodes.append(Node(f"{root}.0.0", (root, 0, 0), f"{root}.0", **turn, stop=StopReason.TOKENS))
    return make_tree(Problem("p", (), ("a",)), TreeKey(0, 0), nodes)


def rewards(*values):
    return tuple(Reward(value, {"format": float(value >= 0)}) for value in values)


def test_shares_and_spread():
    report = make_report(
        [
            ScoredTree(tree(True, False), rewards(1.0, -1.0)),
            ScoredTree(tree(False, False), rewards(0.0, 0.0)),
        ]
    )
    assert (report.problems, report.trajectories, report.groups_that_differ) == (2, 4, 1)
    assert (report.reward_mean, report.reward_min, report.reward_max) == (0.0, -1.0, 1.0)
    assert (report.format, report.correct) == (0.75, None)
    assert (report.call_rate, report.truncated) == (0.25, 0.25)
    assert not report.never_differ


@pytest.mark.parametrize(
    ("trees", "group_rewards", "never"),
    [
        ([tree(False, False)] * 2, [rewards(1.0, 1.0), rewards(0.0, 0.0)], True),
        ([tree(False)] * 2, [rewards(1.0), rewards(0.0)], False),
        ([tree(False)] * 2, [rewards(1.0), rewards(1.0)], True),
    ],
)
def test_groups_of_one_are_compared_with_each_other(trees, group_rewards, never):
    assert (
        make_report([ScoredTree(*pair) for pair in zip(trees, group_rewards, strict=True)]).never_differ
        is never
    )


def test_what_does_not_count_is_in_no_share():
    failed = Reward(9.0, {"format": 0.0}, counts=False)
    report = make_report(
        [
            ScoredTree(tree(True, False), (failed, *rewards(1.0))),
            ScoredTree(tree(False, False), rewards(1.0, 1.0)),
            ScoredTree(tree(True, True), (failed, failed)),
        ]
    )
    assert (report.problems, report.trajectories, report.not_counted) == (2, 3, 3)
    assert (report.reward_mean, report.reward_max, report.groups_that_differ) == (1.0, 1.0, 0)
    assert (report.format, report.call_rate, report.truncated) == (1.0, 0.0, 0.0)
    assert report.never_differ
    assert "3 more that do not count" in report.in_words
