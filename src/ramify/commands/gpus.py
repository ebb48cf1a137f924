"""Checks who computes on which GPU of this machine: the servers that a recipe starts, and the processes that learn.

They need neither torch nor a GPU: without NVIDIA's devices nothing is refused. A run, `--dry-run` and `ramify doctor` begin with them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ramify.commands.memory import device_of, require_numbers
from ramify.config.sizes import AnyRecipe
from ramify.core.errors import ConfigError

_DEVICES = Path("/dev")
_DEVICE = re.compile(r"nvidia\d+")


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that this machine or container has."""
    return sum(_DEVICE.fullmatch(path.name) is not None for path in _DEVICES.glob("nvidia*"))


def check_gpus(recipe: AnyRecipe, *, trains: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Check that servers and learner can have their GPUs on this machine, as far as the recipe and torchrun's variables tell.

    Raises:
        ConfigError: A GPU that is not there, or that two are to use at once.
    """
    number = count_gpus()
    if number == 0:
        return
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    own = (
        [*map(str, range(number))] if visible is None else [*filter(None, map(str.strip, visible.split(",")))]
    )
    learners: list[str] = []
    # Where none is visible the learner computes on the CPU.
    if trains and own and device_of(recipe.model)[0] == "cuda":
        ranks = int(environ.get("LOCAL_WORLD_SIZE", "1"))
        if ranks > len(own):
            raise ConfigError(
                f"--nproc-per-node: {ranks} processes have {len(own)} GPUs on this machine. Start one for each GPU at most."
            )
        learners = own[:ranks]
    engine = recipe.engine
    # Servers are started on the machine of rank 0.
    gpus = () if engine is None or environ.get("GROUP_RANK", "0") != "0" else engine.started_on
    require_numbers(gpus, number)
    if len(gpus) > 1 and "" in gpus:
        raise ConfigError(
            'engine.gpus: several servers would take the same GPUs. Name those of each, such as "0".'
        )
    if engine is None or engine.gpu_turns is not None:
        return
    cards = {card.strip() for entry in gpus for card in (entry.split(",") if entry else own)}
    if shared := sorted(cards.intersection(learners)):
        raise ConfigError(
            f"engine.gpus: GPU {shared[0]} is a learner's too, which keeps its memory. Set engine.sleep = true, or name GPUs "
            "that no process of the learner has."
        )
