"""Builds what a rank of the learner computes with: its part of the model, the optimizer, the reference model.

Imports are inside the functions, so that checking a recipe loads none of the libraries that running it needs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.assemble.model import build_model, require_positions
from ramify.core.errors import ConfigError
from ramify.core.rank import Rank
from ramify.engines.configs import EngineConfig
from ramify.learner.configs import OptimizerConfig
from ramify.modeling.configs import TrainedModelConfig
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel

    from ramify.learner.worker import Reference, Worker


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What every rank makes its worker from; rank 0 sends it to the others.

    Attributes:
        model: The recipe's model; the reference model, if one is needed, is what it was before the run.
        source: Folder of the weights to start from: the recipe's model, or a checkpoint.
        context_tokens: Length of the longest sequence.
        seed: Seed of a fresh adapter.
        optimizer: Settings of the optimizer.
        with_reference: Whether a reference model is needed.
        copies: How many copies of the weights there are, each split over its ranks.
        layout: How split weights lie.
        threads: Threads of torch on the other ranks.
        deterministic: Whether all ranks use deterministic operations only.
    """

    model: TrainedModelConfig
    source: Path
    context_tokens: int
    seed: int
    optimizer: OptimizerConfig
    with_reference: bool
    copies: int = 1
    layout: Layout = GATHERED_ONCE
    threads: int | None = None
    deterministic: bool = False

    def __call__(self, rank: Rank) -> "Worker":
        """Load the model on a rank, and split it.

        Weights that are trained are in float32, and so is their optimizer. In one process a model is split only to compute
        in another type than that: an adapter lies in float32 beside its base as it is.

        Raises:
            UserError: The folder cannot be read, or the ranks cannot be split as asked.
        """
        from ramify.learner.worker import Worker
        from ramify.modeling.numerics import set_numerics

        if rank.size % self.copies:
            raise ConfigError(
                f"learner.copies: expected a divisor of the number of processes, {rank.size}, got {self.copies}"
            )
        if rank.number:
            set_numerics(self.threads, self.deterministic)
        section = replace(self.model, path=self.source)
        if rank.size == 1 and (section.dtype == "float32" or keeps_its_base(section)):
            model = self._loaded(section)
            return Worker(model, self.optimizer, self.reference(model, None))
        import torch

        from ramify.learner.parallel import make_mesh

        on_gpu = section.device != "cpu" and torch.cuda.is_available()
        mesh = make_mesh(rank, "cuda" if on_gpu else "cpu", self.copies)
        parts = None if keeps_its_base(section) else self._read_parts(section.folder, "float32", mesh)
        if parts is None:
            dtype = section.dtype if keeps_its_base(section) else "float32"
            whole = replace(section, dtype=dtype, device="cpu")
            parts = self._loaded(whole)
            self._split(parts, mesh)
        return Worker(parts, self.optimizer, self.reference(parts, mesh))

    def description(self) -> dict[str, Any]:
        """Return the plan as values that ranks can send to each other."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> "WorkerPlan":
        """Return the plan of a description."""
        return cls(**description)

    def engine_model(self) -> "PreTrainedModel":
        """Return the model again, whole and frozen, in the type that it computes in."""
        section = replace(self.model, path=self.source)
        return build_model(section, self.context_tokens, self.seed).requires_grad_(False)

    def _loaded(self, section: TrainedModelConfig) -> "PreTrainedModel":
        """Load the model whole, with what is trained in float32."""
        from ramify.modeling.load import copy_rest_from

        model = _in_float32(build_model(section, self.context_tokens, self.seed))
        # Not from the checkpoint that a run goes on from, which is deleted before the run has ended.
        copy_rest_from(model, self.model.folder)
        return model

    def _split(
        self,
        model: "PreTrainedModel",
        mesh: "DeviceMesh",
        read: "Callable[[str, slice], torch.Tensor] | None" = None,
    ) -> None:
        from ramify.learner.sharding import Sharding, shard
        from ramify.modeling.load import DTYPES

        shard(model, Sharding(mesh, DTYPES[self.model.dtype], self.layout), read)

    def _read_parts(
        self, folder: Path, dtype: str, mesh: "DeviceMesh", *, trained: bool = True
    ) -> "PreTrainedModel | None":
        """Read this rank's part of each weight, and no more; None: the folder has to be read whole."""
        from safetensors import safe_open

        from ramify.learner.sharding import on_any
        from ramify.modeling.load import load_unfilled
        from ramify.modeling.weight_values import ValueFlags, check_values

        unfilled = load_unfilled(folder, dtype)
        if unfilled is None:
            return None
        model, stored = unfilled
        require_positions(folder, int(model.config.max_position_embeddings), self.context_tokens)
        flags: dict[str, ValueFlags] = {}

        def read(name: str, rows: slice) -> "torch.Tensor":
            with safe_open(stored[name].file, framework="pt") as file:
                part: torch.Tensor = file.get_slice(name)[rows]
            flags[name] = ValueFlags.of(part)
            return part

        self._split(model.requires_grad_(trained), mesh, read)
        known = on_any([flag for each in flags.values() for flag in (each.not_finite, each.not_zero)], mesh)
        values = zip(known[::2], known[1::2], strict=True)
        whole = {
            name: replace(flags[name], not_finite=a, not_zero=b)
            for name, (a, b) in zip(flags, values, strict=True)
        }
        check_values(whole, stored, folder)
        return model

    def reference(self, model: "PreTrainedModel", mesh: "DeviceMesh | None") -> "Reference | None":
        """Return the model before the run: the base without its adapter, or a frozen copy.

        If the run trains an existing adapter further, the reference includes that adapter and is loaded as a copy.
        """
        from ramify.modeling.load import load_model
        from ramify.modeling.lora import adapters_off, has_adapters
        from ramify.modeling.model_config import is_adapter_folder
        from ramify.modeling.numerics import compute_device

        if not self.with_reference:
            return None
        if has_adapters(model) and not is_adapter_folder(self.model.folder):

            @contextmanager
            def base() -> "Iterator[PreTrainedModel]":
                with adapters_off(model):
                    yield model

            return base
        if mesh is None or mesh.size() == 1:
            device = str(compute_device(model))
            frozen = load_model(self.model.folder, self.model.dtype, device).requires_grad_(False)
        else:
            parts = self._read_parts(self.model.folder, self.model.dtype, mesh, trained=False)
            if parts is None:
                parts = load_model(self.model.folder, self.model.dtype).requires_grad_(False)
                self._split(parts, mesh)
            frozen = parts
        return lambda: nullcontext(frozen)


