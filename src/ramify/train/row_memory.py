"""How the rows of a run are computed: decided once, at the start of the run, and reported.

On a GPU a row of the largest size is computed before the first real one: what does not fit is found now, not hours later.
"""

from dataclasses import replace

import numpy as np
import torch

from ramify.core.errors import MachineError, TrainingError
from ramify.learner.pack import pack
from ramify.learner.sharding import bytes_when_whole
from ramify.learner.update import Learner, sequence_tree
from ramify.modeling.load import packs_trees
from ramify.modeling.numerics import available_bytes, compute_device
from ramify.modeling.recompute import needs_checkpointing
from ramify.obs.console import RunConsole

_TOKEN = 1


def prepare_rows(learner: Learner, row_tokens: int, context_tokens: int, console: RunConsole) -> None:
    """Turn on recomputation of layers if the largest row needs it; report that, and if prefixes are not shared.

    On a GPU the largest row is computed once, so that a run which does not fit ends now.

    Args:
        learner: What trains.
        row_tokens: Unique tokens of the largest row (`config.largest_row`).
        context_tokens: Length of the longest sequence.
        console: Gets the report.

    Raises:
        MachineError: The largest row does not fit into a GPU's memory.
    """
    model = learner.model
    if not packs_trees(model):
        console.note(
            f"{model.config.model_type}: layers with linear attention; each context of a trajectory is "
            "computed as a row of its own, shared prefixes once for each"
        )
    # The optimizer's state is yet to come; it lies where the weights do.
    pending = learner.optimizers.missing_bytes() if model.device == compute_device(model) else 0
    room = available_bytes(compute_device(model)) - pending - bytes_when_whole(model)
    if needs_checkpointing(model, row_tokens, room):
        learner.ranks.all("recompute")
        console.note(
            f"rows of up to {row_tokens} tokens do not fit into memory: layers are computed again in the backward pass "
            "(a smaller learner.token_budget may avoid that)"
        )
    if compute_device(model).type == "cuda":
        dry_step(learner, row_tokens, context_tokens)


def dry_step(learner: Learner, row_tokens: int, context_tokens: int) -> None:
    """Compute gradients for a row on every rank, and drop them.

    Args:
        learner: What trains; nothing of it is changed.
        row_tokens: Unique tokens of the row.
        context_tokens: Length of the longest sequence; the row has as many of that length as fit into it.

    Raises:
        MachineError: The row does not fit into a GPU's memory.
    """
    full, remainder = divmod(row_tokens, context_tokens)
    sizes = [context_tokens] * full + [remainder] * (remainder > 1)
    sequences = [sequence_tree([_TOKEN] * size) for size in sizes]
    packed = pack(sequences, row_tokens, share_prefixes=packs_trees(learner.model))[0]
    # Every loss takes it.
    row = replace(packed, ref_logprobs=np.zeros(len(packed.written)))
    try:
        learner.try_row(row)
    except (torch.OutOfMemoryError, TrainingError) as error:
        if "out of memory" not in str(error):
            raise
        raise MachineError(
            f"a row of {row_tokens:,} tokens does not fit into the GPU's memory. Lower learner.token_budget or the longest "
            "sequence, train an adapter, or take more GPUs (`ramify doctor RECIPE --gpus N --gpu-memory GB` says what fits)"
        ) from None
