"""Agents that know nothing, in each dialect: they call real tools, and answer what can be scored."""

from dataclasses import replace

import pytest

from hermes_folders import QWEN3, write_hermes_tokenizer, write_opening_tokenizer
from llama3_folders import write_llama3_tokenizer
from ramify.chat.renderers import renderer_for
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward
from ramify.core.tree import StopReason, TreeKey
from ramify.engines.virtual_clock import run_virtual
from ramify.eval.null_agents import null_line, null_samplers, null_scores
from ramify.obs.console import Phase
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.plan import TreeRequest
from ramify.rollout.tool_set import ToolSet
from ramify.sampler.task import BuiltReward, Task, Toolbox
from scripted_agents import SlowTool, tokenizer_of

PROBLEMS = tuple(
    Problem(f"p{i}", (Message.of("user", text),), (gold,))
    for i, (text, gold) in enumerate(
        [
            ("what is 12 plus 30 ?", "42"),
            ("what is 12 ?", "12"),
            ("what is 12 plus 3 ?", "what is 12 plus 3 ?"),
        ]
    )
)
SILENT = Phase("attempts", 9, lambda _: None)
LIMITS = RolloutLimits(n=1, temperature=1.0, max_tokens=300, max_calls=3, max_result_chars=500)


@pytest.fixture(scope="module", params=["tags", "hermes", "opened", "llama3"])
def task(request, tmp_path_factory, tokenizer_folder):
    folder = tokenizer_folder if request.param == "tags" else tmp_path_factory.mktemp(request.param)
    if request.param == "hermes":
        write_hermes_tokenizer(folder, QWEN3)
    elif request.param == "opened":
        write_opening_tokenizer(folder)
    elif request.param == "llama3":
        write_llama3_tokenizer(folder)
    renderer = renderer_for({"opened": "hermes"}.get(request.param, request.param), tokenizer_of(folder))
    return Task(
        PROBLEMS,
        Toolbox(ToolSet({"search": SlowTool("search", "query"), "python": SlowTool("python", "code")})),
        renderer,
        4000,
        BuiltReward(RightIfBoxed()),
    )


class RightIfBoxed:
    async def score(self, trajectories):
        shares = [float(f"\\boxed{{{t.problem.answer[0]}}}" in t.final_answer) for t in trajectories]
        return [Reward(share, {"correct": share}) for share in shares]


def attempts(task, name):
    sampler = null_samplers(task, LIMITS, 0)[name]
    requests = [TreeRequest(problem, TreeKey(0, slot)) for slot, problem in enumerate(PROBLEMS)]
    scored, _ = run_virtual(sampler.grow(requests, SILENT))
    return [each.tree.trajectories[0] for each in scored]


def test_the_empty_agent_says_nothing(task):
    for attempt in attempts(task, "empty"):
        assert (attempt.final_answer, attempt.exchanges) == ("", ())


def test_the_random_caller_calls_tools_that_run_and_answers(task):
    for attempt in attempts(task, "random"):
        assert [result.status for _, result in attempt.exchanges] == ["ok", "ok"]
        assert attempt.stop is StopReason.ANSWERED
        assert "\\boxed{" in attempt.final_answer


def test_the_echo_answers_with_the_question(task):
    for problem, attempt in zip(PROBLEMS, attempts(task, "echo"), strict=True):
        assert f"\\boxed{{{problem.messages[0].text}}}" in attempt.final_answer


def test_scores_are_shares_of_problems(task):
    scores, _ = run_virtual(null_scores(task, LIMITS, 0, SILENT))
    assert (scores["empty"].value, scores["echo"].value) == (0.0, pytest.approx(1 / 3))
    assert null_line(scores).endswith("33% of the problems are won by knowing nothing")
    assert (
        null_line({"empty": replace(scores["empty"], value=0.01)}) == "agents that know nothing: empty 0.010"
    )
