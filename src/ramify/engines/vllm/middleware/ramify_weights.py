"""Weights in buckets over gloo: both ends of it, the learner's and that of a vLLM server's worker.

It also runs in the server's Python, which has no ramify, so it imports nothing but torch and the standard library. vLLM
finds `register` by the entry point in `ramify_weights-1.dist-info`, beside this file; `--weight-transfer-config
'{"backend": "ramify"}'` chooses it.

A bucket is one message: the bytes of its tensors, one after the other, then its number (8 bytes) and a seal (32): an HMAC
over the hand-over's label, that number and the SHA-256 of each tensor. The key is drawn for each hand-over and comes with the
request to receive it, which asks for the server's key. So a bucket that is missing, late, damaged, of another hand-over or
of somebody else is refused. Nothing is pickled.
"""

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, pairwise
from pathlib import Path
from socket import if_nameindex
from typing import Any, TypeAlias

import torch
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

TRAILER_BYTES = 40
_NUMBER_BYTES = 8
_POLL_SECONDS = 0.005
_THREADS = 4
_POOL = ThreadPoolExecutor(_THREADS, "ramify-digests")
"""Explicit threads: torchrun leaves one to OpenMP."""

Load: TypeAlias = Callable[[list[tuple[str, torch.Tensor]]], object]


@dataclass(frozen=True)
class Meeting:
    """The place where the processes of a hand-over meet.

    Attributes:
        path: A file that all of them can write, in a folder that nobody else can enter.
        first_rank: Number of this server's first worker; the learner is 0.
        size: Number of processes.
        seconds: After which one that does not answer counts as gone.
    """

    path: str
    first_rank: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Delivery:
    """The contents of a hand-over, and its seal.

    Attributes:
        label: Label of the weights.
        key: Key of the seals, in hexadecimal digits.
        dtype: Type of all tensors, such as "bfloat16".
        names: The tensors in their order.
        shapes: Their shapes.
        buckets: How many of them are in each bucket.
    """

    label: str
    key: str
    dtype: str
    names: list[str]
    shapes: list[list[int]]
    buckets: list[int]

    def __post_init__(self) -> None:
        if not 0 < len(self.names) == len(self.shapes) == sum(self.buckets) or min(self.buckets) < 1:
            raise ValueError("names, shapes and buckets do not belong together")

    def parts(self) -> Iterator[list[tuple[str, list[int]]]]:
        """Yield names and shapes of each bucket."""
        tensors = zip(self.names, self.shapes, strict=True)
        for size in self.buckets:
            yield list(islice(tensors, size))


class AbsentError(RuntimeError):
    """Processes did not come to a meeting.

    Attributes:
        ranks: Their numbers.
    """

    def __init__(self, ranks: list[int], seconds: float) -> None:
        super().__init__(
            f"of a meeting's processes {', '.join(map(str, ranks))} did not come within {seconds:g} s"
        )
        self.ranks = ranks


def join(meeting: Meeting, rank: int, is_stopped: Callable[[], bool] = lambda: False) -> ProcessGroupGloo:
    """Return the group of a meeting's processes, once all have come. It listens on loopback alone.

    Raises:
        AbsentError: Some of them did not come.
        RuntimeError: They cannot connect, the meeting is over, or `is_stopped` became true.
    """
    _require_folder(meeting)
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    loopback = next(name for _, name in if_nameindex() if name in ("lo", "lo0"))
    options._devices = [gloo.create_device(interface=loopback)]
    options._timeout = timedelta(seconds=meeting.seconds)
    store = FileStore(meeting.path, meeting.size)
    store.set_timeout(timedelta(seconds=meeting.seconds))
    _wait_for_all(store, meeting, rank, is_stopped)
    group: ProcessGroupGloo = gloo(store, rank, meeting.size, options)
    return group


def _require_folder(meeting: Meeting) -> None:
    """Refuse a folder that is gone: FileStore would wait five minutes for it, and the whole process with it."""
    if not Path(meeting.path).parent.is_dir():
        raise RuntimeError("the meeting is over: its folder is gone, or this process cannot see it")


def _wait_for_all(store: FileStore, meeting: Meeting, rank: int, is_stopped: Callable[[], bool]) -> None:
    """Wait until all processes are there: gloo itself waits for each in a call that nothing ends early.

    The learner opens the meeting or ends it: who comes too late would wait in gloo for processes that have left.
    """
    until = time.monotonic() + meeting.seconds
    store.set(f"came-{rank}", "1")

    def absent() -> list[int]:
        if rank:
            return [] if store.check(["open"]) else [0]
        return [other for other in range(1, meeting.size) if not store.check([f"came-{other}"])]

    try:
        while True:
            _require_folder(meeting)
            if is_stopped() or store.check(["over"]):
                raise RuntimeError("the meeting is over: the learner has left it")
            if not (missing := absent()):
                break
            if time.monotonic() > until:
                raise AbsentError(missing, meeting.seconds)
            time.sleep(_POLL_SECONDS)
    except RuntimeError:
        if rank == 0 and Path(meeting.path).parent.is_dir():
            store.set("over", "1")
        raise
    if rank == 0:
        store.set("open", "1")


