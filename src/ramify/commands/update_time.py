"""How long the updates of a step take on GPUs that are not here, from the card's peak and the lengths that are expected."""

from dataclasses import dataclass

from ramify.config.schema_train import TrainRecipe
from ramify.modeling.memory_plan import Job, MemoryPlan

_UTILISATION = 0.3
"""Share of a card's peak that an update reaches (MFU). Assumed: layers that run one by one reach 0.25 to 0.35."""
_EXPECTED_SHARE = 0.26
"""Share of the tokens that a tree may have which are computed: 17,700 of 67,000 in simulated trees with ARPO's limits; prefixes
are shared, and few trajectories reach their limit."""


@dataclass(frozen=True, slots=True)
class _Card:
    """A card by its memory in GiB, with the peaks of dense products in bfloat16 and float32, TFLOP/s (data sheets)."""

    gigabytes: int
    name: str
    bfloat16: float
    float32: float


_CARDS = (
    _Card(24, "RTX 4090", 165.0, 82.6),
    _Card(40, "A100", 312.0, 19.5),
    _Card(48, "L40S", 362.0, 91.6),
    _Card(80, "H100", 989.0, 67.0),
    _Card(141, "H200", 989.0, 67.0),
)


def update_time(recipe: TrainRecipe, job: Job, plan: MemoryPlan, gigabytes: float) -> str:
    """Return a line on the seconds of a step's updates, on the card that has about so much memory."""
    card = min(_CARDS, key=lambda card: abs(card.gigabytes - gigabytes))
    peak = card.bfloat16 if job.number_bytes == 2 else card.float32
    rollout = recipe.rollout
    most = recipe.data.max_prompt_tokens + rollout.n * rollout.max_tokens
    tokens = _EXPECTED_SHARE * most * rollout.problems_per_step
    # Products of a forward pass take 2 operations a parameter and token; gradients of inputs and of weights as many each.
    passes = 1 + 1 + (job.size.adapter == 0) + plan.recompute
    passes += (recipe.algorithm.old == "recompute") + (recipe.algorithm.kl is not None)
    operations = 2 * passes * job.size.base * tokens
    seconds = operations / (job.processes * _UTILISATION * peak * 1e12)
    each = f" on each of {job.processes}" if job.processes > 1 else ""
    more = "rollout, tools and the optimizer on the CPU" if plan.layout.offload else "rollout and tools"
    return (
        f"updates: about {seconds:,.0f} s a step at {_UTILISATION:.0%} of the {peak:g} TFLOP/s of the {card.name}{each}, if "
        f"{_EXPECTED_SHARE:.0%} of the tokens that trees may have are computed ({tokens:,.0f}); {more} come on top"
    )
