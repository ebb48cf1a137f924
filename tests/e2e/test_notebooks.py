"""Notebooks of examples/notebooks, executed without Jupyter; `look_at_a_tree.py` is in test_your_own_task.py, whose trees branch."""

from pathlib import Path

import pytest

from doc_pages import run_example

pytestmark = pytest.mark.integration


@pytest.fixture
def cells(tmp_path, smoke_quickstart, monkeypatch):
    """Execute a notebook beside a smoke quick start."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/quickstart").symlink_to(smoke_quickstart)
    return run_example


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
