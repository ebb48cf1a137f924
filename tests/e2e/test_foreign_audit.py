"""`ramify audit` of other trainers' runs: conversations go on at a loopback endpoint, with recorded results or a live environment."""

import itertools
import json
import re

import pytest

from e2e_runs import read_lines, write_lines
from loopback import as_json, serve
from ramify.cli import main
from ramify.core.tree import StopReason
from ramify.obs.trace import read_trees

QUESTION = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "which door ?"}]
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look behind a door.", "parameters": {
        "type": "object", "properties": {"door": {"type": "integer"}}, "required": ["door"]}}}
]  # fmt: skip
PRIZES = {"1": "nothing", "2": "a goat", "3": "a car"}
RECIPE = """\
[reward]
name = "parts"
own = [{{ path = "{folder}/parts.py", function = "right" }}]
"""
PARTS = '''
def right(final_answer, answer):
    """The answer is the gold."""
    return float(final_answer == answer[0])


class Doors:
    """Three doors."""

    def reset(self, **row):
        self.looks = 0

    def look(self, door: int) -> str:
        """Look behind a door.

        Args:
            door: Its number.
        """
        self.looks += 1
        return {1: "nothing", 2: "a goat", 3: "a car"}[door]
'''


def call(number, door):
    arguments = json.dumps({"door": door})
    return {"id": f"c{number}", "name": "look", "arguments": arguments}


def conversation(doors, answer):
    """Each door that is looked behind, and then the answer."""
    for number, door in enumerate(doors):
        yield {"role": "assistant", "content": "", "tool_calls": [call(number, door)]}
        yield {"role": "tool", "tool_call_id": f"c{number}", "content": PRIZES[str(door)]}
    yield {"role": "assistant", "content": answer}


RUNS = [([1], "1"), ([3], "3"), ([2, 3], "3"), ([], "2")]


def as_openai(message):
    calls = [
        {"id": each["id"], "type": "function", "function": {k: each[k] for k in ("name", "arguments")}}
        for each in message.get("tool_calls", ())
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def messages_file(folder):
    rows = [
        {
            "messages": [*QUESTION, *map(as_openai, conversation(doors, answer))],
            "tools": TOOLS,
            "answer": "3",
            "score": float(answer == "3"),
        }
        for doors, answer in RUNS
    ]
    return write_lines(folder / "messages.jsonl", rows)


def verifiers_file(folder):
    """Lines as verifiers 0.4 appends them (verifiers/v1/utils/trace_store.py): an episode with its traces."""
    rows = []
    for index, (doors, answer) in enumerate(RUNS):
        messages = [*QUESTION, *conversation(doors, answer)]
        nodes = [
            {
                **({"parent": number - 1} if number else {"tools": [TOOLS[0]["function"]]}),
                "message": message,
                "sampled": message["role"] == "assistant",
                "timestamp": 1.0,
                "token_ids": [1],
                "mask": [False],
                "semantic_parents": [],
            }
            for number, message in enumerate(messages)
        ]
        trace = {
            "version": 1,
            "id": f"t{index}",
            "task": {"type": "DoorTask", "data": {"idx": 0, "answer": "3"}, "key": "k", "hash": "h"},
            "agent": {"name": "agent", "trainable": True, "config": {}},
            "tools": [{"type": "function", **TOOLS[0]["function"]}],
            "nodes": nodes,
            "rewards": {
                "right": {"score": float(answer == "3"), "weight": 1.0},
                "style": {"score": 0.0, "weight": 0.5},
            },
            "metrics": {},
            "info": {},
        }
        rows.append({"env": {"id": "doors"}, "task": trace["task"], "traces": [trace], "ok": True})
    unscored = {**rows[0], "traces": [{**rows[0]["traces"][0], "rewards": {"right": None}}]}
    write_lines(folder / "traces.jsonl", [*rows, unscored])
    return folder


@pytest.fixture
def task(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(folder=tmp_path))
    return tmp_path, recipe


class Model:
    """A model that looks behind a door, two or three as its seed says, and answers with the car's number, or 1 if it saw none."""

    def __init__(self):
        self.sent = []

    def __call__(self, request):
        body = request.json()
        self.sent.append(body)
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        if not results:
            door = 2 + body["seed"] % 2
            message = {"role": "assistant", "content": None, "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "look", "arguments": json.dumps({"door": door})}}
            ]}  # fmt: skip
        else:
            message = {"role": "assistant", "content": "3" if "a car" in results else "1"}
        return as_json({"choices": [{"message": message, "finish_reason": "stop"}]})


