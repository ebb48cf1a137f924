"""Tools and deadlines are served while the engine computes a long step."""

from statistics import median

from benchmarks.rollout.slow_steps import roll_out

STEP_SECONDS = 0.2


def test_calls_do_not_wait_for_steps():
    done = roll_out(trajectories=16, step_seconds=STEP_SECONDS)
    assert done.statuses == {"ok": 32}
    assert median(done.own_seconds) < STEP_SECONDS / 2
    assert done.held_up.longest < STEP_SECONDS / 2
