"""The page of a run, from the files in its folder."""

import json

import pytest

from ramify.runs.page import run_page


def write_rows(path, times):
    path.write_text("".join(json.dumps({"step": s, "time": t, "loss": 0.5}) + "\n" for s, t in times.items()))


@pytest.mark.parametrize("evaluated", [{}, {0: 940.0}, {0: 940.0, 2: 1130.0}])
def test_the_time_of_a_run_is_that_from_its_first_line_to_its_last(tmp_path, evaluated):
    """An evaluation before the first step is no end: the time was below zero."""
    write_rows(tmp_path / "metrics.jsonl", {1: 1000.0, 2: 1120.0, 3: 1240.0})
    write_rows(tmp_path / "evals.jsonl", evaluated)
    (card,) = (card for card in run_page(tmp_path).cards if card.title == "Time")
    first = min([1000.0, *evaluated.values()])
    assert card.value == f"{(1240.0 - first) / 60:.1f}\u00a0min"
    assert card.note == f"for {3 + len(evaluated)} steps and evaluations"
