"""How the rows of a run are computed: decided once, at the start of the run, and reported."""

from transformers import PreTrainedModel

from ramify.modeling.load import packs_trees
from ramify.modeling.memory import available_bytes, needs_checkpointing, set_checkpointing
from ramify.obs.console import RunConsole


def prepare_rows(model: PreTrainedModel, row_tokens: int, console: RunConsole, pending: int) -> None:
    """Turn on recomputation of layers if the largest row needs it; report that, and if prefixes are not shared.

    Args:
        model: The model that is trained.
        row_tokens: Unique tokens of the largest row (`config.largest_row`).
        console: Gets the report.
        pending: Bytes that the run has yet to take beside gradients and rows: the optimizer's state before its first step.
    """
    if not packs_trees(model):
        console.note(
            f"{model.config.model_type}: layers with sliding windows or linear attention; each context of a trajectory is "
            "computed as a row of its own, shared prefixes once for each"
        )
    if needs_checkpointing(model, row_tokens, available_bytes(model.device) - pending):
        set_checkpointing(model, True)
        console.note(
            f"rows of up to {row_tokens} tokens do not fit into memory: layers are computed again in the backward pass "
            "(a smaller learner.token_budget may avoid that)"
        )
