"""Tools and deadlines are served while the engine computes a long step."""

from statistics import median

from benchmarks.rollout.slow_steps import roll_out

STEP_SECONDS = 0.3


def test_calls_do_not_wait_for_steps():
    # What a call takes on this machine, whatever else it does.
    idle = roll_out(trajectories=16, step_seconds=0.0)
    done = roll_out(trajectories=16, step_seconds=STEP_SECONDS)
    assert done.statuses == {"ok": 32}
    assert median(done.own_seconds) < median(idle.own_seconds) + STEP_SECONDS / 2
    # One that is held up by steps is so nearly all of the time; a busy machine now and then.
    assert done.held_up.seconds < done.seconds / 3