def audit(capsys, source, recipe, url, out, *words):
    capsys.readouterr()
    known = ("audit", source, "--recipe", recipe, "--url", url, "--model", "m")
    arguments = (*known, "--out", out, "--samples", 12)
    status = main([*map(str, (*arguments, *words)), "--json"])
    assert status == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("write", [messages_file, verifiers_file])
@pytest.mark.parametrize("live", [False, True])
def test_a_run_of_another_trainer_is_audited_at_an_endpoint(task, capsys, write, live):
    folder, recipe = task
    if live:
        with recipe.open("a") as file:
            file.write(f'[environment]\ntype = "own"\npath = "{folder}/parts.py"\nfunction = "Doors"\n')
    model = Model()
    with serve(model) as server:
        summary = audit(capsys, write(folder), recipe, server.url, folder / "audit")
    lines = read_lines(folder / "audit" / "effects.jsonl")
    assert (summary["schema"], summary["out"]) == (1, f"{folder / 'audit'}")
    assert (summary["decisions"], summary["known"], summary["unknown_samples"]) == (8, 8, 0)
    by_turn = {(line["node"]): line for line in lines}
    first = by_turn["1"]["before"]["rewards"]
    assert 0 < sum(first) < len(first) == 12
    # After the car was seen the answer is right; after nothing was seen it is wrong; the recipe scores an answer.
    assert by_turn["1"]["after"]["rewards"] == [1.0] * 12
    assert by_turn["0"]["after"]["rewards"] == [0.0] * 12
    assert (by_turn["3"]["after"], by_turn["3"]["reward"]) == (None, 0.0)
    assert by_turn["1"]["low"] > 0 > by_turn["0"]["high"]
    # A turn is named by its line, and shown with the call that is all that it wrote.
    source = (
        (folder / ("traces.jsonl" if write is verifiers_file else "messages.jsonl")).read_text().splitlines()
    )
    shown = [(line["text"], source[line["line"] - 1]) for line in lines if line["text"].startswith("look")]
    assert {text for text, _ in shown} == {f'look({{"door": {door}}})' for door in (1, 2, 3)}
    for text, record in shown:
        assert re.search(rf'door[\\": ]+{text[-3]}', record)
    assert {ranking["name"] for ranking in summary["estimators"]} >= {"group", "turn level"}
    assert summary["rescored"] == {"n": 4, "changed": 0, "unknown": 0, "recorded": 0.5, "mean": 0.5}
    _check_trees(folder / "audit", lines)
    assert model.sent[0]["tools"][0]["function"]["name"] == "look"
    assert [message["role"] for message in model.sent[0]["messages"][:2]] == ["system", "user"]


def _check_trees(out, effects):
    """The resampled trajectories are trees that go on from the states, with what the model wrote and the tools answered."""
    trees = read_trees(out / "trees" / "000001.jsonl")
    rewards = {
        side["node"]: side["rewards"] for line in effects for side in (line["before"], line["after"]) if side
    }
    assert {traced.tree.start: [each.value for each in traced.rewards] for traced in trees} == rewards
    assert len(trees) == len(rewards) == len({traced.tree.key.attempt for traced in trees})
    for traced in trees:
        for trajectory, reward in zip(traced.tree.trajectories, traced.rewards, strict=True):
            results = [result.text for _, result in trajectory.exchanges]
            # What the model of these tests answers, and the recipe pays for it.
            assert trajectory.final_answer == ("3" if "a car" in results else "1")
            assert reward.parts["right"] == reward.value == float("a car" in results)


