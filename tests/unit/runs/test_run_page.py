"""The page of a run, from the files in its folder."""

import json

import pytest

from ramify.obs.trace_index import write_indexed
from ramify.runs.page import run_page
from viewed_runs import one_path


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


@pytest.mark.parametrize("trained", [True, False])
def test_a_tree_that_is_not_what_its_index_lists_is_named_on_the_page(tmp_path, trained):
    """The index fits the last line, so its summaries are used: the page was refused as a whole."""
    trace = tmp_path / "trees" / "000001.jsonl"
    write_indexed(trace, [one_path(f"p{n}", n, "41", 0.0) for n in range(3)])
    first, *others = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join([b"\0" * (len(first) - 1) + b"\n", *others]))
    if trained:
        write_rows(tmp_path / "metrics.jsonl", {1: 1000.0})
    page = run_page(tmp_path)
    (failures,) = (section for section in page.sections if section.heading == "Failures")
    assert f"{trace} row 1" in failures.warnings[0]
    assert failures.tables[-1].rows
