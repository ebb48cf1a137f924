"""Training steps in environments of servers, each of which is killed once in mid-step."""

import sys

import pytest
from e2e_runs import TRAIN, write_task

from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees

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
        once.write_text("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{query}: call {calls}"


server.run()
'''


SCRIPT = """
[[turns]]
after = 0
text = "<search> capital of France </search>"
entropies = [0.5]
[[turns]]
after = 1
text = "<search> capital of Italy </search>"
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
        for path in sorted((run / "trees").iterdir())
        for traced in read_trees(path)
    ]


def test_an_mcp_server_that_is_killed_costs_its_own_trajectory(tmp_path, model_folder):
    pytest.importorskip("mcp")
    server, once = tmp_path / "server.py", tmp_path / "once"
    server.write_text(MCP_SERVER)
    recipe = write_task(tmp_path / "task", model_folder, without_tools(TRAIN))
    (tmp_path / "script.toml").write_text(SCRIPT)
    settings = (
        f"environment={{type='mcp', command={[sys.executable, str(server), str(once)]}}}",
        f"engine={{name='scripted', script='{tmp_path / 'script.toml'}'}}",
        "rollout.max_tokens=400",
        "algorithm.old='recompute'",
    )
    asked = ["train", str(recipe), "--max-steps", "2", *(part for each in settings for part in ("-s", each))]
    assert main(asked) == 0
    assert once.read_text() == "killed"
    run = recipe.parent / "run"
    assert len(read_metrics(run / "metrics.jsonl")) == 2
    results = [result for tree in results_of(run) for result in tree]
    failed = [result for result in results if result.status is ToolStatus.ERROR]
    good = [result for result in results if result.status is ToolStatus.OK]
    assert failed
    assert good
    # Of one trajectory, and of those that branched from it.
    assert len({result.call_id.split(".")[0].split(":")[0] for result in failed}) == 1
