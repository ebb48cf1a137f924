"""Sums and maxima over the processes of a distributed run; in one process they change nothing."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ramify.core.records import BatchSums

Values = TypeVar("Values")


def num_ranks() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_ranks(values: Mapping[str, float]) -> dict[str, float]:
    """Sum values over all ranks in float64, in rank order; a name that a rank lacks counts as zero."""
    if num_ranks() == 1:
        return dict(values)
    parts = _gathered(dict(values))
    return {
        name: sum(part.get(name, 0.0) for part in parts) for name in sorted({n for p in parts for n in p})
    }


def add_over_ranks(statistics: Sequence[BatchSums]) -> tuple[BatchSums, ...]:
    """Sum the statistics of the parts of a batch over all ranks."""
    if num_ranks() == 1:
        return tuple(statistics)
    parts = _gathered(tuple(statistics))
    return tuple(reduce(add, sums) for sums in zip(*parts, strict=True))


def max_over_ranks(values: Mapping[str, float]) -> dict[str, float]:
    """The maximum over all ranks, by name; a rank that lacks a name is left out."""
    if num_ranks() == 1:
        return dict(values)
    parts = _gathered(dict(values))
    return {
        name: max(part[name] for part in parts if name in part)
        for name in sorted({n for p in parts for n in p})
    }


def _gathered(values: Values) -> list[Values]:
    parts: list[Any] = [None] * num_ranks()
    dist.all_gather_object(parts, values)
    return parts


def sum_gradients(parameters: Sequence[torch.Tensor]) -> None:
    """Sum gradients over all ranks, in place; a rank without rows adds zeros."""
    if num_ranks() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
