"""`ramify eval` as people run it: killed and resumed, refused, without a recipe."""

import json
import random
import shutil
import signal
import tomllib
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from e2e_runs import EVAL, overrides, python, read_lines, write_lines, write_task
from loopback import as_json, serve
from ramify.chat.tokenizer import ChatTokenizer
from ramify.cli import main
from ramify.core.errors import DataError
from ramify.engines.scripted import load_script
from ramify.eval.results import read_records
from ramify.learner.pack import pack
from ramify.obs.trace import read_trees
from random_trees import credited

SETTINGS = (
    "sampling.max_calls=3", "sampling.max_tokens=120", "sampling.attempts=4", "sampling.k=[1, 4]",
    "tools.python.timeout_seconds=10", "sandbox.min_level=0",
)  # fmt: skip
ONCE = ("sampling.attempts=1", "sampling.k=[1]")
FILES = ("summary.json", "results.jsonl", "trees.jsonl")


def words(folder, *settings):
    engine = f'engine={{name="scripted",script="{folder / "script.toml"}"}}'
    return overrides(engine, *SETTINGS, *settings)


@pytest.fixture(scope="module")
def task(tmp_path_factory, model_folder):
    rows = [
        {"id": f"p{i}", "prompt": f"what is {i} plus 30 ?", "answer": ["42", "Paris", "x"][i % 3], "level": i % 2}
        for i in range(12)
    ]  # fmt: skip
    return write_task(tmp_path_factory.mktemp("task"), model_folder, EVAL, problems=rows)


@pytest.fixture(scope="module")
def finished(task, forked):
    """The folder of an evaluation that nobody stopped, with 48 attempts."""
    run = task.parent / "finished"
    status, out, err = forked("eval", task, *words(task.parent, f"run.dir={run}"), "--resume")
    assert status == 0, err
    assert "nothing to resume" in out
    return run