def test_a_judge_reads_the_turns_of_another_trainer(task, capsys):
    folder, recipe = task
    shown = []

    def judge(request):
        if request.method == "GET":
            return as_json({}, 404)
        mark, *lines, _ = request.json()["messages"][1]["content"].split("\n")
        shown.append(json.loads("\n".join(lines)))
        number = {"a car": 9, "nothing": -9}.get((shown[-1]["reply"] or [""])[0], 0)
        return as_json({"choices": [{"message": {"content": f"{mark} {number}"}}]})

    with serve(Model()) as server, serve(judge) as other:
        words = ("--judge-url", f"{other.url}/v1", "--judge-model", "big")
        summary = audit(capsys, messages_file(folder), recipe, server.url, folder / "audit", *words)
    lines = {line["node"]: line for line in read_lines(folder / "audit" / "effects.jsonl")}
    assert [lines[node]["credits"]["judge"] for node in ("0", "1", "3")] == [-9, 9, 0]
    assert {ranking["name"]: ranking["n"] for ranking in summary["estimators"]}["judge"] == 8
    (second,) = [each for each in shown if len(each["before"]) == 2 and each["reply"] == ["a car"]]
    assert second["before"][0]["turn"]["calls"] == [{"name": "look", "arguments": '{"door": 2}'}]
    assert second["before"][1] == {"reply": ["a goat"]}
    assert [each["text"] for each in second["prompt"]] == ["Be short.", "which door ?"]
    settings = json.loads((folder / "audit" / "settings.json").read_text())
    assert (settings["judge"]["model"], settings["judge"]["temperature"], settings["model"]) == (
        "big",
        0,
        "m",
    )


def test_a_call_that_was_never_recorded_ends_as_unknown_and_a_cut_audit_goes_on(task, capsys):
    folder, recipe = task
    path = write_lines(folder / "few.jsonl", [
        {"messages": [*QUESTION, *map(as_openai, conversation([3], "3"))], "answer": "3", "reward": 1.0},
        {"messages": [*QUESTION, {"role": "assistant", "content": "1"}], "answer": "3", "reward": 0.0},
    ])  # fmt: skip
    model = Model()
    with serve(model) as server:
        summary = audit(capsys, path, recipe, server.url, folder / "audit")
        assert 0 < summary["unknown_samples"] < 24
        samples = folder / "audit" / "samples-1.jsonl"
        reasons = {line["reason"] for line in read_lines(samples)}
        assert reasons == {"", "a call that was never recorded"}
        # A trajectory without an end is there too, up to the turn whose call nobody recorded.
        trees = read_trees(folder / "audit" / "trees" / "000001.jsonl")
        grown = [pair for each in trees for pair in zip(each.tree.trajectories, each.rewards, strict=True)]
        cut = [trajectory.leaf for trajectory, reward in grown if not reward.counts]
        assert len(cut) == summary["unknown_samples"] < len(grown)
        assert all(leaf.stop is StopReason.FAILED and leaf.calls for leaf in cut)
        names = ("effects.jsonl", "samples-1.jsonl", "trees/000001.jsonl")
        whole, sent = {name: (folder / "audit" / name).read_bytes() for name in names}, len(model.sent)
        audit(capsys, path, recipe, server.url, folder / "audit")
        assert len(model.sent) == sent
        samples.write_bytes(samples.read_bytes()[:-200])
        audit(capsys, path, recipe, server.url, folder / "audit")
        assert sent < len(model.sent) < 2 * sent
        assert {name: (folder / "audit" / name).read_bytes() for name in names} == whole


ENDS = '''
class Ends:
    """Three doors, of which all but the first end it. It pays for each that was opened."""

    def reset(self, **row):
        self.done, self.opened = False, 0

    def look(self, door: int) -> str:
        """Open a door.

        Args:
            door: Its number.
        """
        self.opened += 1
        self.done = self.done or door > 1
        return f"door {door}"

    def get_reward(self):
        return float(self.opened)
'''


