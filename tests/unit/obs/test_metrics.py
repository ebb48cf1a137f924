"""The metrics log: appended, read back, cut at a resume."""

import json
import time

import pytest

from ramify.core.errors import DataError
from ramify.core.protocols import Event
from ramify.obs.metrics import MetricsLog, TimingLog, curve, read_metrics
from ramify.runtime.call_clock import EventLoopLag


def test_append_and_read_back(tmp_path):
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.append(1, {"loss": 0.1 + 0.2, "kl": None})
    log.append(2, {"loss": 2})
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert curve(rows, "loss") == ((1, 0.1 + 0.2), (2, 2))
    assert curve(rows, "kl") == ()
    assert all(row["time"] > 1.7e9 for row in rows)


def test_truncate_drops_later_steps_and_a_half_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.truncate_after(0)
    for step in (1, 2, 3):
        log.append(step, {"loss": float(step)})
    before = read_metrics(path)
    with path.open("a") as file:
        file.write('{"step":4,"lo')
    assert read_metrics(path) == before
    log.truncate_after(2)
    log.append(3, {"loss": 30.0})
    rows = read_metrics(path)
    assert rows[:2] == before[:2]
    assert curve(rows, "loss") == ((1, 1.0), (2, 2.0), (3, 30.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_value_that_is_not_finite_is_refused(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(ValueError, match="step 5: metric 'loss'"):
        MetricsLog(path).append(5, {"loss": value})
    assert not path.exists()


def test_reserved_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'time'"):
        MetricsLog(tmp_path / "m.jsonl").append(1, {"time": 1.0})


def test_lines_that_stay_are_not_touched(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1.50}\n{"step": 2, "time": 2}\n')
    MetricsLog(path).truncate_after(1)
    assert path.read_text() == '{"step": 1, "time": 1.50}\n'


def test_lost_lines_are_missed(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.missing(2) == (1, 2)
    for step in (1, 2, 4, 7):
        log.append(step, {})
    assert log.missing(2) == ()
    assert log.missing(8) == (3, 5, 6, 8)
    assert log.last_step() == 7


@pytest.mark.parametrize("now", [-1e9, 0.0, 4e9])
def test_a_clock_that_jumps_changes_a_time_and_nothing_else(tmp_path, monkeypatch, now):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"loss": 1.0})
    monkeypatch.setattr(time, "time", lambda: now)
    log.append(2, {"loss": 0.5})
    log.truncate_after(2)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert ([row["step"] for row in rows], rows[1]["time"]) == ([1, 2], now)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"loss":1}',
        '{"step":1,"loss":1}',
        '{"step":2,"loss":"low"}',
        '{"step":2,"loss":NaN}',
        '{"step":2,"loss":1e999}',
        '{"step":2.5}',
        '{"step":' + "9" * 400 + "}",
        '{"step":2,"loss":' + "9" * 400 + "}",
        '{"step":2,"loss":' + "9" * 5000 + "}",
        "[" * 100_000,
    ],
)
def test_bad_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"time":1.0}\n' + line + "\n")
    with pytest.raises(
        DataError, match=r"metrics\.jsonl row 2: .*\. Restore the file from a copy, or delete this line"
    ):
        read_metrics(path)


def test_flush_writes_and_forgets(tmp_path):
    log = TimingLog()
    log.start(100.0)
    log.start(101.0)
    log.emit(Event("tool", (3, 1), "0.0", 0.25, {"cache": "hit"}, 102.5))
    log.emit(Event("turn", (3, 1), "0", 1.5, begin=100.0))
    log.flush(tmp_path / "timing" / "3.jsonl", EventLoopLag(1.5, 0.25))
    log.emit(Event("turn", (4, 0), "1", 2.0))
    log.flush(tmp_path / "timing" / "4.jsonl", EventLoopLag(0.0, 0.0))
    first = [json.loads(line) for line in (tmp_path / "timing" / "3.jsonl").read_text().splitlines()]
    assert first == [
        {"kind": "event_loop", "seconds": 1.5, "longest": 0.25},
        {
            "kind": "tool",
            "tree": [3, 1],
            "node": "0.0",
            "begin": 2.5,
            "seconds": 0.25,
            "fields": {"cache": "hit"},
        },
        {"kind": "turn", "tree": [3, 1], "node": "0", "begin": 0.0, "seconds": 1.5, "fields": {}},
    ]
    assert len((tmp_path / "timing" / "4.jsonl").read_text().splitlines()) == 2


def test_a_foreign_reason_with_line_breaks_is_noted_on_one_line():
    log = TimingLog()
    for kind in ("problem/failed", "environment/open"):
        log.emit(Event(kind, (0, 0), "", 0.0, {"problem": "p1", "reason": "boom\nsecond\r\n line"}))
    notes = log.failure_notes()
    assert len(notes) == 2
    assert all("boom second line" in note and "\n" not in note for note in notes)
