"""Rewards of recorded trajectories."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ramify.chat.tags import parse_turn
from ramify.core.errors import DataError
from ramify.core.messages import Calls, Message, ParsedTurn, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Node, Source, StopReason, Trajectory, TreeKey, make_tree, node_id
from ramify.rewards.parts import FunctionPart, PartsReward, WeightedPart
from ramify.rewards.trajectory_rewards import (
    AnswerReward,
    CompatReward,
    EnvironmentReward,
    LengthReward,
    OverlongReward,
    score_tree,
)
from random_trees import PROBLEM, node, tree_of

OK = ToolStatus.OK
ANSWER = "<think> so </think><answer> \\boxed{Frank Lowy} </answer>"
MAX, MARGIN = 100, 40
TREE = tree_of(
    [
        node((), Source.PROMPT, [2]),
        node((0,), Source.POLICY, [3], leaf=True),
        node((1,), Source.POLICY, [4], leaf=True),
    ]
)


def policy(depth: int, text: str, turn: ParsedTurn | None = None, stop: StopReason | None = None) -> Node:
    path = (0,) * depth
    return Node(
        node_id(path),
        path,
        node_id(path[1:]),
        Source.POLICY,
        (1,),
        text,
        (-0.5,),
        turn=turn,
        stop=stop,
    )


def trajectory(
    *turns: Sequence[tuple[str, ToolStatus]],
    answer: str = ANSWER,
    stop: StopReason = StopReason.ANSWERED,
    malformed: str | None = None,
    result_text: str = "r",
    golds: tuple[str, ...] = ("Frank Lowy",),
) -> Trajectory:
    problem = Problem("p", (Message.of("user", "Who?"),), golds)
    nodes = [Node("", (), None, Source.PROMPT, (0,), "Who?")]
    for turn in turns:
        calls = [ToolCall(str(i), name, {}, malformed) for i, (name, _) in enumerate(turn)]
        results = tuple(ToolResult(str(i), status, result_text) for i, (_, status) in enumerate(turn))
        nodes.append(policy(len(nodes), "call", Calls(tuple(calls))))
        path = (0,) * len(nodes)
        nodes.append(Node(node_id(path), path, nodes[-1].id, Source.TOOL, (2,), result_text, results=results))
    nodes.append(policy(len(nodes), answer, parse_turn(answer, {}), stop))
    return Trajectory(problem, tuple(nodes))


def score(*trajectories: Trajectory) -> list[float]:
    rewards = asyncio.run(AnswerReward().score(trajectories))
    for reward in rewards:
        earned = reward.parts["correct"] + reward.parts["bonus"]
        assert reward.value == (earned if reward.parts["format"] else -1.0)
    return [r.value for r in rewards]


def test_a_batch_keeps_its_order() -> None:
    assert score(
        trajectory(),
        trajectory(answer="<answer>\\boxed{Rome}</answer>"),
        trajectory(answer="no answer"),
        trajectory(answer="<answer>\\boxed{It is Frank Lowy}</answer>"),
    ) == [1.0, 0.0, -1.0, pytest.approx(2 / 3)]
    assert score() == []


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([[("search", OK)], [("python", OK)]], 1.1),
        ([[("python", OK)], [("python", OK)]], 1.0),
        ([[("search", OK)]], 1.0),
        ([[("search", OK)], [("python", ToolStatus.ERROR)]], 1.0),
        ([[("search", ToolStatus.EMPTY)], [("python", OK)]], 1.0),
        ([[("search", ToolStatus.TIMEOUT)], [("search", OK)], [("python", OK)]], 1.1),
    ],
)
def test_the_bonus_needs_a_call_of_both_tools_that_worked(
    turns: list[list[tuple[str, ToolStatus]]], expected: float
) -> None:
    assert score(trajectory(*turns)) == [pytest.approx(expected)]


def test_a_wrong_answer_earns_no_bonus_and_a_partial_one_does() -> None:
    both = [("search", OK), ("python", OK)]
    wrong = trajectory(both, answer="<answer>\\boxed{Rome}</answer>")
    partial = trajectory(both, answer="<answer>\\boxed{Lowy}</answer>")
    assert score(wrong, partial) == [0.0, pytest.approx(2 / 3 + 0.1)]


@pytest.mark.parametrize("stop", [s for s in StopReason if s is not StopReason.ANSWERED])
def test_only_an_answer_ends_well(stop: StopReason) -> None:
    assert score(trajectory(stop=stop)) == [-1.0]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\\boxed{Frank Lowy}",
        "<answer>Frank Lowy</answer>",
        "<answer>\\boxed{Frank Lowy</answer>",
        "</answer>",
    ],
)
def test_an_answer_without_a_balanced_box_is_not_well_formed(answer: str) -> None:
    assert score(trajectory(answer=answer)) == [-1.0]


def test_an_empty_box_is_well_formed_and_wrong() -> None:
    assert score(trajectory(answer="<answer>\\boxed{}</answer>")) == [0.0]


def test_a_call_that_cannot_be_read_or_names_no_tool_is_not_well_formed() -> None:
    unknown = trajectory([("browse", ToolStatus.UNKNOWN_TOOL)])
    unread = trajectory([("search", ToolStatus.MALFORMED)])
    marked = trajectory([("search", OK)], malformed="no query")
    assert score(unknown, unread, marked) == [-1.0] * 3


def test_tags_in_tool_results_and_thoughts_decide_nothing() -> None:
    page = "</think> <answer>\\boxed{Rome}</answer> </search> </python> <think>"
    quoted = trajectory([("search", OK)], result_text=page)
    stray = trajectory(answer="<think> </search> </python> </think>" + ANSWER)
    assert score(quoted, stray) == [1.0, 1.0]


def test_a_turn_split_by_new_weights_is_read_whole() -> None:
    whole = trajectory([("search", OK)])
    head, tail = ANSWER[:30], ANSWER[30:]
    nodes = (*whole.nodes[:-1], policy(3, head), policy(4, tail, parse_turn(ANSWER, {}), StopReason.ANSWERED))
    assert score(Trajectory(whole.problem, nodes)) == [1.0]


def written(count, stop=StopReason.ANSWERED, results=0):
    """A prompt, a turn, a tool result of so many tokens, a turn; `count` tokens by the policy."""
    first = count // 3
    last = count - first
    nodes = (
        Node("", (), None, Source.PROMPT, tuple(range(500)), "long prompt"),
        Node("0", (0,), "", Source.POLICY, (1,) * first, "", (-1.0,) * first),
        Node("0.0", (0, 0), "0", Source.TOOL, (2,) * results, ""),
        Node("0.0.0", (0, 0, 0), "0.0", Source.POLICY, (1,) * last, "", (-1.0,) * last, stop=stop),
    )
    return Trajectory(Problem("p", (Message.of("user", "?"),), ("a",)), nodes)


class Constant:
    async def score(self, trajectories):
        return tuple(Reward(0.75, {"correct": 0.75}, {"0": 1.0}) for _ in trajectories)


def punishments(trajectories):
    rewards = asyncio.run(OverlongReward(Constant(), MAX, MARGIN).score(trajectories))
    for reward in rewards:
        assert reward.value == 0.75 + reward.parts["overlong"]
        assert reward.parts == {"correct": 0.75, "overlong": reward.parts["overlong"]}
        assert reward.events == {"0": 1.0}
    return [reward.parts["overlong"] for reward in rewards]


def test_equation_13_of_dapo():
    lengths = [0, 1, 59, 60, 61, 70, 80, 99, 100]

    def textbook(length):
        if length <= MAX - MARGIN:
            return 0.0
        if length <= MAX:
            return ((MAX - MARGIN) - length) / MARGIN
        return -1.0

    values = punishments([written(length) for length in lengths])
    np.testing.assert_array_equal(values, [textbook(length) for length in lengths])
    assert values[lengths.index(80)] == -0.5
    assert values[-1] == -1.0


@pytest.mark.parametrize("stop", StopReason)
def test_a_trajectory_that_was_cut_has_the_whole_punishment_however_short(stop):
    expected = -1.0 if stop.truncated else 0.0
    assert punishments([written(9, stop)]) == [expected]


def test_only_what_the_policy_wrote_counts():
    assert punishments([written(60, results=300)]) == [0.0]


def test_the_margin_may_be_the_whole_length():
    (reward,) = asyncio.run(OverlongReward(LengthReward(), 100, 100).score([written(50)]))
    assert reward.parts == {"plumbing_length": 0.05, "overlong": -0.5}


def test_the_plumbing_reward_counts_what_the_policy_wrote():
    rewards = asyncio.run(
        LengthReward().score([written(n, StopReason.TOKENS) for n in (0, 16, 17, 1000, 5000)])
    )
    assert [reward.value for reward in rewards] == [0.0, 0.016, 0.017, 1.0, 1.0]
    assert rewards[1].parts == {"plumbing_length": 0.016}


class Gives:
    """The same rewards for every tree."""

    def __init__(self, *rewards):
        self.rewards = rewards

    async def score(self, trajectories):
        return self.rewards[: len(trajectories)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_told_with_its_problem_and_trajectory(bad):
    good = Reward(1.0, {"correct": 1.0})
    with pytest.raises(DataError, match=r"problem 'p', trajectory '1': .* value = (nan|inf)"):
        asyncio.run(score_tree(Gives(good, Reward(bad, {"correct": 1.0})), TREE))
    with pytest.raises(DataError, match=r"problem 'p', trajectory '0': .* correct = (nan|inf)"):
        asyncio.run(score_tree(Gives(Reward(0.0, {"correct": bad}), good), TREE))
    with pytest.raises(DataError, match=r"problem 'p', trajectory '0': .* returned 0 = (nan|inf)"):
        asyncio.run(score_tree(Gives(Reward(0.0, {}, {"0": bad}), good), TREE))


def test_other_rewards_are_handed_on():
    rewards = (Reward(1.0, {"correct": 0.5}), Reward(-1.0, {}, {"0": 0.25}))
    assert asyncio.run(score_tree(Gives(*rewards), TREE)) == ScoredTree(TREE, rewards)


@pytest.mark.parametrize("stop", StopReason)
@pytest.mark.parametrize("inner", [True, False])
def test_what_a_failure_or_the_clock_ended_does_not_count(stop, inner):
    """In whatever reward: those that wrap another one pass on what it says."""

    class Paid:
        async def score(self, trajectories):
            return [Reward(1.0, {"correct": 1.0}, counts=inner) for _ in trajectories]

    tree = make_tree(
        PROBLEM,
        TreeKey(0, 0),
        [node((), Source.PROMPT, [1]), replace(node((0,), Source.POLICY, [2], leaf=True), stop=stop)],
    )
    parts = PartsReward(Paid(), [WeightedPart(FunctionPart(lambda completions: [0.5], "own"))])
    counts = inner and stop not in (StopReason.FAILED, StopReason.DEADLINE)
    for reward in (Paid(), parts, OverlongReward(parts, 100, 10)):
        (scored,) = asyncio.run(score_tree(reward, tree)).rewards
        assert scored.counts is counts
    for reward in (EnvironmentReward(), LengthReward(), CompatReward("arpo"), AnswerReward()):
        (scored,) = asyncio.run(score_tree(reward, tree)).rewards
        assert scored.counts is (stop not in (StopReason.FAILED, StopReason.DEADLINE))
