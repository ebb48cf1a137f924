"""Two processes on one card: the learner, and a stand-in for a server that takes memory in turns with it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import SMALL, ModelSizes, learner_in, random_model
from benchmarks.gpu.update_rows import TREES, TreeRow
from benchmarks.harness.peers import Peer
from benchmarks.update.ours import make_batch
from benchmarks.update.trees import reasoning_tree

CHILD = "benchmarks.gpu.card_child"
_GIB = 2**30
_CONTEXT = 0.6
"""GiB that `ramify doctor` assumes of a second context."""
_AWAKE = 0.8
"""Share of the card that the stand-in takes while the learner rests."""
_MOST_KEPT = 1.05


def two_processes() -> Iterator[Figure]:
    """The learner at 0.5B."""
    whole = torch.cuda.mem_get_info()[1]
    yield from turns(SMALL, TREES[0], torch.device("cuda"), torch.bfloat16, int(_AWAKE * whole))


def turns(
    sizes: ModelSizes, tree: TreeRow, device: torch.device, dtype: torch.dtype, taken: int
) -> Iterator[Figure]:
    """A second context; an update; the other takes `taken` bytes while the learner rests; an update again, twice.

    Without a GPU no memory is counted, and the figures are 0.
    """
    learner = learner_in(random_model(sizes, str(device)), dtype)
    batch = make_batch(learner, [reasoning_tree(tree.seed, tree.trajectories, tree.shorter)])
    rows = batch.rows(tree.token_budget)
    losses = [learner.update_rows(rows, batch.denominator).loss]
    learner.ranks.all("release_memory")
    own = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    before = _used(device)
    with Peer(CHILD, Path(sys.executable)) as other:
        other.ask({"do": "open", "device": str(device)})
        context = (_used(device) - before) / _GIB
        yield Figure(
            "card.context",
            "GiB that the context of a second process takes on the card",
            context,
            f"at most {_CONTEXT}",
            context <= _CONTEXT,
            proves="doctor's allowance for servers that share the learner's GPU",
        )
        reserved = []
        for _ in range(2):
            other.ask({"do": "take", "device": str(device), "bytes": taken})
            other.ask({"do": "release", "device": str(device)})
            losses.append(learner.update_rows(rows, batch.denominator).loss)
            learner.ranks.all("release_memory")
            reserved.append(torch.cuda.memory_reserved() if device.type == "cuda" else 0)
    share = max(reserved) / own if own else 0.0
    yield Figure(
        "card.kept",
        "memory that the learner keeps while it rests / its weights and optimizer",
        share,
        f"at most {_MOST_KEPT}",
        share <= _MOST_KEPT,
        {"kept_gib": [size / _GIB for size in reserved], "taken_gib": taken / _GIB, "losses": losses},
        proves="two processes take 80 % of one card in turns, step after step, and neither runs out of memory",
    )


def _used(device: torch.device) -> int:
    """Bytes of the card that are in use by anybody."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    return whole - free
