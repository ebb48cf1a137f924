"""A finished run as a line: sums of costs, and seconds that neither an evaluation nor a kill is counted in."""

import json

import pytest

from ramify.core.errors import DataError
from ramify.study.arms import PlannedRun
from ramify.study.lines import has_trees, line_of

METRICS = {"tokens/written": 100.0, "calls/executed": 7.0, "branch/taken": 3.0}
SESSION = {"commit": "abc", "python": "3.12", "packages": {"ramify": "1"}, "device": "cpu"}


@pytest.fixture
def run(tmp_path):
    """Four steps of 10, 10, an unknown number and 11 seconds: the process was killed in the third."""
    write(tmp_path / "metrics.jsonl", {1: 110, 2: 120, 3: 520, 4: 541}, METRICS)
    write(tmp_path / "evals.jsonl", {0: 100, 3: 530, 4: 549}, {"eval/pass@1": 0.5})
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 2, "made_with": [SESSION]}))
    return PlannedRun("rule", 3, tmp_path, (), {"name": "threshold"}, None)


def write(path, times, metrics):
    rows = ({"step": step, "time": time, **metrics} for step, time in times.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_costs_are_sums_and_a_step_in_which_a_process_started_is_an_average_step(run):
    line = line_of(run, "print", {"data.train": "12ab"}, None, starts=[90, 500])
    mean = (10 + 10 + 11) / 3
    assert line.column("step") == [0, 3, 4]
    assert line.column("seconds") == pytest.approx([0, 20 + mean, 31 + mean], abs=1e-3)
    assert (line.column("tokens"), line.column("calls")) == ([0, 300, 400], [0, 21, 28])
    assert (line.branches, line.commit) == ((3.0,) * 4, "abc")
    assert (line.packages, line.inputs) == ({"python": "3.12", "ramify": "1"}, {"data.train": "12ab"})


def test_trees_of_a_run_that_is_trained_again_are_whole_after_its_last_step(run):
    line = line_of(run, "print", {}, None, [])
    assert not has_trees(run.folder, line)
    (run.folder / "trees").mkdir()
    assert has_trees(run.folder, line)
    write(run.folder / "metrics.jsonl", {1: 110, 2: 120, 3: 520}, METRICS)
    assert not has_trees(run.folder, line)


def test_a_folder_of_an_older_version_or_with_lost_steps_is_refused(run):
    write(run.folder / "metrics.jsonl", {1: 110, 2: 120}, METRICS)
    with pytest.raises(DataError, match="an evaluation at step 3, and 2 steps"):
        line_of(run, "print", {}, None, [])
    write(run.folder / "metrics.jsonl", {1: 110}, {"tokens/written": 100.0})
    with pytest.raises(DataError, match="a step without 'calls/executed'"):
        line_of(run, "print", {}, None, [])
