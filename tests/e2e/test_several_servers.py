"""An evaluation on several servers: one is killed in the middle, one is of another model. The servers are processes of their own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from chat_service import chat_service
from e2e_runs import EVAL, overrides, write_lines, write_task
from ramify.cli import main
from ramify.eval.results import read_records

PROBLEMS = 12


def write(messages, body):
    """Search once, then answer right or wrong as the seed says."""
    time.sleep(0.05)
    if len(messages) < 3:
        return "<think> I look. </think><search> capital of France </search>"
    return f"<answer> \\boxed{{{('Paris', 'Rome')[body['seed'] % 2]}}} </answer>"


def serve_until_killed(results=None):
    """Serve; with a file of results, die at the first request after four attempts have ended, and leave their number."""
    last = threading.Lock()

    def dying(messages, body):
        text = write(messages, body)
        done = results.read_bytes().count(b"\n") if results.exists() else 0
        if done >= 4:
            last.acquire()
            results.with_name("killed_at").write_text(f"{done}")
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    model = write if results is None else dying
    with chat_service(model, says_which=True, models=("m",)) as server:
        print(server.url, flush=True)  # noqa: T201 - the test reads it
        threading.Event().wait()


@contextmanager
def server_process(*results):
    paths = [str(Path(__file__).parents[1]), *sys.path]
    process = subprocess.Popen(
        [sys.executable, __file__, *results],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def task(tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, EVAL)
    rows = [
        {"id": f"p{i}", "prompt": f"what is the capital of France, {i} ?", "answer": "Paris"}
        for i in range(PROBLEMS)
    ]
    write_lines(recipe.parent / "problems.jsonl", rows)
    return recipe


def words_of(task, out, urls):
    engine = f'engine={{name="openai",api="chat",url={json.dumps(urls)},model="m",slots=6}}'
    limits = ("sampling.max_calls=3", "sampling.max_tokens=600", "data.max_prompt_tokens=600")
    return ["eval", str(task), *overrides(engine, *limits, f"run.dir={task.parent / out}")]


def test_one_of_two_servers_is_killed_in_the_middle(task):
    """Nothing is lost and nothing doubled: the results are those of one server that was never touched."""
    results = task.parent / "two" / "results.jsonl"
    with server_process(results) as url, server_process() as other:
        assert main(words_of(task, "two", [f"{url}/v1", f"{other}/v1"])) == 0
        assert main(words_of(task, "one", f"{other}/v1")) == 0
    records = read_records(task.parent / "two")
    assert 4 <= int(results.with_name("killed_at").read_text()) < len(records) == 2 * PROBLEMS
    assert len({(record.problem, record.attempt) for record in records}) == len(records)
    assert {record.correct for record in records} == {True, False}
    for name in ("results.jsonl", "trees.jsonl"):
        assert (task.parent / "two" / name).read_bytes() == (task.parent / "one" / name).read_bytes()
    summary = json.loads((task.parent / "two" / "summary.json").read_text())
    assert summary["model"]["url"] == f"{url}/v1, {other}/v1"
    assert [note for note in summary["notes"] if f"{url}/v1 does not answer" in note]


def test_a_server_of_another_model_is_refused_by_name_before_the_first_attempt(task, refused):
    with chat_service(write, models=("m",)) as right, chat_service(write, models=("other",)) as wrong:
        line = refused(*words_of(task, "run", [f"{right.url}/v1", f"{wrong.url}/v1"]))
        assert not [request for request in wrong.requests if request.method == "POST"]
    assert f"engine.model: {wrong.url}/v1 serves 'other', not 'm'" in line


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], "expected an address such as http://127.0.0.1:8000, or a list of them"),
        (["http://a", "http://a/"], "expected each address once, got http://a twice"),
        (["http://a", "a"], "entry 2 of the list: expected an address such as http://127.0.0.1:8000"),
        (["http://a", 3], "entry 2 of the list: expected an address such as http://127.0.0.1:8000"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_line(task, refused, urls, message):
    assert f"engine.url: {message}" in refused(*words_of(task, "run", urls))


if __name__ == "__main__":
    serve_until_killed(*map(Path, sys.argv[1:]))
