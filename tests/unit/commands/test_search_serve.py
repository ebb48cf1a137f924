"""`ramify search-serve` as a process of its own."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ramify.cli import main

pytestmark = pytest.mark.integration


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    path.write_text('{"id": "a", "text": "Paris is the capital of France."}\n{"text": "Rome."}\n')
    return path


@contextmanager
def served(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and what it said before it was ready."""
    command = [sys.executable, "-m", "ramify", "search-serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    watchdog = threading.Timer(200, process.kill)
    watchdog.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if " at http" in line:
                break
        else:
            raise AssertionError(f"it ended: {lines} {process.stderr.read()}")
        yield process, lines[-1].split(" at ")[1].split(";")[0], lines
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_stops_cleanly(corpus: Path, number: signal.Signals) -> None:
    with served(corpus) as (process, url, lines):
        assert lines[-1].startswith("2 passages of ")
        assert url.startswith("http://127.0.0.1:")
        hits = httpx.post(f"{url}/search", json={"query": "capital", "top_n": 1}, timeout=60).json()
        assert hits == [{"id": "a", "contents": "Paris is the capital of France."}]
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert out.strip() == "stopped"
    assert not corpus.with_name("passages.jsonl.index").exists()


def test_an_address_that_others_reach_is_warned_of(corpus: Path) -> None:
    with served(corpus, "--host", "0.0.0.0", "--index", corpus.with_name("kept")) as (_, url, lines):
        assert any("can be reached from other machines" in line for line in lines)
        assert any("building a search index" in line for line in lines)
        health = httpx.get(f"{url.replace('0.0.0.0', '127.0.0.1')}/health", timeout=60)
        assert health.json()["passages"] == 2
    assert json.loads((corpus.with_name("kept") / "manifest.json").read_text())["passages"] == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "99999"], "--port: expected a number from 0 to 65535"),
        (["--threads", "0"], "--threads: expected at least 1"),
        (["--workers", "0"], "--workers: expected at least 1"),
        (["--query-prefix", "query: "], "only --dense MODEL has prefixes"),
        (["--host", "no.such.host.invalid"], "cannot listen there"),
    ],
)
def test_mistakes_are_one_line(
    corpus: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["search-serve", str(corpus), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ramify search-serve: ")
    assert expected in err
    assert err.count("\n") == 1


def test_a_port_in_use_and_a_broken_file_are_named(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["search-serve", str(corpus), "--port", port]) == 2
        assert f"--port {port}: cannot listen there (Address already in use)" in capsys.readouterr().err
    corpus.write_text("{\n")
    assert main(["search-serve", str(corpus), "--port", "0"]) == 2
    assert "row 1" in capsys.readouterr().err


def test_a_folder_is_no_file_of_passages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--index", str(tmp_path / "index")]):
        assert main(["search-serve", str(tmp_path), "--port", "0", *options]) == 2
        assert f"{tmp_path}: is a folder. Expected a JSONL file" in capsys.readouterr().err


def begun(url: str) -> socket.socket:
    """A client that has sent half of its request."""
    host, port = url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(b'POST /search HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"query": "cap')
    return client


def test_clients_that_leave_are_no_news(corpus: Path) -> None:
    with served(corpus) as (process, url, _):
        for _ in range(3):
            begun(url).close()
        assert httpx.post(f"{url}/search", json={"query": "capital"}, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1] == ""


def test_clients_that_are_slow_are_counted_when_it_stops(corpus: Path) -> None:
    with served(corpus) as (process, url, _), begun(url), begun(url):
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Cancel 2 running task(s)" in err
        assert "Traceback" not in err
        assert err.count("\n") == 1


def ended(pid: int) -> bool:
    """Return True if the process has ended, as a zombie has too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def is_worker(pid: str) -> bool:
    """Return True for a worker; one that ends meanwhile is none."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def workers_of(process: subprocess.Popen[str], count: int) -> list[int]:
    """Process ids of the workers, once there are `count`."""
    while True:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if is_worker(pid)]
        if len(workers) == count:
            return workers
        time.sleep(0.05)


def ask(url: str) -> str:
    """The id of the first hit; connections may be cut while a worker dies."""
    while True:
        try:
            return str(httpx.post(f"{url}/search", json={"query": "capital"}, timeout=60).json()[0]["id"])
        except httpx.TransportError:
            time.sleep(0.05)


def test_workers_answer_are_replaced_and_end_with_the_service(corpus: Path) -> None:
    with served(corpus, "--workers", 2, "--index", corpus.with_name("index")) as (process, url, _):
        assert ask(url) == "a"
        first, second = workers_of(process, 2)
        os.kill(first, signal.SIGKILL)
        while first in workers_of(process, 2):
            time.sleep(0.05)
        assert ask(url) == "a"
        workers = workers_of(process, 2)
        assert second in workers
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("stopped\n", "")
        assert process.returncode == 0
        assert all(map(ended, workers))


@pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
def test_embeddings_answer_by_the_same_routes(corpus: Path, model_folder: Path) -> None:
    options = ("--dense", model_folder, "--workers", 2, "--query-prefix", "query: ")
    with served(corpus, *options) as (_, url, lines):
        assert any("embedding 2 passages" in line for line in lines)
        body = {"query": ["Rome.", "capital"], "top_n": 2, "return_score": True}
        documents, scores = httpx.post(f"{url}/batch_search", json=body, timeout=60).json()
        assert [{document["id"] for document in hits} for hits in documents] == [{"a", "2"}] * 2
        assert all(1.001 > first >= second for first, second in scores)
        assert httpx.get(f"{url}/health", timeout=60).json()["engine"] == f"dense {model_folder}"
    assert list(corpus.with_name("passages.jsonl.vectors").glob("*.npy"))


def test_workers_end_when_the_service_is_killed(corpus: Path) -> None:
    with served(corpus, "--workers", 2) as (process, url, _):
        assert ask(url) == "a"
        workers = workers_of(process, 2)
        process.kill()
        while not all(map(ended, workers)):
            time.sleep(0.05)
