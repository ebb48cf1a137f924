"""The gated MLP of supported families, keeping half of what autograd would keep of it.

down(silu(gate(x)) * up(x)): autograd keeps four wide tensors a layer, most of a pass's memory. Here gate and up are kept,
and the other two are computed again in the backward pass, which costs no product of matrices. Values and gradients are
bitwise those of the plain module.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

_CLASSES: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def keep_less(model: PreTrainedModel) -> None:
    """Give the MLPs of a model this forward pass; modules of another build stay as they are."""
    for module in model.modules():
        parts = ("gate_proj", "up_proj", "down_proj", "act_fn")
        if all(isinstance(getattr(module, part, None), torch.nn.Module) for part in parts) and _is_silu(
            module
        ):
            # A class of its own, not a bound method: a copy of the model must not compute with the original's weights.
            module.__class__ = _CLASSES.setdefault(type(module), _lean(type(module)))


def _is_silu(module: torch.nn.Module) -> bool:
    return isinstance(module.act_fn, torch.nn.SiLU | SiLUActivation)


def _lean(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    return kind if kind in _CLASSES.values() else type(kind.__name__, (kind,), {"forward": _forward})


def _forward(module: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    gate, up = module.gate_proj(x), module.up_proj(x)
    down: torch.Tensor
    # Where something else decides what is kept (a layer that is computed again as a whole), nothing is decided here.
    if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        down = module.down_proj(F.silu(gate) * up)
        return down
    product = _Product.apply(gate, up)  # type: ignore[no-untyped-call]
    place, size = product.data_ptr(), product.numel()

    def pack(kept: torch.Tensor) -> Any:  # noqa: ANN401
        is_product = kept.data_ptr() == place and kept.numel() == size and kept.is_contiguous()
        return kept.shape if is_product else kept

    def unpack(packed: Any) -> torch.Tensor:  # noqa: ANN401
        if isinstance(packed, torch.Tensor):
            return packed
        with torch.no_grad():
            return F.silu(gate).mul_(up).view(packed)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        down = module.down_proj(product)
    return down


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
