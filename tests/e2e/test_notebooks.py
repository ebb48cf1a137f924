"""The notebooks of examples/notebooks, executed without Jupyter on a smoke quick start."""

import re
from pathlib import Path

import pytest

from doc_pages import run_notebook
from ramify.commands.init import as_notebook

pytestmark = pytest.mark.integration

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


@pytest.fixture
def cells(tmp_path, smoke_quickstart, monkeypatch):
    """Execute a notebook of examples/ beside a smoke quick start."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/quickstart").symlink_to(smoke_quickstart)
    return lambda name: run_notebook(as_notebook((NOTEBOOKS / name).read_text()))


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
