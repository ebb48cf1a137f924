"""How the rows of a run are computed: decided once, at the start of the run, and reported."""

from ramify.learner.dry_step import dry_step
from ramify.learner.update import Learner
from ramify.modeling.load import packs_trees
from ramify.modeling.memory import available_bytes, needs_checkpointing
from ramify.modeling.numerics import compute_device
from ramify.obs.console import RunConsole


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
            f"{model.config.model_type}: layers with sliding windows or linear attention; each context of a trajectory is "
            "computed as a row of its own, shared prefixes once for each"
        )
    # The optimizer's state is yet to come; it lies where the weights do.
    pending = learner.optimizers.missing_bytes() if model.device == compute_device(model) else 0
    room = available_bytes(compute_device(model)) - pending
    if needs_checkpointing(model, row_tokens, room):
        learner.ranks.all("recompute")
        console.note(
            f"rows of up to {row_tokens} tokens do not fit into memory: layers are computed again in the backward pass "
            "(a smaller learner.token_budget may avoid that)"
        )
    if compute_device(model).type == "cuda":
        dry_step(learner, row_tokens, context_tokens)
