"""The device and the memory that a recipe asks for, here or on GPUs that are not here, and what to change where it does not fit.

All of it comes from the recipe and the heads of its files; only for GPUs that are not here a library reads the model's sizes.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import floor, prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from ramify.commands.update_time import update_time
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.config.sizes import AnyRecipe, largest_row, loads_weights, longest_sequence, work_of
from ramify.core.errors import ConfigError, MachineError
from ramify.engines.configs import GpuTurns
from ramify.modeling.configs import AdapterConfig, ModelConfig
from ramify.modeling.memory_plan import Config, Job, MemoryPlan, ModelSize, choose, row_bytes, store_bytes
from ramify.modeling.model_config import (
    is_adapter_folder,
    published_config,
    read_model_config,
    read_object_file,
    whole_folder,
)
from ramify.modeling.model_path import fetch_model, is_fetched
from ramify.modeling.weight_files import of_decoder, stored_tensors

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

_GIB = 1 << 30
_ASLEEP = 2 * _GIB
"""Assumed of a vLLM server that sleeps: CUDA itself and captured graphs stay on the GPU. Measured on no GPU."""
_CONTEXT = 6 * _GIB // 10
"""Assumed of a server that is awake, beside its share of the GPU: CUDA's second context. Measured on no GPU."""
_NCCL = _GIB
"""Assumed of the buffers that a rank among several takes for NCCL. Measured on no GPU."""
_FLOAT = 4
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/usr/lib/wsl/lib/libcuda.so.1"))
"""Of Linux, and of Linux within Windows (WSL 2), which has that of Windows."""
_USABLE = 0.92
"""Share of a card's memory for tensors; the rest is CUDA itself, captured graphs, and gaps between tensors."""
_MOST_DOUBLED = 10
"""How often the number of GPUs is doubled; where that is not enough, more GPUs are no advice."""


def device_of(model: ModelConfig) -> tuple[str, str]:
    """Return the device of a model, "cpu" or "cuda", and the reason for it, without asking torch."""
    if model.device != "auto":
        return model.device, f'model.device = "{model.device}"'
    if not any(file.exists() for file in _DRIVERS):
        return "cpu", "no NVIDIA driver here"
    torch = importlib.util.find_spec("torch")
    version = Path(torch.origin).with_name("version.py") if torch and torch.origin else None
    if version is not None and version.is_file() and "cuda: Optional[str] = None" in version.read_text():
        return "cpu", "this build of torch is for the CPU"
    return "cuda", "an NVIDIA driver is here"


def require_numbers(gpus: tuple[str, ...], number: int) -> None:
    """Raise ConfigError unless there are GPUs of all numbers that servers are given."""
    for card in (card.strip() for entry in gpus for card in entry.split(",")):
        if card.isdecimal() and int(card) >= number:
            there = "GPU 0" if number == 1 else f"GPUs 0 to {number - 1}"
            raise ConfigError(f"engine.gpus: there is no GPU {card}, only {there}. Name others.")


def in_bytes(size: int) -> str:
    """Return a size for a user."""
    return f"{size / _GIB:,.1f} GiB" if size >= _GIB else f"{size / (1 << 20):,.1f} MiB"


def memory_lines(job: Job, plan: MemoryPlan) -> Iterator[str]:
    """Yield a line with the total and the ways to save memory, then one for each part."""
    row = f"; a row of {job.row_tokens:,} tokens" if job.trains else ""
    again = ", layers computed again" if plan.recompute else ""
    layers = "; weights gathered layer by layer" if plan.layout.gather == "by_layer" else ""
    yield f"about {in_bytes(plan.total)} for {job.size.base:,} parameters{row}{again}{layers}"
    yield from (f"{in_bytes(size):>10}  {name}" for name, size in plan.parts.items())
    if plan.layout.offload:
        yield f"weights, gradients and optimizer lie in the machine's memory: {in_bytes(plan.host)} for each of its GPUs"


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
    room = int(_USABLE * gigabytes * _GIB)
    cards = "one GPU" if gpus == 1 else f"{gpus} GPUs"
    yield f"{path} is for ramify {recipe.command}"
    yield f"{cards} of {gigabytes:g} GiB, not this machine's; {in_bytes(room)} of {'each' if gpus > 1 else 'them'} are counted on"
    yield from work_of(recipe).in_words
    engine = recipe.engine
    servers = None if engine is None or loads_weights(recipe) else engine.server_gpus
    if not loads_weights(recipe) and servers is None:
        yield "the model runs at a service and takes no memory here"
        return
    if gpus > 1:
        _refuse_several(path, recipe, gpus)
    shapes, config, is_here = _sizes_anywhere(recipe.model.path, recipe.model)
    if not is_here:
        yield f"{recipe.model.path} is not here: these are the published sizes of a model of this name"
    if engine is not None and servers is not None:
        number = _number_bytes(engine.served_dtype or recipe.model.dtype)
        weights = number * ModelSize.of(shapes).base // servers.gpus
        sequence = store_bytes(config, 1, longest_sequence(recipe), number) // servers.gpus
        fitting = _sequences_in_server(path, servers, weights, sequence, gigabytes)
        yield (
            f"{in_bytes(weights)} of a server's weights, and keys and values of {fitting:,} of the longest sequences, together: "
            f"fits, at --gpu-memory-utilization {servers.share:.2f}"
        )
        return
    job = job_of(recipe, shapes, config, processes=gpus)
    yield from memory_fit(path, recipe, job, room)
    if isinstance(recipe, TrainRecipe):
        yield update_time(recipe, job, choose(job, room), gigabytes)
    if job.trains and engine is not None and engine.starts_servers and engine.gpu_turns is None:
        yield "the servers of engine.gpus need other GPUs than these, since engine.sleep = false"
    if job.trains and engine is not None and engine.gpu_turns is not None:
        require_numbers(engine.started_on, gpus)
        number = _number_bytes(engine.served_dtype or recipe.model.dtype)
        yield _while_servers_write(path, engine.gpu_turns, number, job, choose(job, room), gigabytes)


