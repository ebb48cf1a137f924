"""Questions to the peer, `benchmarks.update.trl_peer`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness.peers import Peer
from benchmarks.update.ours import CLIP_HIGH, CLIP_LOW, Batch

MODULE = "benchmarks.update.trl_peer"
BATCH_SIZES = (1, 4, 16)


def open_peer(
    peer: Peer, folder: Path, batch: Batch, checkpointing: bool = False, device: str = "cpu"
) -> dict[str, str]:
    """Give the peer the model and the trees; its versions."""
    trees = folder / "trees.json"
    trees.write_text(json.dumps(batch.as_json()), encoding="utf-8")
    versions: dict[str, str] = peer.ask(
        {
            "folder": str(folder),
            "trees": str(trees),
            "clip_low": CLIP_LOW,
            "clip_high": CLIP_HIGH,
            "checkpointing": checkpointing,
            "device": device,
        }
    )["versions"]
    return versions


def fastest_batch(peer: Peer, what: str) -> tuple[int, dict[str, float]]:
    """The batch size that takes least processor time in the better of two runs each, and the seconds of all.

    The clock would choose by what else the machine does at that moment.
    """
    seconds: dict[str, float] = {}
    for _ in range(2):
        for size in BATCH_SIZES:
            took = float(peer.ask({"do": what, "batch": size})["cpu_seconds"])
            seconds[str(size)] = min(took, seconds.get(str(size), took))
    return int(min(seconds, key=lambda size: seconds[size])), seconds


def ask_update(peer: Peer, batch_size: int, gradients: Path | None = None) -> dict[str, Any]:
    """Loss and gradient of all trees."""
    question = {"do": "update", "batch": batch_size}
    return peer.ask(question if gradients is None else {**question, "gradients": str(gradients)})