def opening(recipe, folder):
    """Have a recipe open doors in the environment that pays for them."""
    (folder / "ends.py").write_text(ENDS)
    recipe.write_text(
        f'[reward]\nname = "environment"\n[environment]\ntype = "own"\npath = "{folder}/ends.py"\nfunction = "Ends"\n'
    )


def opened(doors, num_results, **row):
    """A conversation whose first turn opens doors; some of the calls have results."""
    turn = {"role": "assistant", "content": "", "tool_calls": [call(i, door) for i, door in enumerate(doors)]}
    results = [
        {"role": "tool", "tool_call_id": f"c{i}", "content": f"door {door}"} for i, door in enumerate(doors)
    ]
    return plain(as_openai(turn), *results[:num_results], **row)


@pytest.mark.parametrize("num_results", [0, 1, 2])
def test_calls_that_end_a_conversation_are_made_on_both_sides(task, capsys, num_results):
    """The first of two calls ends it, whatever the other trainer ran and recorded."""
    folder, recipe = task
    opening(recipe, folder)
    path = write_lines(folder / "ended.jsonl", [opened([2, 3], num_results) for _ in range(3)])
    turn = {"content": None, "tool_calls": as_openai({"tool_calls": [call(0, 2), call(1, 3)]})["tool_calls"]}
    with serve(lambda request: as_json({"choices": [{"message": turn, "finish_reason": "stop"}]})) as server:
        summary = audit(capsys, path, recipe, server.url, folder / "audit", "--samples", 4)
    assert (summary["known"], summary["rewards"]) == (3, [1.0, 1.0])
    assert {line["reward"] for line in read_lines(folder / "audit" / "ends-1.jsonl")} == {1.0}
    (traced,) = read_trees(folder / "audit" / "trees" / "000001.jsonl")
    assert {each.stop for each in traced.tree.trajectories} == {StopReason.ENDED}
    assert "not run" in traced.tree.trajectories[0].leaf.results[1].text


def test_a_conversation_that_ends_elsewhere_than_in_the_environment_is_unknown(task, capsys):
    """Calls without results that do not end it, and results behind an end; a recorded reward that is another is a warning."""
    folder, recipe = task
    opening(recipe, folder)
    went_on = opened([2], 1)
    went_on["messages"].append({"role": "assistant", "content": "3"})
    rows = [opened([1], 0), went_on, opened([2], 1, reward=7.0), opened([3], 1, reward=7.0)]
    path = write_lines(folder / "odd.jsonl", rows)
    answers = {"choices": [{"message": {"content": "3"}, "finish_reason": "stop"}]}
    with serve(lambda request: as_json(answers)) as server:
        summary = audit(capsys, path, recipe, server.url, folder / "audit", "--samples", 2)
    reasons = [line["reason"] for line in read_lines(folder / "audit" / "ends-1.jsonl")]
    early = "a call on the way that ends the trajectory here"
    assert reasons == ["a recorded end whose calls may have been run or not", early, "", ""]
    assert {line["reason"] for line in read_lines(folder / "audit" / "samples-1.jsonl")} == {"", early}
    assert any(each.startswith("2 of 2 recorded ends get another reward") for each in summary["warnings"])


