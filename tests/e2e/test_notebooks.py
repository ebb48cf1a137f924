"""The notebooks of examples/notebooks, and the one that `ramify init --notebook` writes, executed without Jupyter."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from test_your_own_task import shorten

from ramify.cli import main
from ramify.commands.init import PROJECT, as_notebook

pytestmark = pytest.mark.integration

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
LONGEST = 20
"""Lines of a cell."""


def execute(notebook):
    """Run the cells in turn; returns the values that they show, and the names at the end."""
    names, shown = {"__name__": "notebook"}, []
    for cell in notebook["cells"]:
        assert len(cell["source"].splitlines()) <= LONGEST
        if cell["cell_type"] != "code":
            continue
        body = ast.parse(cell["source"]).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))  # noqa: S307 - a cell of ours
    return [value for value in shown if value is not None], names


@pytest.fixture
def cells(tmp_path, smoke_quickstart, monkeypatch):
    """Execute a notebook of examples/ beside a smoke quick start."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/quickstart").symlink_to(smoke_quickstart)
    return lambda name: execute(as_notebook((NOTEBOOKS / name).read_text()))


def test_a_look_at_a_tree(cells, capsys):
    shown, names = cells("look_at_a_tree.py")
    assert all(hasattr(value, "_repr_html_") for value in shown)
    assert len(names["tree"].trajectories) == 16
    out = capsys.readouterr().out
    assert len(re.findall(r"advantage [+-]\d", out)) == 16
    assert any(row["S+"] or row["S-"] for row in names["credited"].tokens if row["mask"])


def test_parts_of_ones_own(cells):
    shown, names = cells("parts_of_your_own.py")
    assert shown[0] == "- Rola area 31\n- Rola age 57"
    assert names["policy"].step == 3
    assert [len(tree) for tree in names["trees"]] == [8] * 6
    assert set(names["trees"].scored[0].rewards[0].parts) >= {"right", "brief"}


def test_sft_then_rl_then_an_evaluation(cells):
    shown, names = cells("sft_rl_evaluation.py")
    losses = names["sft"].metrics.column("loss")
    assert losses[-1] < losses[0]
    assert names["run"].steps == (1, 2)
    assert len(names["before"]) == len(names["after"]) == 20
    difference = names["after"].score - names["before"].score
    assert any(getattr(value, "value", None) == pytest.approx(difference) for value in shown)


def test_the_notebook_of_a_new_project_goes_the_way_of_its_recipes(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "a price list"
    assert main(["init", str(folder), "--notebook"]) == 0
    assert f"cd '{folder}'" in capsys.readouterr().out
    shorten(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    try:
        _, names = execute(json.loads((folder / "notebook.ipynb").read_text()))
    finally:
        for name in ("shop", "make_problems"):
            sys.modules.pop(name, None)
    assert names["run"].steps == (1, 2)
    assert len(names["after"]) == 40
    calls = [call.name for tree in names["before"].trees for call, _ in tree.core.trajectories[0].exchanges]
    assert "price" in calls
    written = {path.name for path in folder.iterdir()}
    assert {path.name for path in PROJECT.iterdir() if path.is_file()} - written == {"notebook.py"}


def test_a_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path, refused):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is not empty; expected a new or empty folder" in refused("init", tmp_path / "full")
    assert "cannot be created: " in refused("init", tmp_path / "full" / "mine.txt" / "below")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert "cannot be created: " in refused("init", "/proc/ramify")