def job_here(recipe: AnyRecipe, device: str, processes: int = 1, *, trains: bool = True) -> Job | None:
    """Return the job of a recipe on `device` ("cpu" or "cuda"); None where no weights are loaded or they are not here yet.

    Args:
        recipe: Of any kind.
        device: The same for each process.
        processes: Of the learner.
        trains: False for `ramify rollout`, which only grows the trees of a recipe.

    Raises:
        DataError: The model's folder cannot be read.
    """
    if not loads_weights(recipe, trains=trains) or not is_fetched(recipe.model.path):
        return None
    folder = whole_folder(recipe.model.folder)
    stored = of_decoder(read_object_file(folder / "config.json"), stored_tensors(folder))
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    return job_of(recipe, shapes, _sizes(read_model_config(folder)), device, processes, trains=trains)


def job_of(
    recipe: AnyRecipe,
    shapes: Shapes,
    config: Config | None,
    device: str = "cuda",
    processes: int = 1,
    *,
    trains: bool = True,
) -> Job:
    """Return the job of a recipe with a model of these tensors; without `config` engine's store and row are left out.

    Raises:
        DataError: The folder of an adapter cannot be read.
    """
    number, copies, row_tokens, adapter, has_reference = _number_bytes(recipe.model.dtype), 1, 0, 0, False
    stored = _FLOAT if device == "cpu" else number
    if trains and isinstance(recipe, TrainRecipe | SftRecipe):
        copies, row_tokens, model = recipe.learner.copies, largest_row(recipe), recipe.model
        is_adapter = is_fetched(model.path, weights=False) and is_adapter_folder(model.folder)
        if is_adapter:
            adapter = sum(prod(tensor.shape) for tensor in stored_tensors(model.folder).values())
        elif model.lora is not None:
            adapter = adapter_parameters(model.lora, shapes)
        # The base of a new adapter is its own reference.
        has_reference = _has_reference(recipe) and (not adapter or is_adapter)
    job = Job(
        config=config,
        size=ModelSize.of(shapes, adapter),
        number_bytes=number,
        row_tokens=row_tokens,
        processes=processes,
        copies=copies,
        has_reference=has_reference,
        sequence_bytes=0 if config is None else store_bytes(config, 1, longest_sequence(recipe), stored),
        device=device,
    )
    buffers = {"NCCL's buffers (assumed)": _NCCL} if job.trains and processes > 1 and device == "cuda" else {}
    return replace(job, beside=_engine_parts(recipe, job) | buffers)


def adapter_parameters(section: AdapterConfig, shapes: Shapes) -> int:
    """Count the parameters of a new adapter beside a model of these tensors."""
    parameters = 0
    for name, shape in shapes.items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        # Routers and experts are no linear layers, and have no adapter.
        is_routed = ".experts." in name or module == "gate"
        is_layer = ".layers." in name and len(shape) == 2 and not is_routed
        if is_layer and (section.targets == "all-linear" or module in section.targets):
            parameters += section.rank * sum(shape)
    return parameters


def _number_bytes(dtype: str) -> int:
    return _FLOAT if dtype == "float32" else 2


def _has_reference(recipe: TrainRecipe | SftRecipe) -> bool:
    """Return True if a run compares its policy with the model that it began with."""
    if isinstance(recipe, TrainRecipe):
        is_copied = (
            isinstance(recipe, SelfCriticRecipe) and recipe.dpo.lora is None and recipe.dpo.loss == "dpo"
        )
        return is_copied or recipe.algorithm.kl is not None
    return isinstance(recipe, DpoRecipe) and recipe.learner.loss == "dpo"


