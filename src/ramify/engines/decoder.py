"""The forward pass of an engine step, written for few tokens: plain functions over the learner's modules.

For a handful of tokens, the model's own `forward` spends more than half of its time outside the matrix products
(module calls, norms in six kernels, rotary angles computed again). This computes the same function for the families
that `modeling.load` opens.

On a CPU a product of a few rows with a weight matrix spends most of its time on reordering the matrix for the
multiplication. A packed copy, made once for each version of the weights, avoids that: a step of 8 rows takes 1.7 ms
instead of 4.2 ms for a model of 6 million weights. An adapter is added into the packed copy, so it costs nothing per
step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ramify.modeling.lora import linear_below, merged_weight

Projection: TypeAlias = Callable[[torch.Tensor], Sequence[torch.Tensor]]
"""[T, in] -> for each module [T, out]."""

_ROWS = 16
"""Number of rows for which the packed order is optimised."""


def project(modules: Sequence[torch.nn.Module]) -> Projection:
    """Return a function that computes the outputs of several modules for one input. A packed copy holds the current weights.

    Packed are linear modules on a CPU: in float32 with or without an adapter, in bfloat16 without one, whose small steps
    their sum would lose. Anything else (a GPU, a processor without such products) is called as it is.
    """
    if all(_can_pack(module) for module in modules):
        return _packed(modules)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [module(x) for module in modules]

    return call


def _can_pack(module: torch.nn.Module) -> bool:
    linear = linear_below(module)
    if linear is None:
        return False
    weight = linear.weight
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return linear is module and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


def _packed(modules: Sequence[Any]) -> Projection:
    sizes = [module.out_features for module in modules]
    with torch.inference_mode():
        weight = torch.cat([merged_weight(module) for module in modules])
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        bias = None
        if any(module.bias is not None for module in modules):
            bias = torch.cat(
                [m.bias if m.bias is not None else weight.new_zeros(m.out_features) for m in modules]
            )
    multiply: Any = torch.ops.mkldnn._linear_pointwise

    def call(x: torch.Tensor) -> Sequence[torch.Tensor]:
        # The library keeps a plan for each number of rows: hundreds of megabytes for hundreds of sizes.
        size = len(x)
        padded = F.pad(x, (0, 0, 0, -size % _ROWS)) if size > _ROWS else x
        product = multiply(padded, packed, bias, "none", [], "")[:size]
        return torch.split_with_sizes(product, sizes, dim=-1) if len(sizes) > 1 else (product,)

    return call


class Attend(Protocol):
    """Attention of one layer over the tokens of a step."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Shapes: query [T, Hq, D], key and value [T, Hkv, D] -> [T, Hq, D]."""
        ...


Map: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: Map
    qkv: Projection
    query_norm: Map | None
    key_norm: Map | None
    rotates: bool
    scaling: float
    output: Projection
    before_mlp: Map
    mlp: Map


class Decoder:
    """Hidden states and logits of a step's tokens. Holds no weights except those that `linears` packs."""

    def __init__(self, model: PreTrainedModel, context_tokens: int) -> None:
        """Read the modules of `model`.

        Args:
            model: A model that can pack trees, with or without an adapter.
            context_tokens: Length of the longest sequence.
        """
        inner = model.model
        self._embed = inner.embed_tokens
        self._layers = [_read_layer(layer) for layer in inner.layers]
        self._norm = _norm(inner.norm)
        self._head = project([model.lm_head])
        self._rotary = inner.rotary_emb
        # `modeling.load` lets in only rotary embeddings whose angle depends on the position alone.
        places = torch.arange(context_tokens, device=model.device)
        self._angles = self._compute_angles(places)
        self._query_scales = _query_scales(model.config, places)

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Return the last hidden states after the final norm. [T], [T] -> [T, H]"""
        x = self._embed(token_ids)
        angles = self._angles[0][positions], self._angles[1][positions]
        scales = None if self._query_scales is None else self._query_scales[positions].to(x.dtype)
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, layer.before_attention(x), angles, scales, attend)
            x = x + layer.mlp(layer.before_mlp(x))
        return self._norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token. [B, H] -> [B, V]"""
        return self._head(hidden)[0]

    def _attention(
        self,
        index: int,
        layer: _Layer,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        scales: torch.Tensor | None,
        attend: Attend,
    ) -> torch.Tensor:
        dim = angles[0].shape[-1]
        query, key, value = (part.view(len(x), -1, dim) for part in layer.qkv(x))
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = layer.query_norm(query), layer.key_norm(key)
        if layer.rotates:
            query, key = _rotate(query, angles), _rotate(key, angles)
        if scales is not None:
            query = query * scales
        mixed = attend(index, query, key, value, layer.scaling)
        return layer.output(mixed.reshape(len(x), -1))[0]

    def _compute_angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the rotary embedding, the first half of the sines negated. [T] -> [T, 1, D] each"""
        cosines, sines = self._rotary(self._embed.weight, positions[None])
        first, second = sines[0, :, None].chunk(2, dim=-1)
        return cosines[0, :, None], torch.cat((-first, second), dim=-1)


def _rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate the pairs (i, i + D/2) of each head. [T, H, D] -> [T, H, D]"""
    return torch.addcmul(x * angles[0], x.roll(x.shape[-1] // 2, dims=-1), angles[1])


def _query_scales(config: Any, places: torch.Tensor) -> torch.Tensor | None:  # noqa: ANN401 - of transformers
    """Return the factor by which a query at each place grows beyond the length of pretraining (Ministral 3). [T] -> [T, 1, 1]"""
    if config.model_type != "ministral3":
        return None
    rope = config.rope_parameters
    beta = rope["llama_4_scaling_beta"]
    beyond = torch.floor(places / rope["original_max_position_embeddings"])
    scales: torch.Tensor = 1 + beta * torch.log(1 + beyond)
    return scales[:, None, None]


def _read_layer(layer: torch.nn.Module) -> _Layer:
    parts: Any = layer
    attention, mlp = parts.self_attn, parts.mlp
    has_norms = hasattr(attention, "q_norm")
    return _Layer(
        before_attention=_norm(parts.input_layernorm),
        qkv=project([attention.q_proj, attention.k_proj, attention.v_proj]),
        query_norm=_norm(attention.q_norm) if has_norms else None,
        key_norm=_norm(attention.k_norm) if has_norms else None,
        rotates=bool(getattr(attention, "use_rope", True)),
        scaling=attention.scaling,
        output=project([attention.o_proj]),
        before_mlp=_norm(parts.post_attention_layernorm),
        # Routed experts are called as they are.
        mlp=(lambda x: mlp(x[None])[0]) if hasattr(mlp, "experts") else _gated(mlp),
    )


def _gated(mlp: Any) -> Map:  # noqa: ANN401 - of transformers
    gate_up, down = project([mlp.gate_proj, mlp.up_proj]), project([mlp.down_proj])

    def call(x: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up(x)
        return down(F.silu(gate).mul_(up))[0]

    return call


def _norm(module: torch.nn.Module) -> Map:
    parts: Any = module

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), parts.weight, parts.variance_epsilon)

    return norm
