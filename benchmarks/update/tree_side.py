"""Questions to the peer that packs trees, `benchmarks.update.tree_peer`. It is opened with `trl_side.open_peer`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.peers import Peer
from benchmarks.update.ours import Batch
from benchmarks.update.tree_attention import ATTENTIONS

TREE_MODULE = "benchmarks.update.tree_peer"
_SHIPPED = "TRL's own"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the peer computes: its attention, and the most tokens of a row."""

    attention: str
    tokens: int

    def __str__(self) -> str:
        return f"{self.attention}, rows of at most {self.tokens} tokens"


def layouts(batch: Batch, device: str = "cpu") -> tuple[Layout, ...]:
    """Rows of at least the longest trajectory, as TRL asks for; in the largest all trees of these rows fit."""
    sizes = [len(t["prompt"]) + len(t["completion"]) for tree in batch.as_json() for t in tree]
    attentions = tuple(ATTENTIONS) if device == "cpu" else (_SHIPPED,)
    budgets = (max(sizes), 2 * max(sizes), sum(sizes))
    return tuple(Layout(attention, tokens) for attention in attentions for tokens in budgets)


def fastest_layout(peer: Peer, choices: Sequence[Layout]) -> tuple[Layout, Mapping[str, float]]:
    """The layout that takes least processor time in the better of two runs each, and the seconds of all.

    The second round comes after the largest rows have once been computed, which makes the process's memory faster.
    """
    seconds: dict[Layout, float] = {}
    for _ in range(2):
        for layout in choices:
            pack_rows(peer, layout)
            took = float(ask_tree_update(peer)["cpu_seconds"])
            seconds[layout] = min(took, seconds.get(layout, took))
    return min(seconds, key=lambda layout: seconds[layout]), {str(k): v for k, v in seconds.items()}


def pack_rows(peer: Peer, layout: Layout) -> list[int]:
    """Pack the trees as the layout says; tokens of each row."""
    computed: list[int] = peer.ask({"do": "pack", **asdict(layout)})["computed"]
    return computed


def ask_tree_update(peer: Peer, gradients: Path | None = None) -> dict[str, Any]:
    """Loss and gradient of all rows."""
    question = {"do": "update"}
    return peer.ask(question if gradients is None else {**question, "gradients": str(gradients)})