def _engine_parts(recipe: AnyRecipe, job: Job) -> dict[str, int]:
    """Count the engine's memory on the learner's GPU; of several GPUs a local engine has the first."""
    engine = recipe.engine
    if engine is not None and engine.gpu_turns is not None and job.trains:
        return {"the engine's server, asleep (assumed)": _ASLEEP}
    if engine is None or not engine.computes_here:
        return {}
    weights = job.number_bytes * (job.size.base + job.size.adapter)
    copies = job.trains and (job.is_split or engine.learner_weights == "copy")
    return {
        "the engine's copy of the weights": weights * copies,
        "weights in the engine's order": job.number_bytes * job.size.base * (job.device == "cpu"),
        f"keys and values of {engine.local_slots} slots": job.sequence_bytes * engine.local_slots,
    }


def _sizes(record: dict[str, Any]) -> SimpleNamespace | None:
    """Return the sizes of a configuration under transformers' names; None where it leaves one to its family's defaults."""
    config = SimpleNamespace(**record)
    try:
        heads = getattr(config, "num_key_value_heads", None)
        config.num_key_value_heads = heads or config.num_attention_heads
        row_bytes(config, 1, _FLOAT)
    except (AttributeError, TypeError):
        return None
    return config


def _sizes_anywhere(path: Path, model: ModelConfig) -> tuple[Shapes, Any, bool]:
    """Return the shapes of the parameters, the configuration, and whether they are the model's own and not published ones.

    Raises:
        UserError: The sizes are not to be had.
    """
    published = published_config(str(path))
    if published is None:
        with suppress(MachineError):
            fetch_model(path, weights=False)
    is_here = is_fetched(path, weights=False) and model.folder.exists()
    if not is_here and published is None:
        raise MachineError(
            f"model.path: {path} is not here and cannot be fetched, and its config.json tells the sizes. Put that file into a "
            "folder and name it (-s model.path=FOLDER), or name a published model of the same sizes "
            "(-s model.path=Qwen/Qwen2.5-7B)."
        )
    from ramify.modeling.load import parameter_shapes, shapes_of

    if is_here or published is None:
        return *parameter_shapes(model.folder), True
    return *shapes_of(published, str(path)), False


def _refuse_several(path: Path, recipe: AnyRecipe, gpus: int) -> None:
    """Refuse what several processes cannot do.

    Raises:
        ConfigError: An evaluation or a synthesis; copies that are no divisor; an engine that shares weights that are split.
    """
    if isinstance(recipe, EvalRecipe | SynthRecipe):
        what = "an evaluation" if isinstance(recipe, EvalRecipe) else "a synthesis"
        raise ConfigError(f"{path}: --gpus: {what} runs in one process, leave --gpus out")
    if gpus % recipe.learner.copies:
        raise ConfigError(
            f"{path}: learner.copies: expected a divisor of the number of GPUs, {gpus}, got {recipe.learner.copies}"
        )
    if isinstance(recipe, TrainRecipe) and recipe.engine.learner_weights == "shared":
        raise ConfigError(
            f'{path}: engine.weights: expected "copy" or no such key with several GPUs, over which the weights are split'
        )


def _advice(recipe: AnyRecipe, job: Job, room: int) -> str:
    """Return what to change so that it fits."""
    least, engine = choose(job, 0), recipe.engine
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
    buffers = _NCCL * (job.processes > 1)
    # The learner's weights are gathered for the probe before servers wake, so these are not beside them.
    share, most = turns.share, _USABLE - (plan.resident + buffers + _CONTEXT) / (gigabytes * _GIB)
    if share > most:
        raise MachineError(
            f"{path}: engine.flags: the servers take {share:.2f} of each GPU, the learner keeps {in_bytes(plan.resident)} "
            f"there, CUDA's second context and NCCL {in_bytes(buffers + _CONTEXT)}; set --gpu-memory-utilization to {floor(100 * most) / 100:.2f} at most, or take more GPUs"
        )
    weights = number * (job.size.base + job.size.adapter) // turns.gpus
    sequence = job.sequence_bytes // turns.gpus
    fitting = _sequences_in_server(path, turns, weights, sequence, gigabytes)
    return (
        f"while the servers write: {in_bytes(plan.resident)} of the learner's, {in_bytes(buffers + _CONTEXT)} of CUDA's second "
        f"context and NCCL (assumed), {in_bytes(weights)} of a server's weights, and "
        f"keys and values of {fitting:,} of the longest sequences at --gpu-memory-utilization {share:.2f} ({most:.2f} at most)"
    )


def _sequences_in_server(path: Path, turns: GpuTurns, weights: int, sequence: int, gigabytes: float) -> int:
    """Return how many sequences a server has room for, from the bytes of its weights and of one sequence on each GPU.

    Raises:
        MachineError: Not even one.
    """
    fitting = int(turns.share * gigabytes * _GIB - weights) // sequence
    if fitting < 1:
        raise MachineError(
            f"{path}: engine.flags: {turns.share:.2f} of a GPU does not hold the server's weights ({in_bytes(weights)}) and keys and "
            f"values of a sequence ({in_bytes(sequence)}); give a server several GPUs (engine.gpus, --tensor-parallel-size), or "
            "a larger share"
        )
    return fitting
