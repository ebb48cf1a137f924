"""Notes about slow work: when they come, and the time left."""

from ramify.runtime.progress import ProgressNotes


def test_notes_come_after_ten_seconds_and_then_each_minute_with_the_time_left():
    lines, now = [], [100.0]
    progress = ProgressNotes(lines.append, "hub: weights", 1000, lambda: now[0])
    # 200 of them were there before this process: they say nothing about its pace.
    for done in range(200, 1001, 10):
        progress.reach(done)
        now[0] += 1.5
    assert lines == [
        "hub: weights: 27% after 10 s, 1:50 min left",
        "hub: weights: 67% after 1:10 min, 50 s left",
    ]


def test_work_of_no_size_and_work_that_does_not_advance():
    lines, now = [], [0.0]
    for total in (0, 10):
        progress = ProgressNotes(lines.append, "x", total, lambda: now[0])
        progress.reach(0)
        now[0] += 60
        progress.reach(0)
    assert lines == ["x: 0% after 1:00 min"]
