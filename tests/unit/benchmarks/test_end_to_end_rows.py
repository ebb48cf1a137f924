"""Our side of rows 9: a whole step writes the workload, waits as drawn, and ends a call that hangs."""

import numpy as np
import pytest
from benchmarks.end_to_end.latencies import DEADLINE_SECONDS, HANG_SECONDS, waits
from benchmarks.end_to_end.ours import OurSteps
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.rollout.workload import reasoning

WORKLOAD = reasoning(0, 2, 2)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    write_tiny_model(folder)
    ours = OurSteps(folder, WORKLOAD)
    yield ours
    ours.close()


def test_a_step_writes_the_workload_and_takes_its_waits(steps):
    at_once = steps.step()
    assert at_once["written"] == sum(map(sum, WORKLOAD.turns))
    assert at_once["seconds"] > at_once["rollout"] > 0
    waiting = steps.step([[[0.4, 0.4]], [[0.1, 0.1]]])
    assert waiting["written"] == at_once["written"]
    assert waiting["rollout"] > 0.4


def test_a_call_that_hangs_is_issued_again_or_ends_at_its_deadline(steps):
    # The second issue of the first call answers; the second call hangs twice, for longer than any test may take.
    hour = 3600.0
    hanging = steps.step([[[hour, 0.0]], [[hour, hour]]])
    assert hanging["written"] == sum(map(sum, WORKLOAD.turns))
    assert DEADLINE_SECONDS < hanging["rollout"] < hour


def test_waits_are_equal_for_both_sides_and_have_a_tail():
    results = [[50, 60]] * 16
    assert waits(3, results) == waits(3, results) != waits(4, results)
    drawn = np.array([waits(step, results) for step in range(60)])
    assert drawn.shape == (60, 16, 2, 2)
    assert 0.002 < (drawn == HANG_SECONDS).mean() < 0.01
    assert np.median(drawn) == pytest.approx(0.12, rel=0.1)
