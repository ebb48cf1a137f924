"""Decoder layers that save about half of the activations that autograd would save.

For the backward pass autograd saves the inputs of every operation. Some are cheap to recompute from others that are
saved anyway: the output of a norm from its input, and silu(gate) * up, the widest one, from gate and up. These layers
recompute such activations in the backward pass, which needs no matrix product. Values are bitwise those of the plain
modules. Gradients are sums of the same terms, at norms in another order.

Where a row does not fit into memory even so, a layer saves only its input and computes the rest again (activation
checkpointing): about a third more compute, and the activations inside a layer exist for one layer at a time.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.modeling_layers import GradientCheckpointingLayer

from ramify.modeling.lora import has_adapters
from ramify.modeling.memory_plan import SHARES, row_bytes
from ramify.modeling.numerics import compute_device, compute_dtype

_Kind: TypeAlias = type[torch.nn.Module]
_Again: TypeAlias = Callable[[], torch.Tensor]

_NORMS = frozenset(
    {
        "transformers.models.llama.modeling_llama.LlamaRMSNorm",
        "transformers.models.ministral3.modeling_ministral3.Ministral3RMSNorm",
        "transformers.models.mistral.modeling_mistral.MistralRMSNorm",
        "transformers.models.qwen2.modeling_qwen2.Qwen2RMSNorm",
        "transformers.models.qwen3.modeling_qwen3.Qwen3RMSNorm",
        "transformers.models.seed_oss.modeling_seed_oss.SeedOssRMSNorm",
        "transformers.models.smollm3.modeling_smollm3.SmolLM3RMSNorm",
    }
)
"""By name: importing the classes would load every family for a model of one."""

_CLASSES: dict[_Kind, _Kind] = {}


def recompute_activations(model: PreTrainedModel) -> None:
    """Replace the forward passes of a model's layers by ones that recompute activations; modules of unknown classes stay as they are."""
    for module in model.modules():
        forward = _forward_for(module)
        if forward is not None:
            # Change the class: a bound method would make a copy of the model compute with the original's weights.
            module.__class__ = _recomputing(type(module), forward)


def _forward_for(module: torch.nn.Module) -> Callable[..., torch.Tensor] | None:
    if isinstance(module, GradientCheckpointingLayer):
        recomputes = any(_is_norm(below) or _is_gated_mlp(below) for below in module.modules())
        return _layer_forward if recomputes else None
    if _is_norm(module):
        return _norm_forward
    return _mlp_forward if _is_gated_mlp(module) else None


def _is_norm(module: torch.nn.Module) -> bool:
    return any(f"{kind.__module__}.{kind.__name__}" in _NORMS for kind in type(module).__mro__)