def seal(delivery: Delivery, number: int, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[str]]:
    """Return the message of a bucket, and a checksum of each of its tensors."""
    dtype = getattr(torch, delivery.dtype)
    ends = _ends(dtype, [list(tensor.shape) for tensor in tensors])
    message = torch.empty(ends[-1] + TRAILER_BYTES, dtype=torch.uint8)

    def enclose(position: int) -> str:
        tensor, part = tensors[position], message[ends[position] : ends[position + 1]]
        part.view(dtype).view(tensor.shape).copy_(tensor)
        return _digest(part)

    digests = list(_POOL.map(enclose, range(len(tensors))))
    trailer = number.to_bytes(_NUMBER_BYTES, "little") + _signature(delivery, number, digests)
    message[ends[-1] :] = torch.frombuffer(bytearray(trailer), dtype=torch.uint8)
    return message, digests


def opened(
    delivery: Delivery, number: int, part: Sequence[tuple[str, list[int]]], message: torch.Tensor
) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a message, which are views of it.

    Raises:
        ValueError: It is not bucket `number` of this delivery.
    """
    dtype = getattr(torch, delivery.dtype)
    ends = _ends(dtype, [shape for _, shape in part])
    slices = [message[start:end] for start, end in pairwise(ends)]
    digests = list(_POOL.map(_digest, slices))
    trailer = message[ends[-1] :].numpy().tobytes()
    sent = int.from_bytes(trailer[:_NUMBER_BYTES], "little")
    if sent != number:
        raise ValueError(f"{delivery.label}: bucket {sent} came where {number} was due")
    if not hmac.compare_digest(trailer[_NUMBER_BYTES:], _signature(delivery, number, digests)):
        raise ValueError(f"{delivery.label}: bucket {number} is damaged, or of another hand-over")
    return [(name, piece.view(dtype).view(shape)) for (name, shape), piece in zip(part, slices, strict=True)]


def _digest(part: torch.Tensor) -> str:
    content: Any = part.numpy()
    return hashlib.sha256(content).hexdigest()


def _ends(dtype: torch.dtype, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return where each tensor begins in a message, and where the last one ends."""
    ends = [0]
    for shape in shapes:
        ends.append(ends[-1] + math.prod(shape) * dtype.itemsize)
    return ends


def _signature(delivery: Delivery, number: int, digests: Sequence[str]) -> bytes:
    content = "\n".join((delivery.label, f"{number} of {len(delivery.buckets)}", *digests))
    return hmac.digest(bytes.fromhex(delivery.key), content.encode(), "sha256")


class Receiver:
    """A worker's end: takes buckets in their order, and knows if a hand-over is whole."""

    def __init__(self) -> None:
        """Nothing is joined yet."""
        self._group: Any = None
        self._is_whole = False

    def join(self, meeting: Meeting, rank_in_server: int) -> None:
        """Meet the learner and the other workers; RuntimeError if one does not come."""
        self._group = None
        self._group = join(meeting, meeting.first_rank + rank_in_server)

    def begin(self) -> None:
        """Expect a hand-over."""
        self._is_whole = False

    def receive(self, delivery: Delivery, load: Load) -> None:
        """Receive all buckets, and pass each on to `load` once it is found sound, while the next one comes.

        Raises:
            RuntimeError: The learner is gone, or was never joined.
            ValueError: A bucket is not what is due.
        """
        dtype, parts = getattr(torch, delivery.dtype), list(delivery.parts())

        def next_message(part: Sequence[tuple[str, list[int]]]) -> torch.Tensor:
            size = _ends(dtype, [shape for _, shape in part])[-1] + TRAILER_BYTES
            # New memory each time: vLLM keeps views of it until a layer is whole.
            message = torch.empty(size, dtype=torch.uint8)
            if self._group is None:
                raise RuntimeError("no learner was joined")
            # No name holds the group here: an error would keep it, and gloo closes connections with the last reference.
            self._group.broadcast(message, 0).wait()
            return message

        try:
            with ThreadPoolExecutor(1) as receiving:
                due = receiving.submit(next_message, parts[0])
                for number, part in enumerate(parts):
                    message = due.result()
                    if number + 1 < len(parts):
                        due = receiving.submit(next_message, parts[number + 1])
                    load(opened(delivery, number, part, message))
        except BaseException:
            # The learner must not wait for this worker.
            self.leave()
            raise
        self._is_whole = True

    def require_whole(self) -> None:
        """Raise RuntimeError if a hand-over was begun and its buckets did not all come."""
        if not self._is_whole:
            raise RuntimeError("the hand-over is not whole")

    def leave(self) -> None:
        """Close the connections."""
        self._group = None


def register() -> None:
    """Make vLLM know the engine "ramify" (entry point of the group vllm.general_plugins)."""
    from vllm.distributed.weight_transfer.factory import (  # type: ignore[import-not-found]
        WeightTransferEngineFactory,
    )

    with suppress(ValueError):  # vLLM may call this more than once
        WeightTransferEngineFactory.register_engine("ramify", "ramify_weights_engine", "RamifyWeights")
