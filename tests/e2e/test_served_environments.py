"""Training steps in environments of servers, each of which is killed once in mid-step."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from e2e_runs import SECONDS, TRAIN, overrides, write_task
from ports import held_port, takes_connections
from processes import wait_until
from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

pytestmark = pytest.mark.integration

MCP_SERVER = '''
import os
import pathlib
import signal
import sys

from mcp.server import MCPServer

server = MCPServer("facts")
calls = 0


@server.tool()
def search(query: str) -> str:
    """Looks something up."""
    global calls
    calls += 1
    once = pathlib.Path(sys.argv[1])
    if calls == 1 and not once.exists():
        # Of two servers at one time only the one that makes the file is killed.
        try:
            with once.open("x") as file:
                file.write("killed")
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return f"{query}: call {calls}"


server.run()
'''


SCRIPT = """
[[turns]]
after = 0
text = "{0}"
entropies = [0.5]
[[turns]]
after = 1
text = "{1}"
entropies = [2.5]
[[turns]]
after = 2
text = "<answer> Paris </answer>"
entropies = [1.5]
ends = true
"""


def without_tools(text):
    """The recipe without its tools and its sandbox."""
    tables = text.split("\n[")
    return "\n[".join(table for table in tables if not table.startswith(("tools", "sandbox")))


def results_of(run):
    return [
        [result for trajectory in traced.tree.trajectories for _, result in trajectory.exchanges]
        for path in trace_files(run / "trees")
        for traced in read_trees(path)
    ]


def train(tmp_path, model_folder, environment, first, second, between=lambda: None):
    """Two steps of a scripted policy, and `between` them; returns the results of each tree's trajectories."""
    recipe = write_task(tmp_path / "task", model_folder, without_tools(TRAIN))
    (tmp_path / "script.toml").write_text(SCRIPT.format(first, second))
    settings = (
        f"environment={environment}",
        f"engine={{name='scripted', script='{tmp_path / 'script.toml'}'}}",
        "rollout.n=4",
        "rollout.m=2",
        "rollout.max_tokens=400",
        "data.max_prompt_tokens=800",
        "algorithm.old='recompute'",
    )
    words = ["train", str(recipe), *overrides(*settings)]
    assert main([*words, "--max-steps", "1"]) == 0
    between()
    assert main([*words, "--max-steps", "2", "--resume"]) == 0
    run = recipe.parent / "run"
    assert len(read_metrics(run / "metrics.jsonl")) == 2
    return results_of(run)


def test_an_mcp_server_that_is_killed_costs_its_own_trajectory(tmp_path, model_folder):
    pytest.importorskip("mcp")
    server, once = tmp_path / "server.py", tmp_path / "once"
    server.write_text(MCP_SERVER)
    environment = f"{{type='mcp', command={[sys.executable, str(server), str(once)]}}}"
    searches = ("<search> capital of France </search>", "<search> capital of Italy </search>")
    results = [result for tree in train(tmp_path, model_folder, environment, *searches) for result in tree]
    assert once.read_text() == "killed"
    failed = [result for result in results if result.status is ToolStatus.ERROR]
    good = [result for result in results if result.status is ToolStatus.OK]
    assert failed
    assert good
    # Of one trajectory, and of those that branched from it.
    assert len({result.call_id.split(".")[0].split(":")[0] for result in failed}) == 1


@contextlib.contextmanager
def kept_running(start):
    """The processes that `start` gives: another one takes the place of each that ends, until the block ends."""
    running, stopped = [start()], threading.Event()

    def start_again():
        while not stopped.is_set():
            if running[-1].poll() is not None:
                running.append(start())
            stopped.wait(0.05)

    keeper = threading.Thread(target=start_again)
    keeper.start()
    try:
        yield running
    finally:
        stopped.set()
        keeper.join()
        for process in running:
            process.kill()
            process.wait()


def test_an_openenv_server_that_is_killed_and_comes_back_costs_its_open_sessions(tmp_path, model_folder):
    pytest.importorskip("websockets")
    once = tmp_path / "once"

    def start():
        command = [sys.executable, Path(__file__).parents[1] / "openenv_rooms.py", "stand-in", str(port)]
        environment = {**os.environ, "KILLED_ONCE": str(once)}
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)

    def wait_for_server():
        wait_until(lambda: takes_connections(port), SECONDS)

    with held_port() as port, kept_running(start) as running:
        wait_for_server()
        environment = f"{{type='openenv', url='http://127.0.0.1:{port}/room'}}"
        acts = ('<act> {\\"say\\": \\"die\\"} </act>', '<act> {\\"say\\": \\"dig\\"} </act>')
        trees = train(tmp_path, model_folder, environment, *acts, between=wait_for_server)
    assert once.read_text() == "killed"
    assert len(running) == 2
    first, later = trees[:2], trees[2:]
    failed = [result for tree in first for result in tree if result.status is ToolStatus.ERROR]
    assert failed
    assert all("the session has ended" in result.text for result in failed)
    assert {result.status for tree in later for result in tree} == {ToolStatus.OK}