@pytest.mark.parametrize("live", [False, True])
def test_both_sides_of_an_effect_have_the_recipe_s_reward_whatever_was_recorded(task, capsys, live):
    folder, recipe = task
    if live:
        with recipe.open("a") as file:
            file.write(f'[environment]\ntype = "own"\npath = "{folder}/parts.py"\nfunction = "Doors"\n')
    source = messages_file(folder)
    rows = [{**row, "score": 100 * row["score"] + 7} for row in read_lines(source)]
    write_lines(source, rows)
    with serve(Model()) as server:
        summary = audit(capsys, source, recipe, server.url, folder / "audit")
        page = (folder / "audit" / "AUDIT.html").read_text()
        scored = (folder / "audit" / "ends-1.jsonl").read_bytes()
        audit(capsys, source, recipe, server.url, folder / "audit")
    assert summary["rewards"] == [0.0, 1.0]
    assert summary["rescored"] == {"n": 4, "changed": 4, "unknown": 0, "recorded": 57.0, "mean": 0.5}
    assert "scored 4 recorded ends again" in page
    assert (folder / "audit" / "ends-1.jsonl").read_bytes() == scored
    lines = read_lines(folder / "audit" / "effects.jsonl")
    assert {line["reward"] for line in lines if line["after"] is None} == {0.0, 1.0}


def test_a_file_that_has_changed_since_is_no_part_of_the_same_audit(task, capsys, refused):
    folder, recipe = task
    source = messages_file(folder)
    with serve(Model()) as server:
        audit(capsys, source, recipe, server.url, folder / "audit")
        source.write_text(source.read_text() + "\n")
        words = ["--recipe", recipe, "--url", server.url, "--model", "m", "--samples", 12]
        message = refused("audit", source, "--out", folder / "audit", *words)
    assert f"{source} has changed since the audit" in message


def plain(*messages, **row):
    return {"messages": [*QUESTION, *messages], "answer": "3", "reward": 1.0, **row}


def test_conversations_as_services_write_them_are_read_and_sent_as_an_endpoint_takes_them(task, capsys):
    """Calls without ids, null and empty contents, contents in pieces, a thought alone; and what cannot be used is counted."""
    folder, recipe = task
    bare = {"type": "function", "function": {"name": "look", "arguments": {"door": 3}}}
    looked = [
        {"role": "assistant", "content": None, "tool_calls": [bare]},
        {"role": "tool", "content": "a car"},
    ]
    rows = [
        plain(*looked, {"role": "assistant", "content": [{"type": "text", "text": "3"}]}),
        plain(*looked, {"role": "assistant", "content": None, "reasoning": "so ..."}, reward=0),
        plain({"role": "assistant", "content": ""}, reward=0.5),
        plain({"role": "assistant", "content": "1"}, answer="1"),
        plain({"role": "wizard", "content": "?"}, {"role": "assistant", "content": "1"}),
        plain({"role": "assistant", "content": "1"}, {"role": "assistant", "content": "2"}),
        plain(*looked, *looked[1:], {"role": "assistant", "content": "3"}),
        plain({"role": "assistant", "content": [{"type": "image_url", "image_url": "x"}]}),
        plain({"role": "assistant", "content": "1"}, reward=None),
    ]
    path, model = write_lines(folder / "odd.jsonl", rows), Model()
    with serve(model) as server:
        audit(capsys, path, recipe, server.url, folder / "audit", "--samples", 2)
    # Another gold is another problem, and an end that was recorded as half right is wrong under the recipe.
    lines = read_lines(folder / "audit" / "effects.jsonl")
    assert (len(lines), len({line["problem"] for line in lines})) == (6, 2)
    assert sorted(line["reward"] for line in lines if line["after"] is None) == [0, 0, 1, 1]
    sent = [body["messages"] for body in model.sent if len(body["messages"]) > 2]
    assert sent
    for messages in sent:
        (called,) = messages[2]["tool_calls"]
        assert called["id"] == messages[3]["tool_call_id"] != ""


def test_a_problem_whose_rewards_are_all_equal_says_so(task, capsys):
    folder, recipe = task
    rows = [plain({"role": "assistant", "content": "1"}, reward=0.0) for _ in range(2)]
    path = write_lines(folder / "equal.jsonl", rows)
    with serve(
        lambda request: as_json({"choices": [{"message": {"content": "1"}, "finish_reason": "stop"}]})
    ) as server:
        summary = audit(capsys, path, recipe, server.url, folder / "audit", "--samples", 2)
    first, second = summary["warnings"]
    assert first == "All rewards are 0: no effect can be measured, and the intervals of width 0 mean nothing."
    assert second.startswith("The decisions come from 1 problem:")
    assert [ranking["spearman"] for ranking in summary["estimators"]] == [None] * len(summary["estimators"])
    line, _ = read_lines(folder / "audit" / "effects.jsonl")
    assert (line["effect"], line["low"], line["high"]) == (0.0, None, None)
    assert "All rewards are 0" in (folder / "audit" / "AUDIT.html").read_text()


