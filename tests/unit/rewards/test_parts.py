import asyncio
import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from ramify.chat.tags import parse_turn
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Calls, Message, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.tree import Node, Source, StopReason, Trajectory
from ramify.rewards.configs import AnswerRewardConfig, OwnPartConfig
from ramify.rewards.judge import question_of
from ramify.rewards.parts import FunctionPart, JudgePart, PartsReward, WeightedPart, load_reward
from ramify.rewards.trajectory_rewards import AnswerReward
from ramify.runtime.agent_loop import agent_loop


def ended(answer: str, golds=("5",), status: ToolStatus | None = None, **info) -> Trajectory:
    problem = Problem("p", (Message.of("user", "q"),), golds, info)
    nodes = [Node("", (), None, Source.PROMPT, (0,), "q")]
    path: tuple[int, ...] = (0,)
    if status is not None:
        calls = tuple(ToolCall(name, name, {}) for name in ("search", "python"))
        results = tuple(ToolResult(call.id, status, "r") for call in calls)
        nodes.append(Node("0", (0,), "", Source.POLICY, (1,), "call ", (-0.5,), turn=Calls(calls)))
        nodes.append(Node("0.0", (0, 0), "0", Source.TOOL, (2,), "r ", results=results))
        path = (0, 0, 0)
    text = f"<answer>{answer}</answer>"
    name, above = ".".join(map(str, path)), ".".join(map(str, path[:-1]))
    turn = parse_turn(text, {})
    nodes.append(
        Node(name, path, above, Source.POLICY, (3,), text, (-0.5,), turn=turn, stop=StopReason.ANSWERED)
    )
    return Trajectory(problem, tuple(nodes))


def run(reward, *trajectories):
    return asyncio.run(reward.score(trajectories))


def test_a_function_that_hangs_does_not_keep_a_run_that_stops() -> None:
    hung = threading.Event()
    part = FunctionPart(lambda completions: hung.wait(60.0), "slow")
    began = time.monotonic()
    with agent_loop() as agent, pytest.raises(TimeoutError):
        agent.run(asyncio.wait_for(part.values([ended("5")]), 0.1))
    assert time.monotonic() - began < 20.0
    hung.set()


def test_scores_are_weighted_and_others_reported() -> None:
    weights = {"correct_weight": 2.0, "format_weight": 0.5, "bonus": 0.25}
    reward = AnswerReward(AnswerRewardConfig(score="math_equal", reported=("em",), **weights))
    [half] = run(reward, ended("\\boxed{\\frac{10}{2}}", status=ToolStatus.OK))
    assert half.value == 2.0 + 0.5 + 0.25
    assert half.parts == {"correct": 1.0, "format": 1.0, "bonus": 0.25, "em": 0.0}


@pytest.mark.parametrize("status", [s for s in ToolStatus if s is not ToolStatus.OK])
def test_calls_that_did_nothing_earn_no_bonus(status: ToolStatus) -> None:
    [result] = run(
        AnswerReward(AnswerRewardConfig(score="em", needs_form=False)), ended("\\boxed{5}", status=status)
    )
    assert result.parts["bonus"] == 0.0


def test_what_is_not_well_formed_may_be_scored_like_the_rest() -> None:
    strict, lenient = (
        AnswerReward(AnswerRewardConfig(score="em", format_weight=0.5, needs_form=needs))
        for needs in (True, False)
    )
    assert [r.value for r in run(strict, ended("5"), ended("\\boxed{5}"))] == [-1.0, 1.5]
    assert [r.value for r in run(lenient, ended("5"), ended("6"), ended("\\boxed{5}"))] == [1.0, 0.0, 1.5]


def test_judge_and_functions_are_added_by_weight() -> None:
    async def judge(problem, answer):
        return {"5": None, "6": 0.5, "": 0.0}[answer]

    def length(completions, **columns):
        return [
            len(text) if level else None for text, level in zip(completions, columns["level"], strict=True)
        ]

    reward = PartsReward(
        AnswerReward(AnswerRewardConfig(score="em")),
        [WeightedPart(JudgePart(judge), 2.0), WeightedPart(FunctionPart(length, "length"), 0.0)],
    )
    right, other, silent = run(
        reward, ended("\\boxed{5}", level=1), ended("\\boxed{6}", level=None), ended("\\boxed{}", level=None)
    )
    assert right.value == 1.0
    assert right.parts == {"correct": 1.0, "format": 1.0, "bonus": 0.0, "length": 26.0}
    assert (other.value, other.parts["judge"]) == (1.0, 0.5)
    assert silent.parts["judge"] == 0.0
    assert [reward.counts for reward in (right, other, silent)] == [False, True, True]


