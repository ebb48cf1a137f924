"""Events are written once, keyed by node."""

import json

from ramify.core.protocols import Event
from ramify.obs.timing import TimingLog


def test_flush_writes_and_forgets(tmp_path):
    log = TimingLog()
    log.emit(Event("tool", (3, 1), "0.0", 0.25, {"cache": "hit"}))
    log.emit(Event("turn", (3, 1), "0", 1.5))
    log.flush(tmp_path / "timing" / "3.jsonl")
    log.emit(Event("turn", (4, 0), "1", 2.0))
    log.flush(tmp_path / "timing" / "4.jsonl")
    first = [json.loads(line) for line in (tmp_path / "timing" / "3.jsonl").read_text().splitlines()]
    assert first == [
        {"kind": "tool", "tree": [3, 1], "node": "0.0", "seconds": 0.25, "fields": {"cache": "hit"}},
        {"kind": "turn", "tree": [3, 1], "node": "0", "seconds": 1.5, "fields": {}},
    ]
    assert len((tmp_path / "timing" / "4.jsonl").read_text().splitlines()) == 1
