"""The device and the memory that a recipe asks for, from the recipe and the heads of its files; no library is loaded."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from ramify.commands.work import AnyRecipe, Work
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_selfcritic import SelfCriticRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import largest_row
from ramify.engines.configs import LocalEngineConfig, TrainingEngineConfig, VllmEngineConfig
from ramify.modeling.configs import AdapterConfig, ModelConfig, TrainedModelConfig
from ramify.modeling.hub import is_fetched
from ramify.modeling.memory_plan import HEAD, ROW, Job, MemoryPlan, ModelSize, choose, plan_of
from ramify.modeling.model_config import is_adapter_folder, read_model_config, whole_folder
from ramify.modeling.row_bytes import row_bytes, store_bytes
from ramify.modeling.weight_files import stored_tensors

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

GIB = 1 << 30
ASLEEP = 2 * GIB
"""Assumed of a vLLM server that sleeps: CUDA itself and captured graphs stay on the GPU. Measured on no GPU."""
_FLOAT = 4
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
_DRIVER = Path("/proc/driver/nvidia/version")


def device_of(model: ModelConfig) -> tuple[str, str]:
    """Where a model would run, "cpu" or "cuda", and why, without asking torch."""
    if model.device != "auto":
        return model.device, f'model.device = "{model.device}"'
    if not _DRIVER.exists():
        return "cpu", "no NVIDIA driver here"
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    if version is not None and version.is_file() and "cuda: Optional[str] = None" in version.read_text():
        return "cpu", "this build of torch is for the CPU"
    return "cuda", "an NVIDIA driver is here"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a recipe takes.

    Attributes:
        job: What the model takes.
        optimizer: Its name for a user.
        slot: Bytes of the keys and values of one sequence in the engine.
    """

    job: Job
    optimizer: str = "AdamW"
    slot: int = 0

    @property
    def least(self) -> int:
        """What there must be for one process: with layers of a row that are computed again in the backward pass."""
        return min(plan_of(self.job, 0, "once", again).total for again in (False, True))

    def plan(self, room: int) -> MemoryPlan:
        """How a run that has `room` bytes on each GPU does it."""
        return choose(self.job, room)

    def told(self, plan: MemoryPlan) -> Mapping[str, int]:
        """The parts of a plan under names for a user, the row first."""
        again = ", layers computed again" if plan.recompute else ""
        names = {
            ROW: f"a row of {self.job.row_tokens:,} tokens{again}",
            "optimizer": self.optimizer,
            "gathered weights": "weights gathered to compute"
            + (", layer by layer" if plan.gather == "by_layer" else ""),
        }
        order = sorted(plan.parts, key=lambda name: name not in (ROW, HEAD))
        return {names.get(name, name): plan.parts[name] for name in order}

    @property
    def in_words(self) -> str:
        """One line."""
        plan = plan_of(self.job, 0, "once", False)
        told = ", ".join(f"{name} {in_bytes(size)}" for name, size in self.told(plan).items())
        less = " (less where layers are computed again)" if self.job.trains else ""
        return f"about {in_bytes(plan.total)} for {self.job.size.base:,} parameters: {told}{less}"


