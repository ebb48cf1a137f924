"""Whether a recipe fits into memory, also on GPUs that are not in this machine, and what to change where it does not."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import floor
from pathlib import Path
from typing import Any

from ramify.commands.estimate import (
    GIB,
    Shapes,
    in_bytes,
    job_of,
    memory_lines,
    number_bytes,
)
from ramify.commands.work import AnyRecipe, engine_of, loads_weights, work_of
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError, MachineError
from ramify.engines.configs import GpuTurns
from ramify.modeling.hub import fetch_model, is_fetched
from ramify.modeling.memory_plan import Job, MemoryPlan, choose
from ramify.modeling.published_sizes import published_config

_USABLE = 0.92
"""Share of a card's memory for tensors; the rest is CUDA itself, captured graphs, and gaps between tensors."""
_MOST_DOUBLED = 10
"""How often the number of GPUs is doubled; where that is not enough, more GPUs are no advice."""


def on_gpus(path: Path, recipe: AnyRecipe, gpus: int, gigabytes: float) -> Iterator[str]:
    """Yield lines about a recipe on so many GPUs; of the model only its sizes are needed.

    Args:
        path: Of the recipe, for messages.
        recipe: Of any kind.
        gpus: Processes of the learner, each with one.
        gigabytes: Memory of each.

    Raises:
        UserError: It does not fit, the model's sizes are not to be had, or the recipe cannot use several GPUs.
    """
    room = int(_USABLE * gigabytes * GIB)
    cards = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    yield f"{path} is for ramify {recipe.command}"
    yield f"{cards} of {gigabytes:g} GiB, not this machine's; {in_bytes(room)} of {'each' if gpus > 1 else 'them'} are counted on"
    yield from work_of(recipe).in_words
    if not loads_weights(recipe):
        yield "the model runs at a service and takes no memory here"
        return
    _refuse_several(path, recipe, gpus)
    shapes, config, is_here = _model(recipe)
    if not is_here:
        yield f"{recipe.model.path} is not here: these are the published sizes of a model of this name"
    job = job_of(recipe, shapes, config, processes=gpus)
    yield from memory_fit(path, recipe, job, room)
    engine = engine_of(recipe)
    if job.trains and engine is not None and engine.gpu_turns is not None:
        number = number_bytes(engine.served_dtype or recipe.model.dtype)
        yield _while_servers_write(path, engine.gpu_turns, number, job, choose(job, room), gigabytes)


def memory_fit(path: Path, recipe: AnyRecipe, job: Job, room: int) -> Iterator[str]:
    """Yield lines about the memory that a job takes of `room` bytes on each device.

    Raises:
        MachineError: It does not fit.
    """
    plan = choose(job, room)
    yield from memory_lines(job, plan)
    if plan.total > room:
        raise MachineError(
            f"{path}: takes at least {in_bytes(plan.total)}, and {in_bytes(room)} can be counted on; {_advice(recipe, job, room)}"
        )
    yield f"{in_bytes(plan.total):>10}  together: fits, {in_bytes(room - plan.total)} to spare"


def _refuse_several(path: Path, recipe: AnyRecipe, gpus: int) -> None:
    """Refuse what several processes cannot do.

    Raises:
        ConfigError: An evaluation or a synthesis; copies that are no divisor; an engine that shares weights that are split.
    """
    if gpus == 1:
        return
    if isinstance(recipe, EvalRecipe | SynthRecipe):
        what = "an evaluation" if isinstance(recipe, EvalRecipe) else "a synthesis"
        raise ConfigError(f"{path}: --gpus: {what} runs in one process, leave --gpus out")
    if gpus % recipe.learner.copies:
        raise ConfigError(
            f"{path}: learner.copies: expected a divisor of the number of GPUs, {gpus}, got {recipe.learner.copies}"
        )
    if isinstance(recipe, TrainRecipe) and recipe.engine.shares_weights:
        raise ConfigError(
            f'{path}: engine.weights: expected "copy" or no such key with several GPUs, over which the weights are split'
        )


