"""The evaluations that ship as recipes, on three problems: real parts, and stand-ins on loopback for every service."""

import json
from pathlib import Path

import pytest

from chat_service import chat_service
from e2e_runs import overrides, write_task
from loopback import Reply, as_json, serve
from ramify.cli import main
from ramify.engines.scripted import load_script
from ramify.eval.results import read_records

RECIPES = Path(__file__).parents[2] / "recipes"
PAGE = "<html><body><p>Paris is the capital of France, and has been so for a long time. {}</p></body></html>"
FILLER = " ".join(f"Sentence number {i} is about its streets." for i in range(40))


@pytest.fixture
def task(tmp_path, caller):
    rows = [
        {"id": f"p{i}", "prompt": "what is 12 plus 30 ?", "answer": [42, "Paris"][i % 2]} for i in range(3)
    ]
    return write_task(tmp_path / "task", caller, problems=rows).parent


def words(task, model, **settings):
    common = {
        "model.path": model, "data.test": task / "problems.jsonl", "data.max_prompt_tokens": 200,
        "run.dir": task / "run", "run.threads": 1, "sandbox.min_level": 0,
    }  # fmt: skip
    return overrides(common | settings)


def test_reasoning(task, caller):
    small = {"sampling.max_tokens": 64, "tools.search.corpus": task / "passages.jsonl"}
    assert main(["eval", str(RECIPES / "eval_reasoning.toml"), *words(task, caller, **small)]) == 0
    records = read_records(task / "run")
    assert len(records) == 15
    assert any(record.correct for record in records)
    summary = json.loads((task / "run" / "summary.json").read_text())
    assert set(summary["pass_at"]) == {"1", "3", "5"}
    assert set(summary["parts"]) == {
        *("correct", "format", "bonus", "em", "f1", "lenient", "acc", "math_equal", "unread", "timeout")
    }


def test_a_policy_that_never_stops_calling_reads_the_released_replies_and_can_still_answer(task, caller):
    """After five programs and ten searches the tools reply with the released sentences, and so they do to a query made twice."""
    replies = []

    def write(messages, body):
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
        assert [body[name] for name in names] == [0.6, 0.95, 20, 0.0, 1.1, 400]
        turns = [message for message in messages if message["role"] == "user"][1:]
        if len(turns) < 7:
            return f"<python> print({len(turns)}) </python>"
        if len(turns) < 19:
            return f"<search> query {max(len(turns), 8)} </search>"
        replies.append([turn["content"] for turn in turns])
        return "<answer> \\boxed{42} </answer>"

    with chat_service(write, models=("m",), owned_by="vllm") as server:
        values = {
            "engine": f'{{name="openai", api="chat", url="{server.url}/v1", model="m"}}',
            "sampling.max_turn_tokens": 400,
            "sampling.max_tokens": 6000,
            "data.limit": 1,
            "sampling.attempts": 1,
            "sampling.k": "[1]",
            "tools.search.corpus": task / "passages.jsonl",
        }
        assert main(["eval", str(RECIPES / "eval_reasoning.toml"), *words(task, caller, **values)]) == 0
    (record,) = read_records(task / "run")
    assert (record.stop, record.answer) == ("answered", "42")
    statuses = [(call.tool, call.status == "over_limit") for call in record.calls]
    assert statuses == (
        [("python", False)] * 5 + [("python", True)] * 2
        + [("search", False), ("search", True)] + [("search", False)] * 9 + [("search", True)]
    )  # fmt: skip
    ((*texts,),) = replies
    assert "The maximum python call limit is exceeded. You are not allowed to use python." in texts[5]
    assert "You have searched this query. Please refer to previous results." in texts[8]
    assert "The maximum search limit is exceeded. You are not allowed to search." in texts[18]
    (note,) = json.loads((task / "run" / "summary.json").read_text())["notes"][-1:]
    assert "so no default of the servers" in note