def test_what_failed_requests_ended_is_sampled_again(task, capsys, refused):
    folder, recipe = task
    # Of a prompt and a completion as text; the first line is empty.
    rows = [
        {"prompt": "which door ?", "completion": door, "answer": "3", "reward": float(door == "3")}
        for door in "13"
    ]
    path = write_lines(folder / "texts.jsonl", rows)
    path.write_text(f"\n{path.read_text()}")
    # A command that was refused before it sampled anything binds no other one.
    assert "Give --url" in refused("audit", path, "--out", folder / "audit")
    words = ["--recipe", recipe, "--url", "http://127.0.0.1:9", "--model", "m", "--out", folder / "audit"]
    assert "No other request worked" in refused("audit", path, *words)
    model, requests = Model(), itertools.count()
    with serve(lambda request: model(request) if next(requests) else as_json({}, 404)) as server:
        summary = audit(capsys, path, recipe, server.url, folder / "audit")
        samples = folder / "audit" / "samples-1.jsonl"
        assert any("HTTP 404" in line["reason"] for line in read_lines(samples))
        # The two decisions share the side before them.
        assert (summary["known"], summary["unknown_samples"], len(model.sent)) == (0, 12, 11)
        assert "Trajectories that failed requests ended: 1. Repeat the command" in summary["warnings"][0]
        summary = audit(capsys, path, recipe, server.url, folder / "audit")
    assert (len(read_lines(samples)), len(model.sent)) == (12, 12)
    assert {line["reason"] for line in read_lines(samples)} == {"a call that was never recorded"}


def test_a_user_s_reply_that_was_never_recorded_ends_as_unknown(task, capsys):
    folder, recipe = task
    messages = [*conversation([3], "2"), {"role": "user", "content": "sure ?"}, *conversation([2], "3")]
    path = write_lines(
        folder / "talk.jsonl", [{"messages": [*QUESTION, *messages], "answer": "3", "reward": 1.0}]
    )
    with serve(Model()) as server:
        summary = audit(capsys, path, recipe, server.url, folder / "audit")
    assert summary["known"] == 0
    reasons = {line["reason"] for line in read_lines(folder / "audit" / "samples-1.jsonl")}
    assert reasons == {"an answer that somebody may have replied to"}


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        (None, [], "--url, --model and --recipe"),
        (None, ["--url", "http://a:b@c", "--model", "m"], "--url: expected an address without a key"),
        (None, ["--url", "here", "--model", "m"], "--url: expected an address such as"),
        (
            None,
            ["--url", "http://c", "--model", "m", "--key-variable", "sk-123"],
            "--key-variable: expected the name of an environment variable",
        ),
        (None, ["--temperature", "nan"], "expected a number from 0.001 to 100, got 'nan'"),
        (None, ["--temperature", "0"], "at 0 all trajectories would be one"),
        ([{"messages": [*QUESTION], "reward": 1}], None, "no turn of the model"),
        ([{"messages": [*QUESTION, {"role": "assistant", "content": "1"}]}], None, "no reward"),
        ([{"messages": "?", "reward": 1}], None, "not a conversation: messages: expected a list of messages"),
        ([{"messages": [1], "reward": 1}], None, "not a conversation: messages: expected a list of messages"),
        (
            [{"nodes": [{"parent": 7, "message": {}}], "rewards": {"r": {"score": 1}}}],
            None,
            "not a conversation",
        ),
        (
            [{"nodes": [{"parent": -1, "message": {}}], "rewards": {"r": {"score": 1}}}],
            None,
            "not a conversation: parent: expected the place of a message, got -1",
        ),
        ([{"nodes": 3}], None, "row 1: not a conversation: nodes: expected a list, got 3. Correct the row."),
        ([{"nodes": [{"message": None}]}], None, "nodes[0].message: expected a JSON object, got null"),
        ([{"nodes": [{"message": {}}], "rewards": {"r": 1.5}}], None, "rewards.r: expected a JSON object, got 1.5"),
        (
            [{"nodes": [{"message": {}}], "rewards": {"r": {"score": 1e308, "weight": 10}}}],
            None,
            "rewards: expected a finite number, got inf",
        ),
        ([{"traces": [3]}], None, "not a conversation: expected a JSON object, got 3"),
        ([{"messages": [*QUESTION], "score": True}], None, "score: expected a finite number, got true or false"),
        ([], None, "the file is empty"),
        ([{"text": "?"}], [], "expected a tree"),
    ],
)  # fmt: skip
def test_an_audit_that_cannot_be_is_one_line(task, refused, rows, words, message):
    folder, recipe = task
    path = messages_file(folder) if rows is None else write_lines(folder / "rows.jsonl", rows)
    known = ("--recipe", recipe, "--url", "http://127.0.0.1:9", "--model", "m")
    words = known if words is None else words
    assert message in refused("audit", path, "--out", folder / "audit", *words)


