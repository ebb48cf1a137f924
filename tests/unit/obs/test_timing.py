"""Events are written once, keyed by node, after what the event loop lost."""

import json

from ramify.core.call_clock import HeldUp
from ramify.core.protocols import Event
from ramify.obs.timing import TimingLog


def test_flush_writes_and_forgets(tmp_path):
    log = TimingLog()
    log.emit(Event("tool", (3, 1), "0.0", 0.25, {"cache": "hit"}))
    log.emit(Event("turn", (3, 1), "0", 1.5))
    log.flush(tmp_path / "timing" / "3.jsonl", HeldUp(1.5, 0.25))
    log.emit(Event("turn", (4, 0), "1", 2.0))
    log.flush(tmp_path / "timing" / "4.jsonl", HeldUp(0.0, 0.0))
    first = [json.loads(line) for line in (tmp_path / "timing" / "3.jsonl").read_text().splitlines()]
    assert first == [
        {"kind": "event_loop", "seconds": 1.5, "longest": 0.25},
        {"kind": "tool", "tree": [3, 1], "node": "0.0", "seconds": 0.25, "fields": {"cache": "hit"}},
        {"kind": "turn", "tree": [3, 1], "node": "0", "seconds": 1.5, "fields": {}},
    ]
    assert len((tmp_path / "timing" / "4.jsonl").read_text().splitlines()) == 2
