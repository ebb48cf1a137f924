"""Whether a recipe fits on GPUs that are not in this machine, how long a step takes, and what to change where it does not fit."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import floor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ramify.commands.estimate import GIB, Memory, Shapes, in_bytes, loads_weights, memory_by_sizes
from ramify.commands.pace import DATA_SHEETS, RATES, WRITING, in_time, learning_operations, whole_run
from ramify.commands.work import AnyRecipe, Work, work_of
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError, DataError, MachineError
from ramify.engines.configs import LocalEngineConfig, VllmEngineConfig
from ramify.modeling.hub import fetch_model, is_fetched
from ramify.modeling.memory_plan import KEPT, Job, MemoryPlan, choose
from ramify.modeling.published_sizes import dense_shapes, published_config

_USABLE = 0.92
"""Share of a card's memory for tensors; the rest is CUDA itself, captured graphs, and gaps between tensors."""
_VLLM_UTILIZATION = 0.9
"""Share of a GPU that a vLLM server takes without a flag."""
_MOST_GPUS = 1024
"""Where a larger number of GPUs is no advice any more."""


def on_gpus(path: Path, recipe: AnyRecipe, gpus: int, gigabytes: float) -> Iterator[str]:
    """Lines about a recipe on so many GPUs; of the model only its sizes are needed.

    Args:
        path: Of the recipe, for messages.
        recipe: Of any kind.
        gpus: Processes of the learner, each with one.
        gigabytes: Memory of each.

    Raises:
        UserError: It does not fit, the model's sizes are not to be had, or the recipe cannot use several GPUs.
    """
    room = int(_USABLE * gigabytes * GIB)
    work = work_of(recipe)
    cards = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    yield f"{cards} of {gigabytes:g} GiB, not this machine's; {in_bytes(room)} of {'each' if gpus > 1 else 'them'} are counted on"
    yield from work.in_words
    if not loads_weights(recipe, work):
        yield "the model runs at a service and takes no memory here"
        return
    _refuse_several(path, recipe, gpus)
    shapes, config, whence = _sizes(recipe)
    if whence:
        yield whence
    memory = memory_by_sizes(recipe, work, "cuda", shapes, config, gpus)
    plan = memory.plan(room)
    if not plan.fits:
        told = ", ".join(f"{name} {in_bytes(size)}" for name, size in memory.told(plan).items())
        raise MachineError(
            f"{path}: takes at least {in_bytes(plan.total)} ({told}), and {in_bytes(room)} of {gigabytes:g} GiB can be "
            f"counted on; {_knob(recipe, memory, room)}"
        )
    yield from (f"{in_bytes(size):>10}  {name}" for name, size in memory.told(plan).items())
    yield f"{in_bytes(plan.total):>10}  together: fits, {in_bytes(room - plan.total)} to spare"
    if plan.offload:
        yield (
            f"weights, gradients and optimizer lie in the machine's memory: {in_bytes(plan.host)} for each of its GPUs; the "
            "optimizer's step on the CPU is not in the time below"
        )
    yield from _while_it_writes(path, recipe, memory, plan, gigabytes)
    yield from _time(recipe, work, memory, plan)


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
    if isinstance(recipe, TrainRecipe) and getattr(recipe.engine, "weights", None) == "shared":
        raise ConfigError(
            f'{path}: engine.weights: expected "copy" or no such key with several GPUs, over which the weights are split'
        )


def _sizes(recipe: AnyRecipe) -> tuple[Shapes, Any, str]:
    """Shapes of the parameters, the configuration, and a line where these are not the model's own files.

    Raises:
        UserError: The sizes are not to be had.
    """
    path = recipe.model.path
    published = published_config(str(path))
    if published is not None and not (is_fetched(path, weights=False) and recipe.model.folder.exists()):
        config = SimpleNamespace(**published)
        return (
            dense_shapes(config),
            config,
            f"{path} is not here: these are the published sizes of a model of this name",
        )
    try:
        fetch_model(path, weights=False)
    except MachineError:
        raise MachineError(
            f"model.path: {path} is not here, and the hub cannot be reached for its config.json, which tells the sizes; "
            "connect, put that one file into a folder and name it (-s model.path=FOLDER), or name a published model of the "
            "same sizes (-s model.path=Qwen/Qwen2.5-7B)"
        ) from None
    if not recipe.model.folder.exists():
        raise DataError(
            f"model.path: {path} is not here; for its sizes name a folder with its config.json (-s model.path=FOLDER), or a "
            "published model of the same sizes (-s model.path=Qwen/Qwen2.5-7B)"
        )
    from ramify.modeling.load import parameter_shapes

    return *parameter_shapes(recipe.model.folder), ""