def test_a_source_is_named_once_and_conversations_have_no_steps(task, refused, monkeypatch):
    folder, recipe = task
    path = messages_file(folder)
    known = ("--recipe", recipe, "--url", "http://127.0.0.1:9", "--model", "m", "--out", folder / "audit")
    monkeypatch.chdir(folder)
    assert "named twice" in refused("audit", path, path.name, *known)
    assert "has no steps. Leave --step out" in refused("audit", verifiers_file(folder), "--step", 5, *known)


def test_a_reward_that_fails_at_every_end_is_refused_before_a_request_and_may_be_mended(
    task, capsys, refused
):
    folder, recipe = task
    parts, model = folder / "parts.py", Model()
    whole = parts.read_text()
    path = messages_file(folder)
    with serve(model) as server:
        words = ("--recipe", recipe, "--url", server.url, "--model", "m", "--out", folder / "audit")
        parts.write_text("def right(other):\n    return 1.0\n")
        message = refused("audit", path, *words, "--samples", 3)
        assert (
            "no recorded end could be scored: the reward failed: reward right: unknown parameter" in message
        )
        assert not model.sent
        parts.write_text(whole)
        assert main([*map(str, ("audit", path, *words, "--samples", 3))]) == 0
    assert model.sent


def test_an_endpoint_that_is_down_ends_the_audit_in_one_line_and_the_same_command_goes_on(task, capsys):
    folder, recipe = task
    path, model, most = messages_file(folder), Model(), 5

    def answer(request):
        return as_json({"error": "no"}, status=401) if len(model.sent) >= most else model(request)

    known = ("audit", path, "--recipe", recipe, "--model", "m")
    words = (*known, "--out", folder / "audit", "--samples", 3, "--url")
    with serve(answer) as server:
        capsys.readouterr()
        assert main([*map(str, words), server.url]) == 2
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert "401" in err
        most = 1000
        assert main([*map(str, words), server.url]) == 0
    assert len(read_lines(folder / "audit" / "effects.jsonl")) == 8


@pytest.mark.parametrize(
    ("status", "text", "advice"),
    [
        (429, "slow down", "The address is right: wait"),
        (503, "loading", "The address is right: look at the server"),
        (404, "no such model", "Correct --url"),
        (400, "max_tokens is too large", "Change what the service refuses, such as --model, --max-tokens"),
    ],
)
def test_the_advice_on_requests_that_all_failed_can_help(task, refused, status, text, advice):
    folder, recipe = task
    words = ("--recipe", recipe, "--model", "m", "--samples", 2, "--decisions", 2, "--out", folder / "audit")
    with serve(lambda _: as_json({"error": text}, status, **{"retry-after": "0"})) as server:
        message = refused("audit", messages_file(folder), "--url", server.url, *words)
    assert f"HTTP {status}" in message
    assert message.partition("worked. ")[2].startswith(advice)


