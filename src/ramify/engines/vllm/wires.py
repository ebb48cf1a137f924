"""Wires between the learner and servers' workers: gloo with an engine of ours in the servers, and NCCL with vLLM's own.

A wire's methods block, and run in a thread; `stop` may be called from another one. Each `send` sends every bucket once.
"""

import base64
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Protocol

import torch

from ramify.core.protocols import Json, WeightBuckets
from ramify.engines.vllm.folder import LockedFolder
from ramify.engines.vllm.middleware.ramify_weights import Delivery, Meeting, join, seal
from ramify.engines.vllm.nccl import Communicator, NcclCommunicator

SECONDS = 60.0
"""How long either end of a wire waits for a process, at a meeting and for each bucket (NCCL: the learner's end alone)."""
_LATER_SECONDS = 5.0
"""By which servers wait longer than the learner, who can say which of them did not come."""
_POLL_SECONDS = 0.0005


class WireError(Exception):
    """A hand-over did not come to its end; another one may."""


class Wire(Protocol):
    """A way of weights into servers."""

    def meet(self, weights: WeightBuckets, first_ranks: Sequence[int], size: int) -> Sequence[Json]:
        """Arrange a meeting of `size` processes; returns what each server is sent, whose first worker has that rank."""
        ...

    def join(self) -> None:
        """Join the meeting, which the servers join at the same time.

        Raises:
            AbsentError: Processes with these ranks did not come.
            RuntimeError: One did not come, or the meeting failed.
            WireError: It was stopped.
        """
        ...

    def announce(self, weights: WeightBuckets, label: str) -> Json:
        """Return what each server is sent about a hand-over."""
        ...

    def send(self, weights: WeightBuckets) -> Mapping[str, str]:
        """Send all buckets of what was announced; returns a checksum of each tensor.

        Raises:
            RuntimeError: A process is gone.
            WireError: The learner has taken a step meanwhile, or it was stopped.
            DataError: A weight is NaN or infinite.
        """
        ...

    def stop(self) -> None:
        """Have what runs end early, and close the connections."""
        ...

    def remove(self) -> None:
        """Free all that it holds; it is not used again."""
        ...


class GlooWire:
    """Implements `Wire` over gloo, for servers of this machine and user."""

    def __init__(self, folder: LockedFolder) -> None:
        """Meet in files of `folder`, which nobody else can enter, and which this removes."""
        self._folder, self._meetings = folder, 0
        self._meeting: Meeting | None = None
        self._delivery: Delivery | None = None
        self._group: Any = None
        self._stopped = threading.Event()

    def meet(self, weights: WeightBuckets, first_ranks: Sequence[int], size: int) -> Sequence[Json]:  # noqa: ARG002 - of the protocol
        """See `Wire`."""
        self._meetings += 1
        path = self._folder.path / f"meeting-{self._meetings}"
        self._meeting = Meeting(str(path), 0, size, SECONDS)
        self._stopped.clear()
        shared = {**asdict(self._meeting), "seconds": SECONDS + _LATER_SECONDS}
        return [{**shared, "first_rank": rank} for rank in first_ranks]

    def join(self) -> None:
        """See `Wire`."""
        assert self._meeting is not None
        group = join(self._meeting, 0, self._stopped.is_set)
        if self._stopped.is_set():
            raise WireError("it was stopped")
        self._group = group

    def announce(self, weights: WeightBuckets, label: str) -> Json:
        """See `Wire`."""
        names = [name for bucket in weights.buckets for name in bucket]
        self._delivery = Delivery(
            label=label,
            key=secrets.token_hex(32),
            dtype=weights.dtype,
            names=names,
            shapes=[list(weights.shapes[name]) for name in names],
            buckets=[len(bucket) for bucket in weights.buckets],
        )
        return asdict(self._delivery)

    def send(self, weights: WeightBuckets) -> Mapping[str, str]:
        """See `Wire`; the next bucket is gathered and sealed while one travels."""
        digests: dict[str, str] = {}
        with ThreadPoolExecutor(1, "ramify-buckets") as ahead:
            due = ahead.submit(self._sealed, weights, 0)
            for number, names in enumerate(weights.buckets):
                message, checksums = due.result()
                if number + 1 < len(weights.buckets):
                    due = ahead.submit(self._sealed, weights, number + 1)
                digests.update(zip(names, checksums, strict=True))
                self._broadcast(message)
        return digests

    def _sealed(self, weights: WeightBuckets, number: int) -> tuple[torch.Tensor, list[str]]:
        assert self._delivery is not None
        return seal(self._delivery, number, _current(weights, number, on_cpu=True))

    def _broadcast(self, message: torch.Tensor) -> None:
        group = self._group
        if group is None:
            raise WireError("it was stopped")
        work = group.broadcast(message, 0)
        try:
            while not work.is_completed():
                if self._stopped.is_set():
                    raise WireError("it was stopped")
                time.sleep(_POLL_SECONDS)
            work.wait()
        finally:
            # gloo closes connections with the last reference, and an error keeps those of its frames.
            del work, group

    def stop(self) -> None:
        """See `Wire`."""
        self._stopped.set()
        self._group = None

    def remove(self) -> None:
        """See `Wire`."""
        self.stop()
        self._folder.remove()


