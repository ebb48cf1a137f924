"""Decides how a model is trained on GPUs of a given memory, and says what takes how much. Pure; loads no library.

All sizes are bytes of one process, which has a GPU (or the CPU) for itself. With several processes, or a model that computes
in 16 bits, what is trained is kept in float32, split over the processes, and gathered to compute (`learner.sharding`). A
single process in float32 keeps everything whole, and so does one that trains an adapter.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeAlias

from ramify.modeling.row_bytes import SHARES, RowBytes, row_bytes

Gather: TypeAlias = Literal["once", "by_layer"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How split weights lie, beyond how many ranks there are.

    Attributes:
        gather: They are gathered `once` an optimizer step, or `by_layer`, around each layer's own passes.
        offload: They lie in the machine's memory, with their optimizer, and not on a GPU.
    """

    gather: Gather = "once"
    offload: bool = False


GATHERED_ONCE = Layout()

ROW, HEAD = "row", "logits of the row"
"""The parts of a plan that one row takes; the others are there whatever the row."""

KEPT = ("weights", "adapter", "optimizer", "reference model")
"""The parts that a process keeps on its GPU from step to step."""

_FLOAT = 4
_LAYERS_AT_ONCE = 3
"""Layers that are whole at a time when gathered one by one: the one that computes, the next one, the buffer it comes in."""
_GRADIENTS_AT_ONCE = 2
"""Layers whose gradients are whole then: of the last backward pass, and of the one that is being summed."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")
_NO_ROW = RowBytes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of parameters.

    Attributes:
        base: Of the whole model, a tied one counted once, without an adapter.
        adapter: Of an adapter beside it; 0: the model itself is trained, or nothing is.
        layer: Of the largest layer.
        outside: Of what is in no layer: embedding, last norm, head.
        head: Of the head, which is as large as the embedding.
    """

    base: int
    adapter: int
    layer: int
    outside: int
    head: int

    @classmethod
    def of(cls, shapes: Mapping[str, Iterable[int]], adapter: int = 0) -> "ModelSize":
        """The sizes of a model whose parameters have these shapes, by name."""
        layers: dict[str, int] = {}
        outside = []
        for name, shape in shapes.items():
            found = _LAYER.search(name)
            if found is None:
                outside.append(prod(shape))
            else:
                layers[found[1]] = layers.get(found[1], 0) + prod(shape)
        return cls(
            base=sum(outside) + sum(layers.values()),
            adapter=adapter,
            layer=max(layers.values(), default=0),
            outside=sum(outside),
            head=max(outside, default=0),
        )

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.outside < 2 * self.head