async def silent_judge(problem, answer):
    return None


def test_a_judge_without_a_verdict_makes_no_outcome() -> None:
    base = AnswerReward(AnswerRewardConfig(score="em"))
    for weight, counts in ((1.0, False), (-0.5, False), (0.0, True)):
        reward = PartsReward(base, [WeightedPart(JudgePart(silent_judge), weight)])
        assert [each.counts for each in run(reward, ended("5"), ended("6"))] == [counts] * 2
    # As the only part it ends no run, and its value is nobody's verdict.
    [only] = run(PartsReward(None, [WeightedPart(JudgePart(silent_judge))]), ended("5"))
    assert (only.counts, only.parts) == (False, {})


def test_a_function_may_not_apply_to_a_problem_or_have_no_verdict_on_an_answer() -> None:
    def for_code(trajectories, level, **columns):
        return list(level)

    reward = PartsReward(
        AnswerReward(AnswerRewardConfig(score="em")), [WeightedPart(FunctionPart(for_code, "code"))]
    )
    words = [ended("5", level=None), ended("6", level=None)]
    code = [
        replace(ended("5", level=level), problem=Problem("c", (), ("5",), {"level": level}))
        for level in (1, None)
    ]
    assert [each.counts for each in run(reward, *words, *code)] == [True, True, True, False]


def test_functions_take_what_they_name() -> None:
    received = {}

    async def reward(prompts, completions, answer, level, trajectories, *, scale):
        received.update(prompts=prompts, completions=completions, answer=answer, level=level)
        return [scale] * len(trajectories)

    part = FunctionPart(reward, "mine", {"scale": 3})
    [result] = run(PartsReward(None, [WeightedPart(part, 0.5)]), ended("\\boxed{5}", ("5", "five"), level=2))
    assert result.value == 1.5
    assert result.parts == {"mine": 3.0}
    assert received == {
        "prompts": [[("user", "q")]],
        "completions": ["<answer>\\boxed{5}</answer>"],
        "answer": [["5", "five"]],
        "level": [2],
    }
    assert run(PartsReward(None, [WeightedPart(part)])) == ()

    def wrapped(completions, *args, **columns):
        return [len(args) + len(columns["level"])] * len(completions)

    def single(completion, *args):
        return completion.count("5") + len(args)

    for function in (wrapped, single):
        part = FunctionPart(function, "mine")
        part.check_columns(["level"])
        [result] = run(PartsReward(None, [WeightedPart(part)]), ended("5", level=2))
        assert result.value == 1.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "expected 2 values, one for each completion, got 1"),
        ([1.0, math.nan], "'p', trajectory '0': expected a number from -1e9 to 1e9 or None, got nan"),
        ([1.0, math.inf], "expected a number from -1e9 to 1e9 or None, got a larger number"),
        ([1.0, -1e308], "expected a number from -1e9 to 1e9 or None, got -1e.308"),
        ([1.0, 10**5000], "expected a number from -1e9 to 1e9 or None, got a larger number"),
        ([1.0, "good"], "expected a number from -1e9 to 1e9 or None, got 'good'"),
        (1.0, "expected a list of 2 numbers, got float"),
        (np.float64(1.0), "expected a list of 2 numbers, got float"),
        (torch.tensor(1.0), "expected a list of 2 numbers, got float"),
        (np.ones((2, 1)), r"expected a number from -1e9 to 1e9 or None, got \[1.0\]"),
        (None, "expected a list of 2 numbers, got NoneType"),
        ([None, None], "no part of the reward applies"),
    ],
)
def test_what_a_function_returns_is_checked(returned: object, message: str) -> None:
    reward = PartsReward(None, [WeightedPart(FunctionPart(lambda completions: returned, "mine"))])
    with pytest.raises(DataError, match=message):
        run(reward, ended("5"), ended("6"))


@pytest.mark.parametrize(
    "returned",
    [
        np.array([0.5, 1.0], np.float32),
        [np.float16(0.5), np.bool_(True)],
        torch.tensor([0.5, 1.0], requires_grad=True),
        [torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(True)],
    ],
)
def test_numbers_of_numpy_and_torch_are_numbers(returned: object) -> None:
    part = FunctionPart(lambda completions: returned, "mine")
    assert asyncio.run(part.values([ended("5"), ended("6")])) == [0.5, 1.0]


def test_a_plain_function_may_wrap_an_async_one() -> None:
    async def reward(completions):
        return [1.0] * len(completions)

    part = FunctionPart(lambda completions: reward(completions), "mine")
    assert asyncio.run(part.values([ended("5")])) == [1.0]


