"""Servers' own checksums of their weights (vLLM's /weight_checker), compared with what the learner sent.

A server may hold a tensor in another form (in one with others, in parts, packed for a processor), so its checksum is not
ours. But where a tensor of ours has changed since the last hand-over, the parameter that holds it must have changed too. One
that has not was forgotten: the server computes with old weights, in whatever precision and however small the step. vLLM's CPU build
packs linear layers away and shows them empty, which says nothing.
"""

import hashlib
import math
from collections.abc import Mapping, Set

from ramify.core.protocols import WeightBuckets
from ramify.engines.vllm.server import VllmServer, transfer_seconds
from ramify.net.failures import FailureKind, RequestFailedError

_JOINT = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Layers that vLLM makes of several."""
_EMPTY = hashlib.sha256().hexdigest()
_SMALL = 10**9
"""Numbers of a model whose checksums are compared after every hand-over: vLLM computes them on one core of its CPU, 1 to 2 GB a second."""


class WeightChecks:
    """The weights that servers hold, by their checksums. Of large models one change of each server is looked at, then no more."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._known: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {}
        self._proven: set[str] = set()

    async def look(self, server: VllmServer, sent: Mapping[str, str], weights: WeightBuckets) -> None:
        """Compare a server's weights with a hand-over that it says it has taken.

        Args:
            server: The server.
            sent: Checksum of each tensor that was sent.
            weights: The learner's weights.

        Raises:
            RequestFailedError: It holds old weights.
        """
        numbers = sum(map(math.prod, weights.shapes.values()))
        if server.url in self._proven and numbers > _SMALL:
            return
        # Of four bytes each, or two.
        held = await server.weight_checksums(transfer_seconds(4 * numbers))
        if held is None:
            return
        before_sent, before_held = self._known.get(server.url, (sent, held))
        changed = {name for name, checksum in sent.items() if before_sent.get(name) != checksum}
        if stale := unchanged(before_held, held, changed):
            more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
            raise RequestFailedError(
                FailureKind.SERVER, f"{server.url} still has its old {stale[0]}{more} after a hand-over"
            )
        self._known[server.url] = sent, held
        if changed:
            self._proven.add(server.url)


def unchanged(before: Mapping[str, str], after: Mapping[str, str], changed: Set[str]) -> list[str]:
    """Return the parameters of a server that hold a tensor which has `changed`, and are as `before` in all their parts."""
    moved: dict[str, bool] = {}
    for key, checksum in after.items():
        name = key.rpartition(":")[2]
        moved[name] = moved.get(name, False) or checksum == _EMPTY or before.get(key) != checksum
    return sorted(name for name, has_moved in moved.items() if not has_moved and changed & _held(name))


def _held(name: str) -> set[str]:
    """Return the tensors that a server's parameter may be made of."""
    owner, _, kind = name.rpartition(".")
    module, _, layer = owner.rpartition(".")
    return {f"{module}.{part}.{kind}" for part in _JOINT.get(layer, (layer,))}
