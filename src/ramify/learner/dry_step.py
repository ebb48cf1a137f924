"""One pass over a row of the largest size before the first real one: what does not fit is found now, not hours later."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from ramify.core.errors import MachineError, TrainingError
from ramify.core.records import PackedRow
from ramify.learner.pack import pack
from ramify.learner.update import Learner, written
from ramify.modeling.load import packs_trees

_TOKEN = 1


def dry_step(learner: Learner, row_tokens: int, context_tokens: int) -> None:
    """Compute gradients for a row on every rank, and drop them.

    Args:
        learner: What trains; nothing of it is changed.
        row_tokens: Unique tokens of the row.
        context_tokens: Length of the longest sequence; the row has as many of that length as fit into it.

    Raises:
        MachineError: The row does not fit into a GPU's memory.
    """
    try:
        learner.try_row(_row(learner, row_tokens, context_tokens))
    except (torch.OutOfMemoryError, TrainingError) as error:
        if "out of memory" not in str(error):
            raise
        raise MachineError(
            f"a row of {row_tokens:,} tokens does not fit into the GPU's memory. Lower learner.token_budget or the longest "
            "sequence, train an adapter, or take more GPUs (`ramify doctor RECIPE --gpus N --gpu-memory GB` says what fits)"
        ) from None


def _row(learner: Learner, row_tokens: int, context_tokens: int) -> PackedRow:
    """Return a row of written tokens, as every loss takes it."""
    sequences = [written([_TOKEN] * size) for size in _sizes(row_tokens, context_tokens)]
    row = pack(sequences, row_tokens, share_prefixes=packs_trees(learner.model))[0]
    return replace(row, ref_logprobs=np.zeros(len(row.written)))


def _sizes(row_tokens: int, context_tokens: int) -> Iterator[int]:
    left = row_tokens
    while left >= 2:
        yield min(left, context_tokens)
        left -= context_tokens
