"""`ramify audit` of other trainers' runs in live environments: what a conversation is paid for is made again, for the task it was of."""

import json

import pytest

from e2e_runs import read_lines, write_lines
from loopback import as_json, serve
from ramify.cli import main

QUESTION = {"role": "user", "content": "which door ?"}
OWN = '[reward]\nname = "environment"\n[environment]\ntype = "own"\npath = "{folder}/world.py"\nfunction = "World"\n'
SCORED = '[reward]\nname = "parts"\nown = [{{ path = "{folder}/world.py", function = "right" }}]\n'
DOCUMENTED = '"""Try.\n\n        Args:\n            word: It.\n        """'
SUBMIT = f"""
class World:
    def reset(self, **row):
        self.reward, self.done = 0.0, False

    def submit(self, word: str) -> str:
        {DOCUMENTED}
        self.done, self.reward = True, float(word == "car")
        return "noted"
"""
TALK = f"""
class World:
    def reset(self):
        self.asked, self.reward = False, 0.0

    def look(self, word: str) -> str:
        {DOCUMENTED}
        return ""

    def step(self, text):
        if text == "ready":
            self.asked = True
            return "go on"
        self.reward = float(text == "car" and self.asked)
"""
SECRET = f"""
def right(final_answer, word):
    return float(final_answer == word)


class World:
    def reset(self, word, **row):
        self.word = word

    def guess(self, word: str) -> str:
        {DOCUMENTED}
        return "yes" if word == self.word else "no"
"""


def say(text):
    return {"role": "assistant", "content": text}


def call(name, word):
    function = {"name": name, "arguments": json.dumps({"word": word})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


def result(text):
    return {"role": "tool", "tool_call_id": "c", "content": text}


def either(first, second):
    """A model that says one or the other, as a bit of its seed says, at each turn another one."""

    def answer(request):
        body = request.json()
        message = (first, second)[body["seed"] >> len(body["messages"]) & 1]
        return as_json({"choices": [{"message": message, "finish_reason": "stop"}]})

    return answer


@pytest.fixture
def audited(tmp_path, capsys):
    def run(world, recipe, rows, model, status=0):
        (tmp_path / "world.py").write_text(world)
        path = tmp_path / "recipe.toml"
        path.write_text(recipe.format(folder=tmp_path))
        write_lines(tmp_path / "runs.jsonl", rows)
        words = (
            "audit",
            tmp_path / "runs.jsonl",
            "--recipe",
            path,
            "--model",
            "m",
            "--out",
            tmp_path / "audit",
        )
        with serve(model) as server:
            assert main([*map(str, (*words, "--url", server.url, "--samples", 24))]) == status
        output = "".join(capsys.readouterr())
        return output, read_lines(tmp_path / "audit" / "effects.jsonl") if status == 0 else []

    return run


def test_the_last_call_of_a_recorded_end_is_made_again(audited):
    rows = [
        {"messages": [QUESTION, call("submit", word), result("noted")], "reward": float(word == "car")}
        for word in ("car", "goat")
    ]
    output, lines = audited(SUBMIT, OWN, rows, either(call("submit", "car"), call("submit", "goat")))
    assert "recorded 0.500, 0 differ" in output
    assert sorted(line["reward"] for line in lines) == [0.0, 1.0]
    assert {line["reward"]: line["effect"] > 0.2 for line in lines} == {1.0: True, 0.0: False}


def test_turns_that_the_environment_replied_to_are_made_again_and_new_ones_go_on(audited):
    talk = [QUESTION, say("ready"), {"role": "user", "content": "go on"}]
    rows = [{"messages": [*talk, say(word)], "reward": float(word == "car")} for word in ("car", "goat")]
    output, lines = audited(TALK, OWN, rows, either(say("car"), say("ready")))
    assert "recorded 0.500, 0 differ" in output
    # From the start one half says "car" at once, unasked, and the other half goes on until it does.
    for line in lines:
        sampled = line["before"]["rewards"]
        assert (line["before"]["unknown"], len(sampled)) == (0, 24)
        assert set(sampled) == ({0.0, 1.0} if line["turn"] == 1 else {1.0})
    assert {line["effect"] for line in lines if line["turn"] == 2} == {0.0, -1.0}


def test_an_other_reply_than_the_recorded_one_is_unknown(audited):
    talk = [QUESTION, say("ready"), {"role": "user", "content": "stop"}, say("car")]
    rows = [{"messages": talk, "reward": 1.0}, {"messages": [QUESTION, say("car")], "reward": 0.0}]
    output, _ = audited(TALK, OWN, rows, either(say("car"), say("goat")))
    assert "a turn on the way that got another reply than the recorded one" in output


@pytest.mark.parametrize("recipe", [SCORED, SCORED + OWN.partition("\n")[2].partition("\n")[2]])
@pytest.mark.parametrize("form", ["messages", "verifiers"])
def test_tasks_that_differ_in_what_they_do_not_show_are_different_problems(audited, recipe, form):
    rows = []
    for number, word in enumerate(["ape", "bee", "cat"]):
        messages = [QUESTION, call("guess", word), result("yes"), say(word)]
        row = {"messages": messages, "word": word, "step": number, "reward": 1.0}
        if form == "verifiers":
            nodes = [
                {
                    "message": each,
                    "sampled": each["role"] == "assistant",
                    **({"parent": at - 1} if at else {}),
                }
                for at, each in enumerate(messages)
            ]
            row = {"nodes": nodes, "task": {"data": {"word": word}}, "rewards": {"right": {"score": 1.0}}}
        rows += [row, {**row, "step": 7}]
    output, lines = audited(SECRET, recipe, rows, either(say("ape"), say("cat")))
    assert "recorded 1.000, 0 differ" in output
    assert len({line["problem"] for line in lines}) == 3
    # A column that nobody names may be read where all are taken.
    assert ("differ in step" in output) == (form == "messages" and "environment" in recipe)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("def close(self):", None),
        ("def reset(self, **row):", "no recorded end could be scored: the environment failed and could not be opened"),
        ("def get_reward(self):", "no recorded end could be scored: the environment failed: RuntimeError: broken"),
    ],
)  # fmt: skip
def test_an_environment_that_fails_is_told_and_one_that_does_not_close_changes_nothing(
    audited, method, message
):
    world = f"{SUBMIT}\n    {method}\n        raise RuntimeError('broken')\n"
    rows = [{"messages": [QUESTION, call("submit", "car"), result("noted")], "reward": r} for r in (1.0, 0.0)]
    output, lines = audited(world, OWN, rows, either(say("car"), say("goat")), status=2 if message else 0)
    if message is None:
        assert {line["reward"] for line in lines} == {1.0}
    else:
        assert message in output
        assert "Correct the file of that function or class." in output
        assert "Traceback" not in output


def test_a_result_of_nothing_is_read(audited):
    rows = [
        {"messages": [QUESTION, call("guess", "x"), result(None), say(word)], "word": "car", "reward": 0.0}
        for word in ("car", "goat")
    ]
    output, lines = audited(SECRET, SCORED, rows, either(say("car"), say("goat")))
    assert "conversations left out" not in output
    assert len(lines) == 4