def test_numbers_that_json_does_not_know_and_keys_in_results_do_no_harm(task, capsys, monkeypatch):
    """NaN of pandas in a column that nothing reads is null; a short key of a local server is also a word of the record."""
    folder, recipe = task
    monkeypatch.setenv("MY_KEY", "goat")
    source = messages_file(folder)
    rows = [{**row, "loss": float("nan"), "more": [{"x": float("inf")}]} for row in read_lines(source)]
    write_lines(source, rows)
    assert "NaN" in source.read_text()
    with serve(Model()) as server:
        summary = audit(
            capsys, source, recipe, server.url, folder / "audit", "--key-variable", "MY_KEY", "--samples", 3
        )
    assert (summary["known"], summary["unknown_samples"]) == (8, 0)
    traced, *_ = read_trees(folder / "audit" / "trees" / "000001.jsonl")
    assert traced.tree.problem.info == {"loss": None, "more": [{"x": None}]}


def test_of_many_reasons_the_most_frequent_are_shown(task, capsys):
    folder, recipe = task
    (folder / "parts.py").write_text("def right(final_answer):\n    return float({'1': 1}[final_answer])\n")
    answers = itertools.count()
    path = write_lines(folder / "rows.jsonl", [plain({"role": "assistant", "content": "1"})])

    def model(request):
        message = {"content": f"odd {next(answers)}"}
        return as_json({"choices": [{"message": message, "finish_reason": "stop"}]})

    with serve(model) as server:
        words = ("--recipe", recipe, "--url", server.url, "--model", "m", "--samples", 20)
        assert main([*map(str, ("audit", path, "--out", folder / "audit", *words))]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "without a reward:" in line]
    assert len(shown) == 6
    assert shown[-1].endswith("15, for 15 other reasons, which the samples-N.jsonl say")


@pytest.mark.parametrize("status", [401, 402])
def test_a_service_that_refuses_the_key_does_not_bind_the_folder(task, capsys, status):
    folder, recipe = task
    path, out = messages_file(folder), folder / "audit"
    known = ["audit", path, "--recipe", recipe, "--model", "m", "--out", out, "--samples", 2, "--url"]
    with serve(lambda _: as_json({}, status)) as server:
        assert main([*map(str, (*known, server.url))]) == 2
        assert f"HTTP {status}" in capsys.readouterr().err
    with serve(Model()) as server:
        assert main([*map(str, (*known, server.url))]) == 0


@pytest.mark.parametrize("part", ["[environment]", "[reward]"])
def test_a_function_that_has_changed_since_is_no_part_of_the_same_audit(task, capsys, refused, part):
    folder, recipe = task
    named = folder / "parts.py"
    if part == "[environment]":
        named = folder / "doors.py"
        named.write_text(PARTS)
        with recipe.open("a") as file:
            file.write(f'[environment]\ntype = "own"\npath = "{named}"\nfunction = "Doors"\n')
    whole = named.read_text()
    with serve(Model()) as server:
        known = ("--recipe", recipe, "--url", server.url, "--model", "m", "--samples", 12)
        path = messages_file(folder)
        audit(capsys, path, recipe, server.url, folder / "audit")
        settings = (folder / "audit" / "settings.json").read_bytes()
        named.write_text(f"{whole}# another one\n")
        message = refused("audit", path, "--out", folder / "audit", *known)
        assert f"{named} has changed since the audit in {folder / 'audit'} began. Restore it" in message
        named.write_text(whole)
        audit(capsys, path, recipe, server.url, folder / "audit")
    assert (folder / "audit" / "settings.json").read_bytes() == settings
