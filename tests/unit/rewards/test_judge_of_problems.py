"""What a judge is asked of a problem, and its score of an answer to one."""

import asyncio

import pytest

from ramify.core.messages import Message, Problem
from ramify.core.records import TokenUsage
from ramify.rewards.judge import Judge, question_of


def test_the_question_of_a_problem():
    spoken = (Message.of("system", "s"), Message.of("user", "Use tools. Who?"))
    assert question_of(Problem("p", spoken, ("x",))) == "Use tools. Who?"
    assert question_of(Problem("p", spoken, ("x",), {"question": "Who?"})) == "Who?"
    assert question_of(Problem("p", spoken, ("x",), {"question": 3})) == "Use tools. Who?"


class Always:
    name = "big"
    usage = TokenUsage()

    def __init__(self, word):
        self.word = word

    async def complete(self, messages, *, max_tokens, temperature):
        mark = messages[1].text.split("\n")[0]
        return f"{mark} {self.word}"

    async def close(self):
        pass


@pytest.mark.parametrize(("word", "value"), [("CORRECT", 1.0), ("INCORRECT", 0.0), ("MAYBE", None)])
def test_a_judge_scores_the_answer_to_a_problem(word, value):
    judge = Judge(Always(word))
    problem = Problem("p", (Message.of("user", "Who?"),), ("x",))
    assert asyncio.run(judge.score(problem, "y")) == value
    assert judge.identity["model"] == "big"
    assert judge.identity["prompt"] == 1
