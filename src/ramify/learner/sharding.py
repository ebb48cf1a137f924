"""Weights over several processes (FSDP2): each keeps a part in float32, and gathers whole ones in the compute type.

FSDP2 gathers a module's weights before its forward pass and reduces its gradients after its backward pass, and both wait
for all processes. Ours compute different numbers of rows, and a row in several stages. So there are two ways:

`once`: everything is gathered before the first row, and reduced once after the last one, in a pass over one token whose
loss is zero. Between the two no process waits for another.
`by_layer`: each layer is gathered for itself, for models that do not fit whole. Then every process must make the same
number of passes; one with fewer rows makes empty ones.

Gradients are summed, not averaged: losses are divided by a denominator of the whole optimizer step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Partial, Shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ramify.learner.forward import empty_pass
from ramify.modeling.lora import adapter_tensors
from ramify.modeling.memory_plan import Gather, Layout, ModelSize, gathered_bytes
from ramify.modeling.numerics import compute_dtype


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model lies over processes.

    Attributes:
        mesh: The processes: one dimension for parts, or a first one for copies of the whole and a second one for parts.
        dtype: What is gathered and computed in; gradients are summed in at least float32.
        layout: When weights are gathered, and where they lie until then.
    """

    mesh: DeviceMesh
    dtype: torch.dtype
    layout: Layout


def shard(
    model: PreTrainedModel, how: Sharding, read: Callable[[str, slice], torch.Tensor] | None = None
) -> None:
    """Split the parameters of a model over the processes, in place. Every process calls this with equal weights.

    With `read` the parameters are on the meta device, and each process reads its own rows of each, by name.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=how.dtype, reduce_dtype=torch.promote_types(how.dtype, torch.float32)
    )
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, model):
        is_layer = module is not model
        fully_shard(
            module,
            mesh=how.mesh,
            reshard_after_forward=how.layout.gather == "by_layer" and is_layer,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
            if how.layout.offload
            else OffloadPolicy(),
        )
    if read is not None:
        _fill(model, read, torch.device("cpu" if how.layout.offload else how.mesh.device_type))
    for part in _parts(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    known: Any = model
    known.computes_in, known.gather = how.dtype, how.layout.gather
    known.computes_on = torch.device(how.mesh.device_type)
    known.base_forward = MethodType(_base_forward, model)
    register_fsdp_forward_method(model, "base_forward")
    # The first pass decides what is trained and in which types; later an adapter may be off, and look frozen.
    with torch.no_grad(), gathered(model):
        empty_pass(model)


def _fill(model: PreTrainedModel, read: Callable[[str, slice], torch.Tensor], device: torch.device) -> None:
    filled: dict[int, torch.nn.Parameter] = {}
    state = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in filled:
            part = torch.empty_like(own_part(parameter), device=device)
            part.copy_(read(name, own_rows(parameter)))
            filled[id(parameter)] = torch.nn.Parameter(
                with_own_part(parameter, part), requires_grad=parameter.requires_grad
            )
        state[name] = filled[id(parameter)]
    # Each part is the one that FSDP2 works with: it takes them over when they are assigned.
    model.load_state_dict(state, strict=False, assign=True)


def on_any(flags: Sequence[bool], mesh: DeviceMesh) -> list[bool]:
    """Return for each flag whether it is set on any process that has a part of the same weights."""
    known = torch.tensor(flags, dtype=torch.uint8, device=mesh.device_type)
    torch.distributed.all_reduce(known, torch.distributed.ReduceOp.MAX, mesh.get_group("parts"))
    return [bool(flag) for flag in known.tolist()]


def _base_forward(model: PreTrainedModel, **inputs: Any) -> Any:  # noqa: ANN401 - of transformers
    return model.base_model(**inputs)


def is_sharded(model: torch.nn.Module) -> bool:
    """Return True if `shard` has split the model."""
    return isinstance(model, FSDPModule)


def computes_by_layer(model: PreTrainedModel) -> bool:
    """Return True if every process must make the same number of passes."""
    return is_sharded(model) and getattr(model, "gather", "once") == "by_layer"


def bytes_when_whole(model: PreTrainedModel) -> int:
    """Return the bytes that a pass with gradient takes because weights and gradients are split; 0 if they are not."""
    if not is_sharded(model):
        return 0
    adapter = {id(tensor) for tensor in adapter_tensors(model).values()}
    shapes = {name: p.shape for name, p in model.named_parameters() if id(p) not in adapter}
    trained = sum(p.numel() for p in model.parameters() if id(p) in adapter)
    gather: Gather = "by_layer" if computes_by_layer(model) else "once"
    parts = gathered_bytes(ModelSize.of(shapes, trained), compute_dtype(model).itemsize, gather)
    return sum(parts.values())


@contextmanager
def gathered(model: PreTrainedModel) -> Iterator[None]:
    """Keep the weights whole while the block runs, for passes without gradient (`by_layer`: the head's, and each layer's in turn)."""
    if not is_sharded(model):
        yield
        return
    parts: list[Any] = [model] if computes_by_layer(model) else _parts(model)
    for part in parts:
        part.unshard()
    try:
        yield
    finally:
        for part in _parts(model):
            part.reshard()


@contextmanager
def reduced(model: PreTrainedModel) -> Iterator[None]:
    """Keep the weights whole while the block runs, for passes with gradient; then sum and split the gradients."""
    if not is_sharded(model):
        yield
        return
    sharded: Any = model
    if not computes_by_layer(model):
        _synchronize(sharded, False)
        for part in _parts(model):
            part.unshard()
    else:
        sharded.unshard()
    yield
    _synchronize(sharded, True)
    empty_pass(model)


def _synchronize(model: Any, on: bool) -> None:  # noqa: ANN401 - a model and an FSDPModule
    model.set_requires_gradient_sync(on)
    model.set_reshard_after_backward(on)
    model.set_is_last_backward(on)


def _parts(model: torch.nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def add_reduced(parameter: torch.Tensor, own: torch.Tensor) -> None:
    """Add a gradient of which every process has a summand [whole shape] to the parameter's gradient."""
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        summands = DTensor.from_local(own, mesh, [Partial()] * mesh.ndim, run_check=False)
        own = summands.redistribute(mesh, parameter.placements)
    own = own.to(parameter.device, parameter.dtype)
    parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the parts of all processes. Every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process keeps."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: torch.Tensor) -> slice:
    """Return the rows of the whole tensor that `own_part` holds."""
    if not isinstance(tensor, DTensor):
        return slice(None)
    mesh, size = tensor.device_mesh, tensor.shape[0]
    (dimension,) = (n for n, placement in enumerate(tensor.placements) if isinstance(placement, Shard))
    chunk = -(-size // mesh.size(dimension))
    start = min(size, mesh.get_local_rank(dimension) * chunk)
    return slice(start, min(size, start + chunk))


def writes_state(tensor: torch.Tensor) -> bool:
    """Return True if this process writes its part to a checkpoint; of those with the same part only one does."""
    if not isinstance(tensor, DTensor):
        return True
    return all(
        isinstance(placement, Shard) or tensor.device_mesh.get_local_rank(dimension) == 0
        for dimension, placement in enumerate(tensor.placements)
    )


def with_own_part(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is split as `like`, of which this process keeps `part`."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