def _model(recipe: AnyRecipe) -> tuple[Shapes, Any, bool]:
    """Return the shapes of the parameters, the configuration, and whether they are the model's own and not published ones.

    Raises:
        UserError: The sizes are not to be had.
    """
    path = recipe.model.path
    published = published_config(str(path))
    if published is None:
        with suppress(MachineError):
            fetch_model(path, weights=False)
    is_here = is_fetched(path, weights=False) and recipe.model.folder.exists()
    if not is_here and published is None:
        raise MachineError(
            f"model.path: {path} is not here and cannot be fetched, and its config.json tells the sizes. Put that file into a "
            "folder and name it (-s model.path=FOLDER), or name a published model of the same sizes "
            "(-s model.path=Qwen/Qwen2.5-7B)."
        )
    from ramify.modeling.load import parameter_shapes, shapes_of

    if is_here or published is None:
        return *parameter_shapes(recipe.model.folder), True
    return *shapes_of(published, str(path)), False


def _advice(recipe: AnyRecipe, job: Job, room: int) -> str:
    """Return what to change so that it fits."""
    least = choose(job, 0)
    engine = engine_of(recipe)
    slots = engine.local_slots if engine is not None and job.sequence_bytes else 0
    without_slots = least.total - slots * job.sequence_bytes
    if slots and (fitting := (room - without_slots) // job.sequence_bytes) > 0:
        return f"engine.slots = {fitting} would fit"
    advice = []
    if job.trains and without_slots - least.row + (job.sequence_bytes if slots else 0) <= room:
        longest = "rollout.max_tokens" if isinstance(recipe, TrainRecipe) else "data.max_tokens"
        advice.append(f"lower learner.token_budget and {longest} (the row is too long)")
    if job.trains and job.device == "cuda":
        numbers = (job.processes << power for power in range(1, _MOST_DOUBLED + 1))
        enough = next((number for number in numbers if _fits(replace(job, processes=number), room)), None)
        advice += [] if enough is None else [f"take {enough} such GPUs (--gpus {enough})"]
    # With the default rank an adapter has at most about a hundredth of the parameters.
    small = replace(job, size=replace(job.size, adapter=job.size.base // 100), has_reference=False)
    if job.trains and not job.size.adapter and _fits(small, room):
        advice.append("train an adapter (-s model.lora={})")
    if isinstance(recipe, EvalRecipe) and recipe.model.dtype == "float32":
        advice.append("set -s model.dtype=bfloat16")
    larger = "a larger GPU" if job.device == "cuda" else "more memory"
    return "; or ".join([*advice, f"take a smaller model or {larger}"])


def _fits(job: Job, room: int) -> bool:
    """Return True if a job fits without the machine's memory."""
    plan = choose(job, room)
    return plan.total <= room and not plan.layout.offload


def _while_servers_write(
    path: Path, turns: GpuTurns, number: int, job: Job, plan: MemoryPlan, gigabytes: float
) -> str:
    """Return a line about servers that have the GPUs while the learner waits, and keeps its state there.

    Raises:
        MachineError: They ask for more than is left, or their weights and one sequence do not fit into what they ask for.
    """
    most = _USABLE - plan.resident / (gigabytes * GIB)
    share = turns.share
    if share > most:
        raise MachineError(
            f"{path}: engine.flags: the servers take {share:.2f} of each GPU and the learner keeps {in_bytes(plan.resident)} "
            f"there; set --gpu-memory-utilization to {floor(100 * most) / 100:.2f} at most, or take more GPUs"
        )
    weights = number * (job.size.base + job.size.adapter) // turns.gpus
    sequence = job.sequence_bytes // turns.gpus
    fitting = int(share * gigabytes * GIB - weights) // sequence
    if fitting < 1:
        raise MachineError(
            f"{path}: engine.flags: {share:.2f} of a GPU does not hold the server's weights ({in_bytes(weights)}) and keys and "
            f"values of a sequence ({in_bytes(sequence)}); give a server several GPUs (engine.gpus, --tensor-parallel-size), or "
            "take more for the learner"
        )
    return (
        f"while the servers write: {in_bytes(plan.resident)} of the learner's, {in_bytes(weights)} of a server's weights, and "
        f"keys and values of {fitting:,} of the longest sequences at --gpu-memory-utilization {share:.2f} ({most:.2f} at most)"
    )