def test_tool_star_asks_the_model_itself_for_repairs(task, caller):
    small = {"sampling.max_tokens": 120, "tools.search.corpus": task / "passages.jsonl"}
    small |= {"repair.max_tokens": 16, "repair.refiner.at_tokens": 40}
    assert main(["eval", str(RECIPES / "eval_toolstar.toml"), *words(task, caller, **small)]) == 0
    records = read_records(task / "run")
    assert len(records) == 3
    assert all(
        sum(call.tool == tool and call.status != "over_limit" for call in record.calls) <= 3
        for record in records
        for tool in ("search", "python")
    )
    assert "repairs" in json.loads((task / "run" / "summary.json").read_text())


class Services:
    """Search, a page, the engine, the summary model and the judge of one evaluation, each under a path of its own."""

    def __init__(self, script):
        self.script = script
        self.url = ""

    def __call__(self, request):
        match request.path:
            case "/request":
                assert request.headers["authorization"] == "Bearer key-of-search"
                hit = {
                    "link": f"{self.url}/page",
                    "title": "France",
                    "description": "Paris is the capital of France",
                }
                return as_json({"organic": [hit]})
            case "/page":
                return Reply(200, PAGE.format(FILLER).encode(), {"content-type": "text/html"})
            case "/engine/v1/completions":
                return self.complete(request.json())
            case "/summary/v1/chat/completions":
                mark, data, *_ = request.json()["messages"][1]["content"].split("\n", 1)
                assert "Paris is the capital of France, and has been so" in data
                return reply(f"{mark} FACTS\nParis is the capital.")
            case "/judge/v1/chat/completions":
                mark, *lines, _ = request.json()["messages"][1]["content"].split("\n")
                data = json.loads("\n".join(lines))
                right = data["candidate_answer"] in data["accepted_answers"]
                return reply(f"{mark} {'CORRECT' if right else 'INCORRECT'}")
        return Reply(404)

    def complete(self, body):
        assert (body["temperature"], body["top_p"], body["top_k"]) == (0.6, 0.95, 20)
        assert (body["repetition_penalty"], "min_p" in body) == (1.1, False)
        if body.get("echo"):
            return as_json({"error": "prompt: expected a text"}, 400)
        text = self.script(body["prompt"], body["seed"]).text
        at, stop = min((text.find(stop), stop) for stop in body["stop"] if stop in text)
        return as_json({"choices": [{"text": text[:at], "finish_reason": "stop", "stop_reason": stop}]})


def reply(text):
    return as_json({"choices": [{"index": 0, "message": {"content": text}}]})


def test_deep_search(task, caller, monkeypatch):
    monkeypatch.setenv("BRIGHTDATA_API_KEY", "key-of-search")
    services = Services(load_script(task / "script.toml", "\n</result>"))
    with serve(services) as server:
        services.url = server.url
        values = {
            "engine.url": f"{server.url}/engine/v1", "tools.search.url": server.url,
            "tools.browser.networks": '["127.0.0.0/8"]',
            "tools.browser.summary.url": f"{server.url}/summary/v1",
            "tools.cache.path": task / "search.sqlite", "reward.judge.url": f"{server.url}/judge/v1",
            "reward.judge.cache": task / "judge.sqlite", "sampling.max_tokens": 600,
        }  # fmt: skip
        assert main(["eval", str(RECIPES / "eval_deepsearch.toml"), *words(task, caller, **values)]) == 0
        paths = [request.path for request in server.requests]
    run = task / "run"
    records = read_records(run)
    assert len(records) == 15
    golds = {"p0": "42", "p1": "Paris", "p2": "42"}
    assert [record.correct for record in records] == [
        record.answer == golds[record.problem] for record in records
    ]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["judge"]["judged"], summary["judge"]["without_verdict"]) == (15, 0)
    assert summary["tools"]["search"]["executed"] == summary["tools"]["search"]["calls"] > 0
    assert summary["cost"]["total"] > 0
    assert "Paris is the capital." in (run / "trees.jsonl").read_text()
    # The page is read once, each query is sent once, and each answer to a question is judged once.
    assert paths.count("/page") == 1
    assert paths.count("/request") <= 2
    assert paths.count("/judge/v1/chat/completions") <= 4
    assert "key-of-search" not in "".join(path.read_text() for path in run.glob("*.json*"))
