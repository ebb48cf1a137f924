"""What a change of structure must not change; `frozen_batches.py` says how to compare two commits bit for bit."""

import json
import os
from pathlib import Path

import pytest
from frozen_batches import losses, record

NUMBERS = Path(__file__).parent / "frozen_losses.json"


def test_losses_and_gradients_are_those_recorded(tmp_path):
    """Across machines: the last bits may differ."""
    record_now = {
        key: value for key, value in losses(tmp_path).items() if key.rpartition("/")[2] in ("loss", "norm")
    }
    assert record_now == pytest.approx(json.loads(NUMBERS.read_text()), rel=1e-4, abs=1e-7)


@pytest.mark.skipif("RAMIFY_FROZEN" not in os.environ, reason="no record of another commit in RAMIFY_FROZEN")
def test_every_bit_is_that_of_another_commit(tmp_path):
    path = Path(os.environ["RAMIFY_FROZEN"])
    record_now = json.loads(json.dumps(record(tmp_path)))
    if not path.exists():
        path.write_text(json.dumps(record_now, indent=1, sort_keys=True) + "\n")
    expected = json.loads(path.read_text())
    assert {
        key: (record_now.get(key), value) for key, value in expected.items() if record_now.get(key) != value
    } == {}
    assert record_now.keys() == expected.keys()
