"""The worked example of docs/extending.md, run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from e2e_runs import SECONDS, TRAIN, overrides, write_task
from ramify.cli import main
from ramify.core.messages import ToolStatus
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
SCRIPT = r"""
[[turns]]
after = 0
text = '<lookup> {"place": "Paris", "limit": 1} </lookup>'
entropies = [0.5]
[[turns]]
after = 1
text = "<notes> on the Seine </notes>"
entropies = [2.5]
[[turns]]
after = 2
text = "<answer> \\boxed{ Paris } </answer>"
entropies = [1.5]
ends = true
"""


@pytest.fixture
def example(tmp_path):
    """The blocks of the example in a folder, by name."""
    section = PAGE.read_text(encoding="utf-8").split("\n## A tool of your own\n")[1].split("\n## ")[0]
    blocks = BLOCK.findall(section)
    assert [language for language, _ in blocks] == ["python", "toml", "text", "python", "text"]
    (tmp_path / "my_tools.py").write_text(blocks[0][1], encoding="utf-8")
    (tmp_path / "example.py").write_text(blocks[3][1], encoding="utf-8")
    return tmp_path, blocks[1][1], blocks[4][1]


def test_the_python_example_prints_what_the_page_says(example, model_folder):
    folder, _, printed = example
    done = subprocess.run(
        [sys.executable, "example.py", model_folder],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def test_the_recipe_grows_trees_with_both_tools(example, model_folder, monkeypatch, capsys):
    folder, tools, _ = example
    task = write_task(folder / "task", model_folder, TRAIN)
    text = task.read_text(encoding="utf-8")
    start, end = text.index("[tools.search]"), text.index("[reward]")
    task.write_text(text[:start] + tools + text[end:], encoding="utf-8")
    script = folder / "script.toml"
    script.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(folder)
    arguments = overrides(
        *("engine={name='scripted', script='script.toml'}", "data.max_prompt_tokens=2000", "rollout.max_tokens=500"),
        "rollout.branching={name='threshold', min_entropy_delta=0.5, probe_tokens=4}",
    )  # fmt: skip
    assert main(["rollout", str(task), *arguments]) == 0
    assert "tool lookup: lookup of my_tools.py, sha256 " in capsys.readouterr().out
    (file,) = trace_files(task.parent / "run" / "trees")
    trees = read_trees(file)
    assert any(decision.taken for traced in trees for decision in traced.tree.decisions)
    for traced in trees:
        for trajectory in traced.tree.trajectories:
            results = [result for _, result in trajectory.exchanges]
            assert [result.status for result in results] == [ToolStatus.OK] * 2
            assert results[0].text == '["capital of France"]'
            assert results[1].text == f"Notes on {traced.tree.problem.id} / on the Seine"


def test_a_mistake_in_the_file_is_one_line(example, model_folder, monkeypatch, refused):
    folder, *_ = example
    task = write_task(folder / "task", model_folder)
    monkeypatch.chdir(folder)
    (folder / "my_tools.py").write_text("def lookup(place) -> str:\n    'Looks.'\n", encoding="utf-8")
    own = "tools.own=[{path='my_tools.py', function='lookup'}]"
    message = refused("rollout", task, "-s", own)
    assert "my_tools.py: lookup: parameter 'place' has no type hint. Expected str, int" in message