def _knob(recipe: AnyRecipe, memory: Memory, room: int) -> str:
    """What to change so that it fits."""
    job, least = memory.job, memory.plan(0)
    engine = getattr(recipe, "engine", None)
    slots = engine.slots if isinstance(engine, LocalEngineConfig) else 0
    state = least.total - least.row - slots * memory.slot
    if slots and (fitting := (room - state - least.row) // memory.slot) > 0:
        return f"engine.slots = {fitting} would fit"
    advice = []
    if job.trains and state + (memory.slot if slots else 0) <= room:
        longest = "rollout.max_tokens" if isinstance(recipe, TrainRecipe) else "data.max_tokens"
        advice.append(f"lower learner.token_budget and {longest} (the row is too long)")
    if job.trains and (number := _enough(job, room)):
        advice.append(f"take {number} such GPUs (--gpus {number})")
    if job.trains and not job.size.adapter and _fits(_with_adapter(job), room):
        advice.append("train an adapter (-s model.lora={})")
    if isinstance(recipe, EvalRecipe) and recipe.model.dtype == "float32":
        advice.append("set -s model.dtype=bfloat16")
    return "; or ".join([*advice, "take a smaller model or a larger GPU"])


def _enough(job: Job, room: int) -> int | None:
    """The next power of two of processes with which a job fits."""
    number = 2 * job.processes
    while number <= _MOST_GPUS:
        if _fits(replace(job, processes=number), room):
            return number
        number *= 2
    return None


def _with_adapter(job: Job) -> Job:
    """The same with an adapter, which has at most about a hundredth of the parameters with the default rank."""
    return replace(job, size=replace(job.size, adapter=job.size.base // 100), has_reference=False)


def _fits(job: Job, room: int) -> bool:
    """Whether it fits without the machine's memory."""
    plan = choose(job, room)
    return plan.fits and not plan.offload


def _while_it_writes(
    path: Path, recipe: AnyRecipe, memory: Memory, plan: MemoryPlan, gigabytes: float
) -> Iterator[str]:
    """A line about servers that have the GPUs while the learner waits, and keeps its state there.

    Raises:
        MachineError: They ask for more than is left, or their weights and one sequence do not fit into what they ask for.
    """
    engine, job = getattr(recipe, "engine", None), memory.job
    if not (isinstance(engine, VllmEngineConfig) and engine.sleep and job.trains):
        return
    kept = sum(plan.parts.get(name, 0) for name in KEPT)
    most = _USABLE - kept / (gigabytes * GIB)
    asked = _utilization(engine.flags)
    if asked > most:
        raise MachineError(
            f"{path}: engine.flags: the servers take {asked:.2f} of each GPU and the learner keeps {in_bytes(kept)} there; "
            f"set --gpu-memory-utilization to {floor(100 * most) / 100:.2f} at most, or take more GPUs"
        )
    over = engine.gpus[0].count(",") + 1
    weights = (4 if engine.dtype == "float32" else 2) * (job.size.base + job.size.adapter) // over
    slot = memory.slot // over
    fitting = int(asked * gigabytes * GIB - weights) // slot
    if fitting < 1:
        raise MachineError(
            f"{path}: engine.flags: {asked:.2f} of a GPU does not hold the server's weights ({in_bytes(weights)}) and keys and "
            f"values of a sequence ({in_bytes(slot)}); give a server several GPUs (engine.gpus, --tensor-parallel-size), or "
            "take more for the learner"
        )
    yield (
        f"while the servers write: {in_bytes(kept)} of the learner's, {in_bytes(weights)} of a server's weights, and keys and "
        f"values of {fitting:,} of the longest sequences at --gpu-memory-utilization {asked:.2f} ({most:.2f} at most)"
    )


def _utilization(flags: Sequence[str]) -> float:
    """What a server's flags ask for."""
    words = [word for flag in flags for word in flag.split("=", 1)]
    for name, value in pairwise(words):
        if name == "--gpu-memory-utilization":
            with suppress(ValueError):
                return float(value)
    return _VLLM_UTILIZATION


def _time(recipe: AnyRecipe, work: Work, memory: Memory, plan: MemoryPlan) -> Iterator[str]:
    job, dtype = memory.job, recipe.model.dtype
    pace = RATES[job.number_bytes]
    engine = getattr(recipe, "engine", None)
    engines = len(engine.urls or engine.gpus) if isinstance(engine, VllmEngineConfig) else 1
    slots = getattr(engine, "slots", work.per_step)
    seconds = pace.seconds(work, memory, slots, recomputes=plan.recompute, engines=engines)
    tokens, parameters = work.per_step * work.tokens, job.size.base
    each = WRITING * work.writes + learning_operations(memory, plan.recompute) * work.trains
    yield (
        f"about {in_time(seconds)} a step{whole_run(work, seconds)}, where every sequence has all its tokens; tools, the "
        "products of attention, traffic between GPUs and shared prefixes not counted"
    )
    over = (
        f", learned on {job.processes} GPUs, written by {engines}"
        if job.processes > 1 and work.writes
        else ""
    )
    yield (
        f"{tokens:,} tokens x {parameters:,} parameters x {each} = {tokens * parameters * each:.1e} FLOP{over}, at an assumed "
        f"{pace.flops / 1e12:g} TFLOP/s in {dtype} and {pace.bandwidth / 1e12:g} TB/s for a GPU ({DATA_SHEETS[job.number_bytes]}); "
        "measured on no GPU"
    )
