"""Refuses weights whose values can only be damaged: NaN, infinity, matrices of zeros."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ramify.core.errors import DataError
from ramify.modeling.weight_files import StoredTensor

_MAY_BE_ZERO = re.compile(r"\.(o_proj|out_proj|down_proj|gate|shared_expert_gate)(\.weight)?$")
"""Matrices that may be all zeros, because added layers start that way: outputs to the residual stream, routers."""

_MAX_LISTED = 3


@dataclass(frozen=True, slots=True)
class ValueFlags:
    """The values of a weight, or of a part of one: some are not finite; some are not zero; and it is a matrix."""

    not_finite: bool
    not_zero: bool
    is_matrix: bool

    @classmethod
    def of(cls, weight: torch.Tensor) -> "ValueFlags":
        """Read a weight once."""
        if not weight.numel():
            return cls(False, False, weight.ndim > 1)
        low, high = torch.aminmax(weight.detach())
        return cls(
            not bool(torch.isfinite(low) and torch.isfinite(high)), bool(low) or bool(high), weight.ndim > 1
        )


def check_values(flags: Mapping[str, ValueFlags], stored: Mapping[str, StoredTensor], folder: Path) -> None:
    """Refuse weights that can only be damaged.

    Vectors may be zero (biases, and norms that are stored as a difference from one).

    Raises:
        DataError: A weight contains NaN or infinity, or a matrix is all zeros.
    """
    problems = []
    for name, values in flags.items():
        label = f"{stored[name].file.name}: {name}" if name in stored else name
        if values.not_finite:
            problems.append(f"{label} holds NaN or infinity, expected finite numbers")
        elif values.is_matrix and not values.not_zero and not _MAY_BE_ZERO.search(name):
            problems.append(f"{label} is all zeros, expected weights")
    if problems:
        raise DataError(f"{folder}: {joined(problems)}. Copy the file again from its source")


def joined(problems: Iterable[str]) -> str:
    """Return the first few of some problems in one line, and how many more there are."""
    listed = list(problems)
    more = f"; and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    return "; ".join(listed[:_MAX_LISTED]) + more