@pytest.fixture
def copied(task, finished, tmp_path):
    """A copy of it, and the words of a command that goes on there."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    return run, ("eval", str(task), *words(task.parent, f"run.dir={run}"), "--resume")


def test_killed_at_random_points_and_resumed_it_is_the_same_evaluation(task, finished, tmp_path, forked):
    run = tmp_path / "run"
    draw, kills, was = random.Random(5), 0, -1
    results = run / "results.jsonl"
    command = ("eval", task, "--resume", *words(task.parent, f"run.dir={run}"))
    for _ in range(40):
        written = (r"^open .*/(results|times|trees)\.jsonl a", draw.randrange(2, 25))
        status, _, err = forked(*command, at=written)
        if status != -signal.SIGKILL:
            assert status == 0, err
            break
        kills += 1
        with results.open("ab") as file:
            file.write(b'{"problem":"p0","att')
        done = len(read_records(run))
        assert done >= was
        was = done
    else:
        pytest.fail("it never ended")
    assert kills >= 2
    for name in FILES:
        assert (run / name).read_bytes() == (finished / name).read_bytes(), name
    keys = [(record.problem, record.attempt) for record in read_records(run)]
    assert keys == [(f"p{i}", attempt) for i in range(12) for attempt in range(4)]
    assert len(read_trees(run / "trees.jsonl")) == 48


def test_agents_that_know_nothing_are_scored_beside_the_model(task, tmp_path, capsys):
    rows = read_lines(task.parent / "problems.jsonl")
    for row in rows[:3]:
        row["answer"] = row["prompt"]
    own = (f"data.test={write_lines(tmp_path / 'rows.jsonl', rows)}", f"run.dir={tmp_path / 'run'}", *ONCE)
    assert main(["eval", str(task), *words(task.parent, *own), "--null"]) == 0
    null = json.loads((tmp_path / "run" / "summary.json").read_text())["null"]
    assert {name: each["value"] for name, each in null.items()} == {"empty": 0, "random": 0, "echo": 0.25}
    expected = "agents that know nothing: empty 0.000, random 0.000, echo 0.250. Warning: 25%"
    assert expected in capsys.readouterr().out
    assert "Agents that know nothing" in (tmp_path / "run" / "report.html").read_text()
    assert len(read_records(tmp_path / "run")) == 12


def test_what_is_done_is_not_done_again(copied, capsys):
    run, command = copied
    before = {name: (run / name).read_bytes() for name in FILES}
    results = before["results.jsonl"].splitlines(keepends=True)
    (run / "results.jsonl").write_bytes(b"".join(results[:30]) + results[30][:20])
    assert main([*command]) == 0
    output = capsys.readouterr().out
    assert "30 of 48 attempts are done" in output
    assert "evaluation 18/18" in output
    assert {name: (run / name).read_bytes() for name in FILES} == before


def test_another_recipe_or_data_is_refused(task, copied, refused):
    run, command = copied
    there = f"{run} holds an evaluation"
    assert f"run.dir: {there}; go on with --resume" in refused(*command[:-1])
    other = refused(*command, "-s", "sampling.temperature=0.5")
    assert f"{there} with sampling.temperature = 1.0, now it is 0.5" in other
    assert "with seed = 0, now it is 4" in refused(*command, "-s", "run.seed=4")
    problems = task.parent / "problems.jsonl"
    rows = problems.read_text()
    problems.write_text(rows.replace("what is 3 plus", "what is 4 plus"))
    message = refused(*command)
    problems.write_text(rows)
    assert "with problems.sha256 =" in message


def test_what_does_not_fit_into_a_folder_is_refused_before_anything_is_done(copied, refused, capsys):
    run, command = copied
    lines = (run / "results.jsonl").read_text().splitlines(keepends=True)

    def resumed_with(*changed):
        (run / "results.jsonl").write_text("".join(changed))
        return refused(*command)

    twice = resumed_with(*lines, lines[0])
    assert "row 49: attempt 0 at problem 'p0' is in row 1 already" in twice
    assert "row 1: not an attempt" in resumed_with(lines[0].replace('"correct":true', '"correct":"yes"'))
    assert "row 1: not an attempt" in resumed_with(lines[0].replace('"reward":', '"reward":NaN,"x":'))
    foreign = lines[0].replace('"problem":"p0"', '"problem":"other"')
    assert "attempt 0 at problem 'other' is not of this evaluation" in resumed_with(foreign, *lines[1:])
    (run / "results.jsonl").write_text("".join(lines))
    (run / "trees.jsonl").write_text("")
    capsys.readouterr()
    assert main([*command]) == 0
    assert "trees.jsonl lacks 48 attempts that are done" in capsys.readouterr().out
    (run / "manifest.json").unlink()
    assert "holds an evaluation without its manifest.json" in refused(*command)
    assert len(read_records(run)) == 48


def test_other_weights_under_the_same_name_are_refused(task, refused, caller, model_folder, tmp_path):
    link = tmp_path / "model"
    link.symlink_to(caller)
    settings = overrides(f"model.path={link}", "run.threads=1", "data.limit=2", f"run.dir={tmp_path / 'run'}")
    assert main(["eval", str(task), *settings]) == 0
    link.unlink()
    link.symlink_to(model_folder)
    assert "with weights.model = " in refused("eval", task, "--resume", *settings)


def test_the_summary_has_levels_tools_and_a_manifest(finished):
    run = finished
    summary = json.loads((run / "summary.json").read_text())
    assert summary["num_problems"] == 12
    assert set(summary["groups"]["level"]) == {"0", "1"}
    assert {"search", "python"} <= set(summary["tools"])
    assert summary["pass_at"]["4"]["value"] > summary["pass_at"]["1"]["value"]
    assert summary["stops"]["answered"] > 0
    scores = json.loads((run / "manifest.json").read_text())["scores"]
    assert scores["problems"]["count"] == 12
    assert scores["tool_identities"]["search"]["corpus"]
    assert scores["prompts"]["first"].count("what is 0 plus 30 ?") == 1
    page = (run / "report.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "By level" in page
    assert page.count("<svg") >= 2


def test_an_evaluation_refused_for_its_model_starts_anew_when_that_is_mended(tmp_path, model_folder, refused):
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    task = write_task(tmp_path / "task", model, EVAL)
    weights = load_file(model / "model.safetensors")
    norm = weights["model.norm.weight"]
    save_file(
        weights | {"model.norm.weight": norm * float("nan")}, model / "model.safetensors", {"format": "pt"}
    )
    assert "NaN or infinity" in refused("eval", task)
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert main(["eval", str(task)]) == 0
    assert "holds an evaluation; go on with --resume" in refused("eval", task)


def test_without_a_recipe(task, capsys, refused, caller, tmp_path):
    out = tmp_path / "out"
    plain = ["--model", str(caller), "--dataset", str(task.parent / "problems.jsonl")]
    more = ["--limit", "3", "--attempts", "2", "--out", str(out), "-s", "sandbox.min_level=0"]
    assert main(["eval", *plain, *more, "--dry-run"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert (shown["sampling"]["k"], shown["data"]["limit"], shown["engine"]["name"]) == ([1, 2], 3, "local")
    assert main(["eval", *plain, *more, "-s", "sampling.max_tokens=32"]) == 0
    assert len(read_records(out)) == 6
    assert "expected a recipe, or --model and --dataset" in refused("eval", "--model", caller)
    assert "--limit: expected a recipe or" in refused("eval", task, "--limit", "3")


def test_ctrl_c_keeps_what_has_ended(task, forked, tmp_path):
    run = tmp_path / "run"
    command = ("eval", str(task), *words(task.parent, f"run.dir={run}", *ONCE))
    status, _, err = forked(*command, when=(str(run / "results.jsonl"), 1, signal.SIGINT))
    assert status in (0, 130), err
    if status == 130:
        assert "go on with --resume" in err
    assert main([*command, "--resume"]) == 0
    assert len(read_records(run)) == 12


STOPS = ("</search>", "</python>", "</answer>", "<result>")


@pytest.mark.parametrize("says_which", [True, False], ids=["like vLLM", "like others"])
def test_an_endpoint_is_evaluated_and_its_trees_are_not_trained_on(
    task, tmp_path, model_folder, refused, says_which
):
    folder = task.parent
    script = load_script(folder / "script.toml", "\n</result>")
    tokenizer = ChatTokenizer(model_folder)

    def answer(request):
        if request.method == "GET":
            return as_json(
                {"data": [{"id": "m", "owned_by": "vllm"}]} if says_which else {}, 200 if says_which else 404
            )
        body = request.json()
        assert body["stop"] == list(STOPS)
        if body.get("echo"):
            text = tokenizer.decode(body["prompt"]) if says_which else ""
            return as_json({"choices": [{"text": text, "finish_reason": "length"}]})
        prompt = tokenizer.decode(body["prompt"]) if says_which else body["prompt"]
        text = script(prompt, body["seed"]).text
        at, stop = min((text.find(stop), stop) for stop in body["stop"] if stop in text)
        which = {"stop_reason": stop} if says_which else {}
        return as_json({"choices": [{"text": text[:at], "finish_reason": "stop", **which}]})

    with serve(answer) as server:
        engine = f'engine={{name="openai",url="{server.url}/v1",model="m"}}'
        own = (engine, f"run.dir={tmp_path / 'run'}", *ONCE)
        assert main(["eval", str(task), *words(folder, *own)]) == 0
    run = tmp_path / "run"
    records = read_records(run)
    assert {record.stop for record in records} == {"answered"}
    assert {len(record.calls) for record in records} == {2}
    assert {call.status for record in records for call in record.calls} == {"ok"}
    assert {record.answer for record in records} == {"42", "Paris"}
    traced = read_trees(run / "trees.jsonl")
    policy = [node for item in traced for node in item.tree.nodes if node.behavior_logprobs]
    assert not any(node.exact_ids for node in policy)
    tree = traced[0].tree
    credit = {node.id: None for node in tree.trajectories[0].policy_nodes}
    with pytest.raises(DataError, match="Train on trees of an engine that returns token ids"):
        pack(credited((tree,), (credit,)), 100)
    assert json.loads((run / "manifest.json").read_text())["scores"]["weights"] is None
    assert f"m at {server.url}/v1 (tokenizer " in (run / "report.html").read_text()
    notes = json.loads((run / "summary.json").read_text())["notes"]
    assert any("gets token ids" in note for note in notes) == says_which
    training = write_task(tmp_path / "training", tmp_path)
    message = refused("train", training, "-s", 'engine={name="openai",url="http://127.0.0.1:9/v1",model="m"}')
    assert "engine.name: expected one of local, scripted, vllm, got 'openai'" in message


def test_an_evaluation_against_a_server_loads_no_library_that_computes(task, tmp_path):
    choice = {"text": "<think> sum </think> <answer> \\boxed{42} </answer>", "finish_reason": "stop"}
    heavy = {"torch", "transformers", "peft", "pyarrow", "sympy", "trafilatura"}
    with serve(lambda _: as_json({"choices": [choice]})) as server:
        engine = f'engine={{name="openai",url="{server.url}/v1",model="m"}}'
        own = (engine, f"run.dir={tmp_path / 'run'}", *ONCE)
        code = (
            "import sys\nfrom ramify.cli import main\n"
            f"assert main({['eval', str(task), *words(task.parent, *own)]}) == 0\n"
            f"sys.stderr.write(str({heavy} & sys.modules.keys()))"
        )
        done = python(code)
    assert (done.returncode, done.stderr) == (0, "set()"), done.stderr
    assert len(read_records(tmp_path / "run")) == 12


BENCHMARKS = ("aime24", "bamboogle", "gsm8k", "hotpotqa", "math500", "musique", "SimpleQA", "webwalker")


def test_benchmarks_from_files_to_a_summary(task, tmp_path, shared_dir):
    folders = [str(shared_dir / "data" / "eval" / name) for name in BENCHMARKS]
    settings = words(
        task.parent, f"data.test={folders}", "data.limit=6", "data.max_prompt_tokens=9000", *ONCE,
        f"run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert main(["eval", str(task), *settings]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    groups = summary["groups"]["benchmark"]
    scored = {name: group["pass_at"]["1"]["n"] for name, group in groups.items()}
    assert scored == {name.casefold(): 6 for name in BENCHMARKS}
    assert sum(group["pass_at"]["1"]["n"] for group in summary["groups"]["language"].values()) == 48
    prompts = {
        traced.tree.problem.id: traced.tree.nodes[0].text
        for traced in read_trees(tmp_path / "run" / "trees.jsonl")
    }
    assert len(prompts) == 48
    assert all("<search>" in prompt for prompt in prompts.values())


def test_a_card_says_what_a_run_was_made_from_and_what_it_scored(copied, tmp_path, capsys, refused):
    run, _ = copied
    summary, manifest = (json.loads((run / name).read_text()) for name in ("summary.json", "manifest.json"))
    assert main(["card", str(run)]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["scores"]["pass_at"] == summary["pass_at"]
    assert (card["made_from"], card["made_with"]) == (manifest["scores"], manifest["made_with"])
    assert card["recipe"]["sampling"]["attempts"] == 4
    (run / "summary.json").unlink()
    assert "is not finished" in refused("card", run)
    assert "no run" in refused("card", tmp_path)


def test_a_run_is_scored_as_the_release_scores_texts(task, tmp_path, capsys):
    folders, run = [], tmp_path / "run"
    for name, key, gold in (("bamboogle", "question", ["Paris"]), ("aime24", "problem", "42")):
        (tmp_path / name).mkdir()
        row = {"id": 1, key: "what is 12 plus 30 ?", "answer": gold}
        folders.append(str(write_lines(tmp_path / name / "test.jsonl", [row]).parent))
    test = ("data.instructions=false", "data.max_prompt_tokens=400", f"data.test={folders}", f"run.dir={run}")
    assert main(["eval", str(task), *words(task.parent, *test)]) == 0
    capsys.readouterr()
    assert main(["score", str(run), "--compat", "arpo"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == ["bamboogle", "aime24"]
    records = read_records(run)
    for name, part in (("bamboogle", "f1"), ("aime24", "math_equal")):
        own = [record for record in records if record.problem.startswith(name)]
        assert figures[name]["n"] == len(own) == 4
        assert figures[name][part] == sum(record.correct for record in own) / 4
    assert main(["score", str(run), "--task", "qa", "--compat", "arpo"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8