def keeps_its_base(section: TrainedModelConfig) -> bool:
    """Return True if an adapter is trained and the base is frozen."""
    from ramify.modeling.model_config import is_adapter_folder

    return section.lora is not None or is_adapter_folder(section.folder)


def _in_float32(model: "PreTrainedModel") -> "PreTrainedModel":
    """Return the model with what is trained in float32."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def build_engine_model(
    engine: EngineConfig, model: "PreTrainedModel", again: "Callable[[], PreTrainedModel]"
) -> "PreTrainedModel":
    """Build the model that a training run's engine computes with: the learner's, or a frozen copy (`engine.weights`).

    In a copy, tied weights are tied, and an adapter lies beside its base.

    Args:
        engine: The recipe's engine.
        model: The learner's model.
        again: Loads a copy where the learner's model is split.

    Raises:
        ConfigError: The engine is to share the weights of a learner that are split.
    """
    from ramify.learner.sharding import is_sharded

    if not engine.computes_here:
        return model
    if is_sharded(model):
        if engine.learner_weights == "shared":
            raise ConfigError(
                'engine.weights: expected "copy" or no such key, since the weights are split over processes or kept in '
                "float32 beside those that compute"
            )
        return again()
    return deepcopy(model).requires_grad_(False) if engine.learner_weights == "copy" else model