@dataclass(frozen=True, slots=True)
class Job:
    """What is computed, and on what.

    Attributes:
        config: The model's configuration, or its values under the same names; None: no row is counted.
        size: The model's numbers of parameters.
        number_bytes: Of a number that the model computes with: 4 or 2.
        row_tokens: Unique tokens of the largest row (`config.sizes.largest_row`); 0: nothing is trained.
        processes: One a GPU.
        copies: How many times the weights are there, each time split over processes / copies.
        has_reference: A frozen copy of the model lies beside it. (A new adapter's base is its own reference.)
        beside: Bytes that others take on the same GPU all the time, by what they are for: an engine, its keys and values.
        device: "cuda" or "cpu".
    """

    config: Any
    size: ModelSize
    number_bytes: int
    row_tokens: int
    processes: int = 1
    copies: int = 1
    has_reference: bool = False
    beside: Mapping[str, int] = field(default_factory=dict)
    device: str = "cuda"

    @property
    def trains(self) -> bool:
        """Whether there are gradients."""
        return self.row_tokens > 0

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return (self.size.adapter or self.size.base) if self.trains else 0

    @property
    def is_split(self) -> bool:
        """Whether what is trained is kept in float32 apart from what computes."""
        return self.trains and (self.processes > 1 or (self.number_bytes < _FLOAT and not self.size.adapter))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How a job is done, and what it takes at the peak of an update.

    Attributes:
        gather: Weights are gathered `once` an optimizer step, or `by_layer`, around each layer's own passes.
        recompute: Layers of a row are computed again in the backward pass.
        offload: What is kept in float32 lies in the machine's memory and not on the GPU.
        parts: Bytes on each GPU by what they are for.
        host: Bytes in the machine's memory for each process, because of `offload`.
        room: Bytes that tensors may take on each GPU.
    """

    gather: Gather
    recompute: bool
    offload: bool
    parts: Mapping[str, int]
    host: int
    room: int

    @property
    def total(self) -> int:
        """Bytes on each GPU."""
        return sum(self.parts.values())

    @property
    def row(self) -> int:
        """Bytes of the largest row."""
        return self.parts.get(ROW, 0) + self.parts.get(HEAD, 0)

    @property
    def fits(self) -> bool:
        """Whether the room suffices."""
        return self.total <= self.room


def choose(job: Job, room: int) -> MemoryPlan:
    """The fastest plan whose row has some of `room` to spare (`row_bytes.SHARES`); else the smallest, whether it fits or not.

    In the order of what they cost: computing layers again (a forward pass more), gathering by layer (all weights cross the
    network for each row), the state in the machine's memory (it crosses the bus, and the optimizer runs on the CPU).
    """
    gathers: tuple[Gather, ...] = ("once", "by_layer") if job.is_split else ("once",)
    plans = [plan_of(job, room, gather, recompute) for gather in gathers for recompute in (False, True)]
    for plan in plans:
        if plan.row <= SHARES[job.device] * (room - plan.total + plan.row):
            return plan
    smallest = min(plans, key=lambda plan: plan.total)
    if smallest.fits or not job.is_split or job.device == "cpu":
        return smallest
    return plan_of(job, room, "by_layer", True, offload=True)


def plan_of(job: Job, room: int, gather: Gather, recompute: bool, *, offload: bool = False) -> MemoryPlan:
    """What a job takes when it is done in this way."""
    row = _NO_ROW
    if job.trains and job.config is not None:
        row = row_bytes(
            job.config, job.row_tokens, job.number_bytes, job.device, adapter=job.size.adapter > 0
        )
    state = _state(job)
    parts = {
        **({} if offload else state),
        **_gathered(job, gather),
        **job.beside,
        ROW: row.recomputed if recompute else row.layers,
        HEAD: row.head,
    }
    host = sum(state.values()) if offload else 0
    return MemoryPlan(
        gather, recompute, offload, {name: size for name, size in parts.items() if size}, host, room
    )


def _state(job: Job) -> dict[str, int]:
    """What a process keeps from step to step, and its part of the gradients."""
    parts = job.processes // job.copies
    base, trained = (-(-count // parts) for count in (job.size.base, job.trained))
    is_whole = job.trains and not job.size.adapter
    return {
        "weights": base * (_FLOAT if is_whole else job.number_bytes),
        "adapter": _FLOAT * -(-job.size.adapter // parts),
        "gradients": _FLOAT * trained,
        "optimizer": 2 * _FLOAT * trained,
        "reference model": base * job.number_bytes * job.has_reference,
    }


def _gathered(job: Job, gather: Gather) -> dict[str, int]:
    """Weights that are whole while they compute, and gradients that are whole until they are summed."""
    size, number = job.size, job.number_bytes
    if not job.is_split:
        return {}
    trained = 0 if size.adapter else 1
    if gather == "once":
        weights = size.base + size.adapter
        # The head's gradient has a tensor of its own; a tied embedding has one besides.
        gradients = job.trained + trained * size.is_tied * size.head
    else:
        weights = size.outside + _LAYERS_AT_ONCE * size.layer + size.adapter
        gradients = trained * (size.head + _GRADIENTS_AT_ONCE * size.layer) + size.adapter
    return {"gathered weights": number * weights, "gradients before they are summed": _FLOAT * gradients}
