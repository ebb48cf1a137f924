"""`ramify view` on runs that the commands made: the page of each kind, its commands, and a server that two people watch."""

import json
import re
import shlex
import shutil
import signal
import socket
import threading

import httpx
import pytest

from e2e_runs import EVAL, SECONDS, SYNTH, TRAIN, overrides, start, write_task
from ramify.cli import COMMANDS, main
from ramify.commands.parser import make_parser
from ramify.obs.trace import tree_record
from ramify.obs.trace_index import write_index
from ramify.view.payload import RunView
from viewed_runs import one_path, write_evaluation, write_training

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model_folder):
    """A training run of two steps, and an evaluation of the same problems."""
    folder = tmp_path_factory.mktemp("view")
    task = write_task(folder / "rl", model_folder, TRAIN)
    script = f'engine={{name="scripted",script="{folder / "rl" / "script.toml"}"}}'
    assert main(["train", str(task), "--max-steps", "2"]) == 0
    evaluation = write_task(folder / "eval", model_folder, EVAL)
    assert (
        main(["eval", str(evaluation), *overrides(script, "data.limit=3", "tools.python.timeout_seconds=10")])
        == 0
    )
    return folder


def test_a_trained_run_has_tokens_times_credit_and_commands_that_exist(trained):
    run = trained / "rl" / "run"
    view = RunView([run])
    about = view.run()
    assert (about["kind"], about["live"]) == ("train", False)
    assert [s["id"] for s in about["sources"] if s["step"]] == ["trees/000001", "trees/000002"]
    assert about["algorithms"][0] == "of the run"
    assert "reward/mean" in about["series"]
    tree = view.tree("trees/000002", 0)
    written = [node for node in tree["nodes"] if node["source"] == "policy"]
    for node in tree["nodes"]:
        assert "".join(node["tokens"]) == node["text"]
        assert len(node["tokens"]) == len(node["ids"])
    assert all(node["time"]["seconds"] > 0 for node in written if node["parent"] == "")
    assert all(len(tree["credit"]["nodes"][node["id"]]["s_plus"]) == len(node["ids"]) for node in written)
    other = view.credit("trees/000002", 0, about["algorithms"][-1])
    assert other["nodes"].keys() == {node["id"] for node in written}
    names = [command["name"] for command in tree["commands"]]
    assert names == ["grow again from here", "rescore", "make a pair", "turn into a test", "open here"]
    for command in tree["commands"]:
        text = command["template"].format(node="0", leaf="0", other="1").partition("  # ")[0]
        program, *words = shlex.split(text)
        assert program == "ramify"
        make_parser(COMMANDS, words[0]).parse_args(words)


def test_runs_of_other_kinds_and_whole_folders_are_shown(trained, tmp_path, model_folder):
    task = write_task(tmp_path / "synth", model_folder, SYNTH)
    assert main(["synth", str(task), *overrides("data.limit=2")]) == 0
    for folder, kind in ((trained / "eval" / "run", "evaluation"), (tmp_path / "synth" / "run", "synthesis")):
        view = RunView([folder])
        assert view.run()["kind"] == kind
        for source in view.run()["sources"]:
            assert view.tree(source["id"], 0)["trajectories"][0]["why"]
            assert len(view.index(source["id"])["rows"]) == source["trees"] > 0
    view = RunView([trained])
    assert {each["name"] for each in view.run()["runs"]} == {"rl/run", "eval/run"}
    again = shutil.copytree(trained / "eval" / "run", tmp_path / "again")
    about = dict(RunView([trained / "eval" / "run", again]).run()["about"])
    assert about["Right in the second only"] == about["Right in the first only"] == "0 problems"
    page = tmp_path / "page.html"
    assert main(["view", str(trained), "--out", str(page), "--redact"]) == 0
    assert page.read_text().count("<script") == 3 + len(view.sources)


def test_two_people_watch_a_run_that_grows(tmp_path):
    attempts = [one_path(f"p{number}", 0, "some text", float(number % 2)) for number in range(40)]
    folder = write_evaluation(tmp_path / "eval", attempts[:1])
    process = start("view", folder)
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        address = re.fullmatch(r"(http://127\.0\.0\.1:(\d+)/)#token=(\S{32})\n", process.stdout.readline())
        url, port, token = address.groups()
        assert not _answers(_own_address(), int(port))
        numbers = {"first": [], "second": []}
        with httpx.Client(base_url=url, headers={"x-ramify-token": token}, timeout=SECONDS) as client:
            assert client.get("/").text.startswith("<!doctype html>")
            for traced in attempts[1:]:
                with (folder / "trees.jsonl").open("a") as file:
                    file.write(json.dumps(tree_record(traced), separators=(",", ":")) + "\n")
                threads = [threading.Thread(target=_watch, args=(client, each)) for each in numbers.values()]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        assert numbers["first"] == numbers["second"] == list(range(2, 41))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err, out.splitlines()[-1]) == (0, "", "stopped")
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def _watch(client, numbers):
    rows = client.get("/api/index", params={"source": "trees"}).json()["rows"]
    assert client.get("/api/tree", params={"source": "trees", "row": len(rows) - 1}).status_code == 200
    assert client.get("/api/run").json()["sources"][0]["trees"] == len(rows)
    numbers.append(len(rows))


def _own_address():
    """An address of this machine that is not loopback; 127.0.0.2 on one without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return probe.getsockname()[0]


def _answers(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["missing"], "missing: expected the folder of a run"),
        (
            ["run/trees.jsonl"],
            "run/trees.jsonl: expected the folder of a run. It is a file: name the folder above.",
        ),
        (["run", "run"], "run: is the first run"),
        (["run", "--port", "70000"], "--port: expected a number from 0 to 65535"),
        (["run", "--out", "page.html", "--port", "8000"], "--port: has no effect with --out"),
        (["run", "--out", "run"], "--out run: is a folder"),
        (["run", "--out", "page.html", "--serve"], "not allowed with"),
        (["run", "--out", "run/results.jsonl"], "run/results.jsonl would be overwritten"),
        (["run", "--otlp", "run/trees/000001.jsonl"], "run/trees/000001.jsonl would be overwritten"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, refused, words, expected):
    monkeypatch.chdir(tmp_path)
    write_evaluation(tmp_path / "run", [one_path("p0", 0, "41", 1.0)])
    # A trace of another schema is left out of a page, and no page takes its place.
    (tmp_path / "run" / "trees").mkdir()
    (tmp_path / "run" / "trees" / "000001.jsonl").write_text('{"schema":5,"was":0}\n')
    assert expected in refused("view", *words)


@pytest.mark.parametrize("option", ["--out", "--otlp"])
def test_a_tree_that_cannot_be_read_is_left_out_with_a_note(tmp_path, capsys, option):
    trees = [one_path(f"p{number}", number, "41", 1.0) for number in range(3)]
    folder = write_training(tmp_path / "rl", {1: trees})
    trace, written = folder / "trees" / "000001.jsonl", tmp_path / "written"
    write_index(trace)
    first, second, third = trace.read_text().splitlines(keepends=True)
    trace.write_text(first + second.replace('"nodes"', '"knots"') + third)
    assert main(["view", str(folder), option, str(written)]) == 0
    output = "".join(capsys.readouterr())
    assert "warning: trees that are left out: 1, the first: " in output
    assert "000001.jsonl row 2: " in output
    assert written.read_text().count("invoke_agent rl") == (2 if option == "--otlp" else 0)
