import asyncio
from collections.abc import Sequence

import pytest

from ramify.chat.tags import parse_turn
from ramify.core.messages import Calls, Message, ParsedTurn, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.tree import Node, Source, StopReason, Trajectory, node_id
from ramify.rewards.answer_reward import AnswerReward
from ramify.rewards.answer_scores import SCORES

OK = ToolStatus.OK
ANSWER = "<think> so </think><answer> \\boxed{Frank Lowy} </answer>"


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
    rewards = asyncio.run(AnswerReward(SCORES["answer"]).score(trajectories))
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


def test_parts_are_the_match_the_format_and_the_bonus() -> None:
    [reward] = asyncio.run(
        AnswerReward(SCORES["em"], bonus=0.25).score([trajectory([("search", OK), ("python", OK)])])
    )
    assert reward.value == 1.25
    assert reward.parts == {"correct": 1.0, "format": 1.0, "bonus": 0.25}


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