def _is_gated_mlp(module: torch.nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj", "act_fn")
    return all(isinstance(getattr(module, part, None), torch.nn.Module) for part in parts) and isinstance(
        module.act_fn, torch.nn.SiLU | SiLUActivation
    )


def _recomputing(kind: _Kind, forward: Callable[..., torch.Tensor]) -> _Kind:
    if kind in _CLASSES.values():
        return kind
    return _CLASSES.setdefault(
        kind, type(kind.__name__, (kind,), {"forward": forward, "plain": kind.forward})
    )


class _Cheap:
    """Activations of one forward pass of a layer that the backward pass recomputes.

    They are identified by their address, so they stay alive until the layer is done and no other tensor can reuse it.
    """

    def __init__(self) -> None:
        self._activations: dict[tuple[int, int, torch.dtype], tuple[torch.Tensor, _Again]] = {}

    def add(self, activation: torch.Tensor, again: _Again, sources: Sequence[torch.Tensor]) -> None:
        """Register `activation`, which `again` recomputes from `sources`."""
        saved = [_SavedTensor.of(source) for source in sources]

        def unchanged_again() -> torch.Tensor:
            for source in saved:
                source.tensor()
            return again()

        self._activations[_address(activation)] = activation, unchanged_again

    def clear(self) -> None:
        self._activations.clear()

    def pack(self, tensor: torch.Tensor) -> Any:  # noqa: ANN401
        cheap = self._activations.get(_address(tensor)) if tensor.is_contiguous() else None
        return _SavedTensor.of(tensor) if cheap is None else (cheap[1], tensor.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _SavedTensor:
    """A saved tensor with its version, to detect in-place changes: hooks switch off autograd's own check."""

    _tensor: torch.Tensor
    _version: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_SavedTensor":
        # Detach: an operation that saves its own output would otherwise form a reference cycle and never be freed.
        return cls(tensor if tensor.grad_fn is None else tensor.detach(), tensor._version)

    def tensor(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "a tensor that the backward pass needs was changed in place after the forward pass"
            )
        return self._tensor


_cheap: ContextVar[_Cheap | None] = ContextVar("cheap", default=None)


def _address(tensor: torch.Tensor) -> tuple[int, int, torch.dtype]:
    return tensor.data_ptr(), tensor.numel(), tensor.dtype


def _unpack(packed: Any) -> torch.Tensor:  # noqa: ANN401
    if isinstance(packed, _SavedTensor):
        return packed.tensor()
    again, shape = packed
    with torch.no_grad():
        activation: torch.Tensor = again()
    return activation.view(shape)


def _layer_forward(module: Any, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
    output: torch.Tensor
    # If other hooks are active (activation checkpointing recomputes the whole layer), leave the decision to them.
    if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        output = module.plain(*args, **kwargs)
        return output
    cheap = _Cheap()
    token = _cheap.set(cheap)
    try:
        with torch.autograd.graph.saved_tensors_hooks(cheap.pack, _unpack):
            output = module.plain(*args, **kwargs)
    finally:
        _cheap.reset(token)
        # Autograd keeps a reference to the hooks.
        cheap.clear()
    return output


def _norm_forward(module: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    cheap = _cheap.get()
    output: torch.Tensor
    if cheap is None:
        output = module.plain(x)
        return output
    output = _Norm.apply(module, x, module.weight)  # type: ignore[no-untyped-call]
    source = x.detach()
    cheap.add(output, lambda: module.plain(source), (source, module.weight))
    return output


class _Norm(torch.autograd.Function):
    """The plain norm of x, which saves only x. [.., H] -> [.., H]

    With n = x r, r = (mean(x^2) + eps)^-1/2 and g the gradient with respect to n: dx = r (g - n mean(g n)).
    """

    @staticmethod
    def forward(ctx: Any, module: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.epsilon = module.variance_epsilon
        ctx.save_for_backward(x, weight)
        output: torch.Tensor = module.plain(x)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        # The plain modules compute in float32 for any dtype of x.
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + ctx.epsilon)
        normal = wide * scale
        by_weight = (grads[0] * normal.to(x.dtype)).flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        grad_normal = (grads[0] * weight).to(torch.float32)
        inside = (grad_normal * normal).mean(-1, keepdim=True)
        by_x = torch.addcmul(grad_normal, normal, inside, value=-1).mul_(scale).to(x.dtype)
        return None, by_x, by_weight


def _mlp_forward(module: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    cheap = _cheap.get()
    output: torch.Tensor
    if cheap is None:
        output = module.plain(x)
        return output
    gate, up = module.gate_proj(x), module.up_proj(x)
    product = _Product.apply(gate, up)  # type: ignore[no-untyped-call]
    kept_gate, kept_up = gate.detach(), up.detach()
    cheap.add(product, lambda: F.silu(kept_gate).mul_(kept_up), (kept_gate, kept_up))
    output = module.down_proj(product)
    return output


class _Product(torch.autograd.Function):
    """silu(gate) * up, all [.., I]."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401
        gate, up = ctx.saved_tensors
        by_gate = torch.ops.aten.silu_backward(grads[0] * up, gate)
        return by_gate, F.silu(gate).mul_(grads[0])


def needs_checkpointing(model: PreTrainedModel, tokens: int, available_bytes: int) -> bool:
    """Return True if a row of `tokens` unique tokens fits into `available_bytes` only with recomputation.

    Memory for gradients that are not allocated yet is set aside.
    """
    device = compute_device(model).type
    # Of a model that is split, or kept in the machine's memory, this GPU holds only a part of the gradients, or none.
    gradients = sum(
        (parameter.to_local() if hasattr(parameter, "to_local") else parameter).nbytes
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.grad is None and parameter.device.type == device
    )
    size = compute_dtype(model).itemsize
    row = row_bytes(model.config, tokens, size, device, adapter=has_adapters(model))
    return row.without_recompute > SHARES[device] * (available_bytes - gradients)


def set_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Switch recomputation of layers in the backward pass on or off; loss and gradients do not change."""
    # Not with transformers' own switch, which leaves a hook on the embedding, and the engine calls that module too.
    # There is no dropout, so no random state needs to be saved.
    recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            layer: Any = module
            layer._gradient_checkpointing_func = recompute
            layer.gradient_checkpointing = on