def test_mistakes_name_the_reward() -> None:
    def broken(completions):
        raise KeyError("level")

    def greedy(completions, difficulty):
        return []

    with pytest.raises(DataError, match="reward mine: it raised KeyError: 'level'"):
        run(PartsReward(None, [WeightedPart(FunctionPart(broken, "mine"))]), ended("5"))
    with pytest.raises(DataError, match="unknown parameter 'difficulty'"):
        run(PartsReward(None, [WeightedPart(FunctionPart(greedy, "mine"))]), ended("5"))
    with pytest.raises(ConfigError, match=r"reward mine: args\.size: the function has no such parameter"):
        FunctionPart(broken, "mine", {"size": 1})
    with pytest.raises(ConfigError, match="two parts share a name"):
        PartsReward(None, [WeightedPart(FunctionPart(broken, "a")), WeightedPart(FunctionPart(broken, "a"))])
    named = PartsReward(
        AnswerReward(AnswerRewardConfig(score="em")),
        [WeightedPart(FunctionPart(lambda completions: [0.0], "format"))],
    )
    with pytest.raises(
        DataError, match=r"'format' is also the name of a built-in part\. Choose another name"
    ):
        run(named, ended("5"))


def test_a_function_is_loaded_from_a_file(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(completions, limit=5):\n    return [len(c) < limit for c in completions]\n")
    part, sha256 = load_reward(OwnPartConfig(path=file, function="short", args={"limit": 100}, name="brief"))
    assert (part.name, len(sha256)) == ("brief", 64)
    assert asyncio.run(part.values([ended("5")])) == [1.0]
    with pytest.raises(ConfigError, match=r"mine\.py: no function or class 'long'"):
        load_reward(OwnPartConfig(path=file, function="long"))
    with pytest.raises(ConfigError, match=r"mine\.py: reward short: args\.size"):
        load_reward(OwnPartConfig(path=file, function="short", args={"size": 1}))


VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, tolerance=0.0):
    if data_source == "odd":
        return {"reason": "no score"}
    said = solution_str.removeprefix("<answer>").removesuffix("</answer>")
    return {"score": float(said == ground_truth) + tolerance, "acc": said, "index": extra_info["index"]}

async def plain(solution_str, ground_truth, **kwargs):
    return len(ground_truth) if kwargs["extra_info"]["index"] else None

def other(data_source, solution_str, ground_truth, tokenizer):
    return 0.0
"""


def test_a_function_of_verls_signature_is_called_for_each_trajectory(tmp_path) -> None:
    file = tmp_path / "verl.py"
    file.write_text(VERL)
    own = OwnPartConfig(path=file, function="compute_score", args={"tolerance": 0.25}, weight=2.0)
    reward = PartsReward(None, [WeightedPart(load_reward(own)[0], own.weight)])
    right, wrong = (ended(answer, data_source="math", index=7) for answer in ("5", "6"))
    assert [each.value for each in run(reward, right, wrong)] == [2.5, 0.5]
    # Control tokens are not in the text that verl decodes.
    last = right.nodes[-1]
    spelled = replace(right, nodes=(*right.nodes[:-1], replace(last, text=f"{last.text}<|im_end|>")))
    assert [each.value for each in run(reward, spelled)] == [2.5]
    plain = load_reward(OwnPartConfig(path=file, function="plain"))[0]
    several = [ended("5", ("5", "five"), index=index) for index in (1, 0)]
    assert asyncio.run(plain.values(several)) == [2.0, None]
    with pytest.raises(DataError, match=r"problem 'p', .*expected a number .* got \{'reason': 'no score'\}"):
        run(reward, ended("5", data_source="odd"))
    needy = load_reward(OwnPartConfig(path=file, function="other"))[0]
    with pytest.raises(
        DataError, match=r"unknown parameter 'tokenizer'\. Use data_source, extra_info, ground_truth, sol"
    ):
        asyncio.run(needy.values([ended("5")]))


def test_the_question_of_a_problem() -> None:
    spoken = (Message.of("system", "s"), Message.of("user", "Use tools. Who?"))
    infos = ({}, {"question": "Who?"}, {"question": 3})
    questions = [question_of(Problem("p", spoken, ("x",), info)) for info in infos]
    assert questions == ["Use tools. Who?", "Who?", "Use tools. Who?"]


def test_what_the_base_does_not_count_stays_uncounted() -> None:
    base = PartsReward(AnswerReward(AnswerRewardConfig(score="em")), [WeightedPart(JudgePart(silent_judge))])
    reward = PartsReward(
        base, [WeightedPart(FunctionPart(lambda completions: [1.0] * len(completions), "one"))]
    )
    assert [each.counts for each in run(reward, ended("5"))] == [False]