def in_bytes(size: int) -> str:
    """A size for a user."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / (1 << 20):,.1f} MiB"


def loads_weights(recipe: AnyRecipe, work: Work) -> bool:
    """Whether a model is in this process; it may be at a service."""
    engine = None if isinstance(recipe, SftRecipe | DpoRecipe) else recipe.engine
    return work.trains or isinstance(engine, LocalEngineConfig)


def memory_of(recipe: AnyRecipe, work: Work, device: str, processes: int = 1) -> Memory | None:
    """What a recipe takes on `device` ("cpu" or "cuda") for each process; None where no weights are loaded or they are not here yet.

    Raises:
        DataError: The model's folder cannot be read.
    """
    if not loads_weights(recipe, work) or not is_fetched(recipe.model.path):
        return None
    folder = whole_folder(recipe.model.folder)
    shapes = {name: tensor.shape for name, tensor in stored_tensors(folder).items()}
    return memory_by_sizes(recipe, work, device, shapes, _sizes(read_model_config(folder)), processes)


def memory_by_sizes(
    recipe: AnyRecipe,
    work: Work,
    device: str,
    shapes: Shapes,
    config: Any,  # noqa: ANN401 - transformers' configuration, or its values under the same names
    processes: int = 1,
) -> Memory:
    """The same for a model of these tensors; without a configuration the engine's store and the row are left out.

    Raises:
        DataError: The folder of an adapter cannot be read.
    """
    number = number_bytes(recipe.model)
    size = ModelSize.of(shapes, _adapter(recipe.model, shapes) if work.trains else 0)
    learner = None if isinstance(recipe, EvalRecipe | SynthRecipe) or not work.trains else recipe.learner
    job = Job(
        config=config,
        size=size,
        number_bytes=number,
        row_tokens=0
        if isinstance(recipe, EvalRecipe | SynthRecipe) or learner is None
        else largest_row(recipe),
        processes=processes,
        copies=1 if learner is None else learner.copies,
        has_reference=learner is not None
        and _has_reference(recipe)
        and (not size.adapter or _is_adapter(recipe.model)),
        device=device,
    )
    slot = 0 if config is None else store_bytes(config, 1, work.context, number)
    beside = _beside(recipe, job, slot)
    optimizer = "" if learner is None else _OPTIMIZERS[learner.optimizer.name]
    return Memory(replace(job, beside=beside), optimizer, slot)


def _beside(recipe: AnyRecipe, job: Job, slot: int) -> Mapping[str, int]:
    """What the engine takes on the learner's GPU; of several GPUs a local engine has the first."""
    engine = None if isinstance(recipe, SftRecipe | DpoRecipe) else recipe.engine
    if isinstance(engine, VllmEngineConfig) and engine.sleep and job.trains:
        return {"the engine's server, asleep (assumed)": ASLEEP}
    if not isinstance(engine, LocalEngineConfig):
        return {}
    weights = job.number_bytes * (job.size.base + job.size.adapter)
    copies = job.is_split or (isinstance(engine, TrainingEngineConfig) and engine.weights == "copy")
    is_ordered = job.device == "cpu" and job.number_bytes == _FLOAT
    return {
        "the engine's copy of the weights": weights * (job.trains and copies),
        "weights in the engine's order": job.number_bytes * job.size.base * is_ordered,
        f"keys and values of {engine.slots} slots": slot * engine.slots,
    }


def number_bytes(model: ModelConfig) -> int:
    """Bytes of a number that a model computes with."""
    return _FLOAT if model.dtype == "float32" else 2


def _sizes(record: dict[str, Any]) -> SimpleNamespace | None:
    """The sizes of a configuration under transformers' names; None where it leaves one to its family's defaults."""
    config = SimpleNamespace(**record)
    try:
        config.num_key_value_heads = (
            getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        )
        row_bytes(config, 1, _FLOAT)
    except (AttributeError, TypeError):
        return None
    return config


def _adapter(model: ModelConfig, shapes: Shapes) -> int:
    """Parameters of the adapter that is trained; 0 if there is none."""
    if _is_adapter(model):
        return sum(prod(tensor.shape) for tensor in stored_tensors(model.folder).values())
    section = model.lora if isinstance(model, TrainedModelConfig) else None
    return 0 if section is None else adapter_parameters(section, shapes)


def _is_adapter(model: ModelConfig) -> bool:
    """Whether the model's path names an adapter that is here."""
    return is_fetched(model.path, weights=False) and is_adapter_folder(model.folder)


def adapter_parameters(section: AdapterConfig, shapes: Shapes) -> int:
    """Parameters of a new adapter beside a model of these tensors."""
    found = 0
    for name, shape in shapes.items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        is_layer = ".layers." in name and len(shape) == 2
        if is_layer and (section.targets == "all-linear" or module in section.targets):
            found += section.rank * sum(shape)
    return found


def _has_reference(recipe: AnyRecipe) -> bool:
    copies = isinstance(recipe, SelfCriticRecipe) and recipe.dpo.lora is None
    return (
        copies
        or isinstance(recipe, DpoRecipe)
        or (isinstance(recipe, TrainRecipe) and recipe.algorithm.kl is not None)
    )
