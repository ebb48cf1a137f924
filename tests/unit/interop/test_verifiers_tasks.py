"""A taskset of verifiers as an environment: its rows, tools and rewards, on the installed package and on a stand-in."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
from tests import verifiers_stand_in

from ramify.core.errors import ConfigError, MachineError
from ramify.core.messages import Final, Message, Problem, ToolCall, ToolStatus
from ramify.interop.verifiers import TasksetEnvironment, rows
from ramify.tools.class_environment import environment_from


@pytest.fixture(params=["installed", "stand-in"])
def vf(request, monkeypatch):
    if request.param == "stand-in":
        verifiers_stand_in.install(monkeypatch)
    return pytest.importorskip("verifiers.v1", reason="verifiers is not installed")


def words_of(vf):
    """A taskset in which a tool counts the letters of a word, and what is right depends on the calls too."""

    class WordData(vf.TaskData):
        answer: str = ""

    class Letters(vf.Toolset[vf.ToolsetConfig, vf.State]):
        TOOL_PREFIX = "letters"

        async def setup_task(self, task):
            self.word, self.calls = task.answer, 0

        @vf.tool
        def count(self, letter: str) -> int:
            """Count a letter of the word.

            Args:
                letter: The letter.
            """
            self.calls += 1
            if len(letter) > 1:
                raise ValueError("one letter")
            return self.word.count(letter) + 10 * self.calls

        @vf.tool
        async def first(self) -> str:
            """Return the first letter of the word."""
            return self.word[0]

    class Word(vf.Task):
        @classmethod
        def toolsets(cls, config):
            return [Letters(vf.ToolsetConfig())]

        @vf.reward(weight=2.0)
        async def right(self, trace) -> float:
            return float(trace.last_reply == self.data.answer)

        @vf.reward
        async def tried(self, trace) -> float:
            calls = [getattr(node.message, "tool_calls", None) or [] for node in trace.nodes]
            names = [call.name for each in calls for call in each]
            return 0.25 * names.count("letters_count")

    class Words(vf.Taskset[Word]):
        def load(self):
            for word in ("abba", "banana"):
                yield Word(WordData(prompt="Which word?", system_prompt="Guess.", answer=word))

    return Words(vf.TasksetConfig()), Word


def environment_of(words):
    return type("WordsEnvironment", (TasksetEnvironment,), {"taskset": words, "__doc__": "Words."})


async def play(environment, row, calls, answer):
    messages = tuple(Message.of(each["role"], each["content"]) for each in row["prompt"])
    session = await environment.open(Problem(row["id"], messages, (), {"task": row["task"]}), 7)
    results = [await session.call(call) for call in calls]
    await session.step(Final(answer))
    reward = await session.score(None)
    await session.close()
    return results, reward


def test_a_task_is_played_and_scored(vf):
    words, _ = words_of(vf)
    first, second = rows(words)
    assert first["prompt"] == [
        {"role": "system", "content": "Guess."},
        {"role": "user", "content": "Which word?"},
    ]
    assert second["task"] == 1
    environment = environment_from(environment_of(words))
    assert set(environment.tools) == {"letters_count", "letters_first"}
    assert (
        environment.tools["letters_count"].parameters["properties"]["letter"]["description"] == "The letter."
    )

    async def play_all():
        count = ToolCall("1", "letters_count", {"letter": "a"})
        return await asyncio.gather(
            play(environment, second, [count, count, ToolCall("2", "letters_first", {})], "banana"),
            play(environment, first, [count], "banana"),
        )

    (results, reward), (others, missed) = asyncio.run(play_all())
    # Each trajectory has servers of its own.
    assert [result.text for result in results] == ["13", "23", "b"]
    assert [result.text for result in others] == ["12"]
    assert all(result.status is ToolStatus.OK for result in results)
    assert (reward, missed) == (2.5, 0.25)


def test_a_call_that_fails_is_in_the_trace_that_rewards_read(vf):
    words, _ = words_of(vf)
    environment = environment_from(environment_of(words))
    row = next(rows(words))
    call = ToolCall("1", "letters_count", {"letter": "ab"})
    (result,), reward = asyncio.run(play(environment, row, [call], "banana"))
    assert (result.status, reward) == (ToolStatus.ERROR, 0.25)


def test_what_needs_a_runtime_of_verifiers_is_refused(vf):
    words, kind = words_of(vf)

    async def setup(self, trace, runtime):
        raise AssertionError

    kind.setup = setup
    with pytest.raises(ConfigError, match=r"Word: setup need"):
        environment_of(words)
    kind.setup = vf.Task.setup
    task = SimpleNamespace(stops={"late": None})
    plugged = SimpleNamespace(task_type=lambda: kind, config=SimpleNamespace(task=task))
    with pytest.raises(ConfigError, match=r"Word: late need"):
        environment_of(plugged)
    type(words).INFINITE = True
    with pytest.raises(ConfigError, match="infinite"):
        next(rows(words))


def test_without_verifiers_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(MachineError, match=r"needs verifiers: .*Install verifiers 0\.4"):
        environment_of(None)
