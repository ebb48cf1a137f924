"""The device and the memory that a recipe asks for, from the recipe and the heads of its files; no library is loaded."""

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from ramify.commands.work import AnyRecipe, engine_of, loads_weights
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_selfcritic import SelfCriticRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import largest_row, longest_sequence
from ramify.modeling.configs import AdapterConfig, ModelConfig, TrainedModelConfig
from ramify.modeling.hub import is_fetched
from ramify.modeling.memory_plan import Job, MemoryPlan, ModelSize
from ramify.modeling.model_config import is_adapter_folder, read_model_config, whole_folder
from ramify.modeling.row_bytes import Config, row_bytes, store_bytes
from ramify.modeling.weight_files import stored_tensors

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

GIB = 1 << 30
_ASLEEP = 2 * GIB
"""Assumed of a vLLM server that sleeps: CUDA itself and captured graphs stay on the GPU. Measured on no GPU."""
_FLOAT = 4
_DRIVER = Path("/proc/driver/nvidia/version")


def device_of(model: ModelConfig) -> tuple[str, str]:
    """Return the device of a model, "cpu" or "cuda", and the reason for it, without asking torch."""
    if model.device != "auto":
        return model.device, f'model.device = "{model.device}"'
    if not _DRIVER.exists():
        return "cpu", "no NVIDIA driver here"
    torch = importlib.util.find_spec("torch")
    version = Path(torch.origin).with_name("version.py") if torch and torch.origin else None
    if version is not None and version.is_file() and "cuda: Optional[str] = None" in version.read_text():
        return "cpu", "this build of torch is for the CPU"
    return "cuda", "an NVIDIA driver is here"


def in_bytes(size: int) -> str:
    """Return a size for a user."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / (1 << 20):,.1f} MiB"


def memory_lines(job: Job, plan: MemoryPlan) -> Iterator[str]:
    """Yield a line with the total and the ways to save memory, then one for each part."""
    row = f"; a row of {job.row_tokens:,} tokens" if job.trains else ""
    again = ", layers computed again" if plan.recompute else ""
    layers = "; weights gathered layer by layer" if plan.layout.gather == "by_layer" else ""
    yield f"about {in_bytes(plan.total)} for {job.size.base:,} parameters{row}{again}{layers}"
    yield from (f"{in_bytes(size):>10}  {name}" for name, size in plan.parts.items())
    if plan.layout.offload:
        yield f"weights, gradients and optimizer lie in the machine's memory: {in_bytes(plan.host)} for each of its GPUs"


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
    shapes = {name: tensor.shape for name, tensor in stored_tensors(folder).items()}
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
    number, copies, row_tokens, adapter, has_reference = number_bytes(recipe.model.dtype), 1, 0, 0, False
    if not isinstance(recipe, EvalRecipe | SynthRecipe) and trains:
        adapter = _adapter(recipe.model, shapes)
        copies, row_tokens = recipe.learner.copies, largest_row(recipe)
        has_reference = _has_reference(recipe) and (not adapter or _is_adapter(recipe.model))
    job = Job(
        config=config,
        size=ModelSize.of(shapes, adapter),
        number_bytes=number,
        row_tokens=row_tokens,
        processes=processes,
        copies=copies,
        has_reference=has_reference,
        sequence_bytes=0 if config is None else store_bytes(config, 1, longest_sequence(recipe), number),
        device=device,
    )
    return replace(job, beside=_engine_parts(recipe, job))


def number_bytes(dtype: str) -> int:
    """Return the bytes of a number of this type."""
    return _FLOAT if dtype == "float32" else 2


def adapter_parameters(section: AdapterConfig, shapes: Shapes) -> int:
    """Count the parameters of a new adapter beside a model of these tensors."""
    parameters = 0
    for name, shape in shapes.items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        is_layer = ".layers." in name and len(shape) == 2
        if is_layer and (section.targets == "all-linear" or module in section.targets):
            parameters += section.rank * sum(shape)
    return parameters


def _engine_parts(recipe: AnyRecipe, job: Job) -> dict[str, int]:
    """Count the engine's memory on the learner's GPU; of several GPUs a local engine has the first."""
    engine = engine_of(recipe)
    if engine is None:
        return {}
    if engine.gpu_turns is not None and job.trains:
        return {"the engine's server, asleep (assumed)": _ASLEEP}
    if not engine.computes_here:
        return {}
    weights = job.number_bytes * (job.size.base + job.size.adapter)
    copies = job.is_split or engine.copies_weights
    is_ordered = job.device == "cpu" and job.number_bytes == _FLOAT
    return {
        "the engine's copy of the weights": weights * (job.trains and copies),
        "weights in the engine's order": job.number_bytes * job.size.base * is_ordered,
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


def _adapter(model: TrainedModelConfig, shapes: Shapes) -> int:
    """Count the parameters of the adapter that is trained; 0 if there is none."""
    if _is_adapter(model):
        return sum(prod(tensor.shape) for tensor in stored_tensors(model.folder).values())
    return 0 if model.lora is None else adapter_parameters(model.lora, shapes)


def _is_adapter(model: ModelConfig) -> bool:
    """Return True if the model's path names an adapter that is here."""
    return is_fetched(model.path, weights=False) and is_adapter_folder(model.folder)


def _has_reference(recipe: TrainRecipe | SftRecipe) -> bool:
    """Return True if a run compares its policy with the model that it began with."""
    if isinstance(recipe, TrainRecipe):
        is_copied = isinstance(recipe, SelfCriticRecipe) and recipe.dpo.lora is None
        return is_copied or recipe.algorithm.kl is not None
    return isinstance(recipe, DpoRecipe)