class NcclWire:
    """Implements `Wire` over NCCL, with the engine "nccl" that vLLM has. Nobody has run it on GPUs yet.

    The servers get NCCL's id over HTTP, which asks for their key: vLLM's other way to meet is a store that carries pickles.
    """

    def __init__(self, communicator: type[Communicator] = NcclCommunicator) -> None:
        """Nothing is joined yet."""
        self._make = communicator
        self._communicator: Communicator | None = None

    def meet(self, weights: WeightBuckets, first_ranks: Sequence[int], size: int) -> Sequence[Json]:
        """See `Wire`."""
        group = self._make.new_id()
        # Made here, so that `stop` ends it also before the thread has begun to join.
        self._communicator = self._make(group, size, SECONDS)
        shared: dict[str, Json] = {
            "nccl_unique_id_b64": base64.b64encode(group).decode(),
            "world_size": size,
            "packed": True,
            # vLLM cuts what comes by the same rule as `WeightBuckets`.
            "packed_buffer_size_bytes": weights.bucket_bytes,
            "packed_num_buffers": 2,
        }
        return [{**shared, "rank_offset": rank} for rank in first_ranks]

    def join(self) -> None:
        """See `Wire`."""
        if (communicator := self._communicator) is None:
            raise WireError("it was stopped")
        communicator.join()

    def announce(self, weights: WeightBuckets, label: str) -> Json:  # noqa: ARG002 - of the protocol
        """See `Wire`; vLLM sets the label afterwards."""
        names = [name for bucket in weights.buckets for name in bucket]
        return {
            "names": names,
            "dtype_names": [weights.dtype] * len(names),
            "shapes": [list(weights.shapes[name]) for name in names],
        }

    def send(self, weights: WeightBuckets) -> Mapping[str, str]:
        """See `Wire`."""
        checksums: dict[str, str] = {}
        for number, names in enumerate(weights.buckets):
            if (communicator := self._communicator) is None:
                raise WireError("it was stopped")
            tensors = _current(weights, number, on_cpu=False)
            pieces = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
            communicator.broadcast(torch.cat(pieces))
            checksums.update((name, _sum(piece)) for name, piece in zip(names, pieces, strict=True))
        return checksums

    def stop(self) -> None:
        """See `Wire`. Servers that wait in NCCL are not freed by it."""
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.abort()

    def remove(self) -> None:
        """See `Wire`."""
        self.stop()


def _current(weights: WeightBuckets, number: int, *, on_cpu: bool) -> Sequence[torch.Tensor]:
    tensors = weights.tensors(number, on_cpu=on_cpu)
    if tensors is None:
        raise WireError("the learner has taken a step meanwhile")
    return tensors


def _sum(piece: torch.Tensor) -> str:
    """Return a checksum that a GPU computes in no time: it tells if a tensor changed, and guards against nobody."""
    return str(int(piece.view(torch.int16).sum(dtype=torch.int64)))
