"""Plans how a model is trained on GPUs of a given memory, and what takes how much. Pure; loads no library.

All sizes are bytes of one process, which has a GPU (or the CPU) for itself. With several processes, or a model that computes
in 16 bits, what is trained is kept in float32, split over the processes, and gathered to compute (`learner.sharding`). A
single process in float32 keeps everything whole, and so does one that trains an adapter.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeAlias

Config: TypeAlias = Any
"""transformers' configuration of a model, or its values under the same names."""

CACHED_LOGITS = 1 << 20
"""Logits that the head computes at a time on a CPU, so that they stay in its caches."""

_HEAD_TOKENS = 1024
"""Tokens whose logits the head may hold at once."""

_FLOAT = 4
"""Bytes of a float32; norms compute in float32 for any dtype of the model."""

_RECOMPUTED_FAMILIES = ("llama", "ministral3", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3")
_NORMS = {"gemma3_text": 4, "gemma4_text": 4}
"""Norms per layer, in families that do not have two."""

SHARES = {"cuda": 0.8, "cpu": 0.6}
"""Of free memory that a row may take. A process on a CPU rose by up to 1.4 times the estimate: the allocator keeps
pieces that fit nothing, and other programs take memory too."""


@dataclass(frozen=True, slots=True)
class RowBytes:
    """Memory of forward and backward of one row, above weights and gradients.

    Attributes:
        layers: What the layers keep for the backward pass.
        recomputed: The same where each layer keeps its input alone and is computed again in the backward pass.
        head: Blocks of logits, and copies of the head's gradient.
    """

    layers: int
    recomputed: int
    head: int

    @property
    def without_recompute(self) -> int:
        """Return the bytes of a row whose layers keep all their activations."""
        return self.layers + self.head


def row_bytes(
    config: Config, tokens: int, size: int, device_type: str = "cpu", *, adapter: bool = False
) -> RowBytes:
    """Estimate the most that one row takes.

    Without recomputation. It counts the activations that each layer of a decoder saves (attention saves no
    scores), the copies of keys and queries that a packed tree makes, and the head. For linear attention it is a guess.

    Args:
        config: The model's configuration.
        tokens: Unique tokens of the row.
        size: Bytes per element of the activations.
        device_type: Device; on a CPU the head works in parts that fit into its cache.
        adapter: An adapter is trained, and neither head nor embedding.
    """
    last_norm = config.hidden_size * (max(size, _FLOAT) + 2 * size)
    # In the backward pass of a layer, an adapter's scaled copies of gradients, and a second gradient of each input.
    copies = size * (4 * mlp_width(config) + 2 * config.hidden_size) * adapter
    # In the backward pass of a layer, three copies of a token's states for each of its experts.
    copies += 3 * size * _routed_states(config)
    # Gemma 4's embedding of each layer: looked up, and projected with a norm.
    copies += 2 * (max(size, _FLOAT) + size) * config.num_hidden_layers * _layer_embedding(config)
    stored = config.num_hidden_layers * _layer(config, size) + last_norm + copies
    inputs = config.num_hidden_layers * size * config.hidden_size
    again = inputs + _layer(config, size, recomputed=True) + last_norm + copies
    head = _head_bytes(config, tokens, size, device_type, is_trained=not adapter)
    return RowBytes(tokens * stored, tokens * again, head)


def store_bytes(config: Config, slots: int, context: int, size: int) -> int:
    """Return the bytes of the local engine's keys and values, of `slots` sequences of `context` tokens and the spare position."""
    per_token = 2 * config.num_hidden_layers * kv_heads(config) * head_dim(config) * size
    return int(per_token * slots * (context + 1))


def head_dim(config: Config) -> int:
    """Return the size of an attention head; where layers differ, the largest."""
    return _largest(config, "head_dim") or config.hidden_size // config.num_attention_heads


def kv_heads(config: Config) -> int:
    """Return the heads of keys and values of a layer; where layers differ, the most."""
    return _largest(config, "num_key_value_heads") or int(config.num_attention_heads)


def _largest(config: Config, key: str) -> int:
    """Return a size of the attention, 0 if the configuration has none; transformers refuses to name one where layers differ."""
    if key in (getattr(config, "per_layer_attributes", None) or ()):
        return max(int(getattr(layer, key)) for layer in config.per_layer_config)
    apart = getattr(config, "per_layer_config", None)
    others = [part.get(key) for part in apart.values()] if isinstance(apart, dict) else []
    return max(
        int(value or 0) for value in (getattr(config, key, 0), getattr(config, f"global_{key}", 0), *others)
    )


def _layer(config: Config, size: int, *, recomputed: bool = False) -> int:
    """Return the bytes that one layer keeps for a token; one that is computed again keeps what autograd does."""
    queries = config.num_attention_heads * head_dim(config)
    keys = kv_heads(config) * head_dim(config)
    # A norm keeps its input in float32, the normalised values and, for the product behind it, the scaled ones; in
    # `recompute` the input alone.
    recomputes = config.model_type in _RECOMPUTED_FAMILIES and not recomputed
    norm = config.hidden_size * (max(size, _FLOAT) + 2 * size)
    if config.model_type in _NORMS:
        # Gemma scales them in float32 too.
        norm = config.hidden_size * (2 * max(size, _FLOAT) + size)
    norms = 2 * size * config.hidden_size if recomputes else _NORMS.get(config.model_type, 2) * norm
    # Queries, output, and output in the row's order; keys and values, and their copies gathered with the ancestors'.
    attention = size * (3 * queries + 6 * keys)
    if config.model_type in ("qwen3", "qwen3_moe", "qwen3_next", "olmo3", "gemma3_text", "gemma4_text"):
        attention += (size if recomputes else max(size, _FLOAT) + size) * (queries + keys)
    # What `recompute` keeps, and for other activations and routed experts what autograd does.
    keeps_less = (
        getattr(config, "hidden_act", None) == "silu" and not recomputed and not _routed_states(config)
    )
    mlp = (2 if keeps_less else 4) * size * mlp_width(config)
    # A token's states go to each of its experts, and each has an output of its own.
    mlp += 2 * size * _routed_states(config)
    if own := _layer_embedding(config):
        mlp += 3 * size * own + norm
    return int(norms + attention + mlp)


def _routed_states(config: Config) -> int:
    """Return the numbers in a token's states for all experts that it goes to; 0 without routed experts."""
    # transformers writes Qwen3-MoE's count under another name than the published files.
    has_experts = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0)
    return int(config.num_experts_per_tok * config.hidden_size) if has_experts else 0


def _layer_embedding(config: Config) -> int:
    """Return the width of the embedding that each layer has of its own; 0 if they have none."""
    return int(getattr(config, "hidden_size_per_layer_input", 0) or 0)


def _head_bytes(config: Config, tokens: int, size: int, device_type: str, *, is_trained: bool) -> int:
    """Return the bytes of blocks of logits, and of temporary copies of the head weight's gradient."""
    # Logits, probabilities, and a gradient if the loss needs entropies or another dtype. On a CPU blocks are small.
    at_once = _HEAD_TOKENS if device_type != "cpu" else max(CACHED_LOGITS // config.vocab_size, 1)
    # The slopes of a cap are one more.
    has_cap = getattr(config, "final_logit_softcapping", None) is not None
    blocks = (3 + has_cap) * min(tokens, at_once)
    # The embedding's gradient, and for a 16-bit dtype the head's, summed in float32.
    copies = config.hidden_size * (1 if size >= _FLOAT else 2) * is_trained
    rows: int = blocks + copies
    return rows * max(size, _FLOAT) * int(config.vocab_size)


def mlp_width(config: Config) -> int:
    """Return the columns of the matrices between a layer's two norms that a token is multiplied with; where layers differ, the most."""
    if _routed_states(config):
        routed: int = config.num_experts_per_tok * config.moe_intermediate_size
        return routed + int(getattr(config, "shared_expert_intermediate_size", 0))
    # Layers of Gemma 4 that read the keys of others have twice the columns.
    is_double = getattr(config, "use_double_wide_mlp", False) and getattr(config, "num_kv_shared_layers", 0)
    width: int = config.intermediate_size
    return 2 * width if is_double else width


Gather: TypeAlias = Literal["once", "by_layer"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How split weights lie, beyond how many ranks there are.

    Attributes:
        gather: They are gathered `once` an optimizer step, or `by_layer`, around each layer's own passes.
        offload: They lie in the machine's memory, with their optimizer, and not on a GPU.
    """

    gather: Gather = "once"
    offload: bool = False


GATHERED_ONCE = Layout()

ROW = ("activations", "logits")
"""The parts of a plan that the largest row takes; the others are there whatever the row."""

RESIDENT = ("weights", "adapter", "optimizer", "reference model")
"""The parts that stay on the GPU while servers on the same GPU write."""

_LAYERS_AT_ONCE = 3
"""Layers that are whole at a time when gathered one by one: the one that computes, the next one, the buffer it comes in."""
_GRADIENTS_AT_ONCE = 2
"""Layers whose gradients are whole then: of the last backward pass, and of the one that is being summed."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of parameters.

    Attributes:
        base: Of the whole model, a tied one counted once, without an adapter.
        adapter: Of an adapter beside it; 0: the model itself is trained, or nothing is.
        layer: Of the largest layer.
        outside: Of what is in no layer: embeddings, last norm, head.
        head: Of the head, which is as large as the embedding of tokens. (Gemma 4 has a larger table of embeddings for its layers.)
        is_tied: The head is the embedding.
    """

    base: int
    adapter: int
    layer: int
    outside: int
    head: int
    is_tied: bool

    @classmethod
    def of(cls, shapes: Mapping[str, Iterable[int]], adapter: int = 0) -> "ModelSize":
        """Return the sizes of a model whose parameters have these shapes, by name."""
        layers: dict[str, int] = {}
        outside = []
        for name, shape in shapes.items():
            layer = _LAYER.search(name)
            if layer is None:
                outside.append(prod(shape))
            else:
                layers[layer[1]] = layers.get(layer[1], 0) + prod(shape)
        return cls(
            base=sum(outside) + sum(layers.values()),
            adapter=adapter,
            layer=max(layers.values(), default=0),
            outside=sum(outside),
            head=prod(shapes.get(_HEAD, shapes.get(_EMBEDDING, (0,)))),
            is_tied=_HEAD not in shapes,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """The computation to plan, and its device.

    Attributes:
        config: The model's configuration; None: no row is counted.
        size: The model's numbers of parameters.
        number_bytes: Of a number that the model computes with: 4 or 2.
        row_tokens: Unique tokens of the largest row (`config.sizes.largest_row`); 0: nothing is trained.
        processes: One a GPU.
        copies: Copies of the weights, each split over processes / copies.
        has_reference: A frozen copy of the model lies beside it. (A new adapter's base is its own reference.)
        sequence_bytes: Keys and values of one of the engine's longest sequences.
        beside: Bytes that others take on the same GPU all the time, by what they are for: an engine, its keys and values.
        device: "cuda" or "cpu".
    """

    config: Config | None
    size: ModelSize
    number_bytes: int
    row_tokens: int
    processes: int = 1
    copies: int = 1
    has_reference: bool = False
    sequence_bytes: int = 0
    beside: Mapping[str, int] = field(default_factory=dict)
    device: str = "cuda"

    @property
    def trains(self) -> bool:
        """Return True if there are gradients."""
        return self.row_tokens > 0

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return (self.size.adapter or self.size.base) if self.trains else 0

    @property
    def is_split(self) -> bool:
        """Return True if trained weights are kept in float32 apart from the ones that compute."""
        return self.trains and (self.processes > 1 or (self.number_bytes < _FLOAT and not self.size.adapter))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One way to do a job, and the memory it takes at the peak of an update.

    Attributes:
        layout: How split weights lie.
        recompute: Layers of a row are computed again in the backward pass.
        parts: Bytes on each GPU by what they are for, the row first.
        host: Bytes in the machine's memory for each process, because of `layout.offload`.
    """

    layout: Layout
    recompute: bool
    parts: Mapping[str, int]
    host: int

    @property
    def total(self) -> int:
        """Bytes on each GPU."""
        return sum(self.parts.values())

    @property
    def row(self) -> int:
        """Bytes of the largest row."""
        return sum(self.parts.get(name, 0) for name in ROW)

    @property
    def resident(self) -> int:
        """Bytes that stay on each GPU while servers there write."""
        return sum(self.parts.get(name, 0) for name in RESIDENT)


def choose(job: Job, room: int) -> MemoryPlan:
    """Return the fastest plan whose row leaves some of `room` free (`SHARES`); else the smallest, even if it does not fit.

    In the order of what they cost: computing layers again (a forward pass more), gathering by layer (all weights cross the
    network for each row), the state in the machine's memory (it crosses the bus, and the optimizer runs on the CPU). On a CPU
    weights are gathered once.

    Args:
        job: The computation.
        room: Bytes that tensors may take on each GPU.
    """
    has_layouts = job.is_split and job.device == "cuda"
    layouts = (GATHERED_ONCE, Layout("by_layer")) if has_layouts else (GATHERED_ONCE,)
    plans = [plan_of(job, layout, recompute=again) for layout in layouts for again in (False, True)]
    for plan in plans:
        if plan.row <= SHARES[job.device] * (room - plan.total + plan.row):
            return plan
    smallest = min(plans, key=lambda plan: plan.total)
    if smallest.total <= room or not has_layouts:
        return smallest
    return plan_of(job, Layout("by_layer", offload=True), recompute=True)


def plan_of(job: Job, layout: Layout = GATHERED_ONCE, *, recompute: bool = False) -> MemoryPlan:
    """Return the plan that does a job in this way."""
    state = _state(job)
    parts = {
        **_row(job, recompute),
        **({} if layout.offload else state),
        **(gathered_bytes(job.size, job.number_bytes, layout.gather) if job.is_split else {}),
        **job.beside,
    }
    host = sum(state.values()) if layout.offload else 0
    return MemoryPlan(layout, recompute, {name: size for name, size in parts.items() if size}, host)


def _row(job: Job, recompute: bool) -> dict[str, int]:
    """Count the largest row between its forward and backward pass."""
    if not job.trains or job.config is None:
        return {}
    has_adapter = job.size.adapter > 0
    row = row_bytes(job.config, job.row_tokens, job.number_bytes, job.device, adapter=has_adapter)
    return {"activations": row.recomputed if recompute else row.layers, "logits": row.head}


def _state(job: Job) -> dict[str, int]:
    """Count what a process keeps from step to step, and its part of the gradients."""
    # A dry run on one process may be of a recipe for several.
    parts = max(1, job.processes // job.copies)
    base, trained = (-(-count // parts) for count in (job.size.base, job.trained))
    is_whole = job.trains and not job.size.adapter
    return {
        "weights": base * (_FLOAT if is_whole else job.number_bytes),
        "adapter": _FLOAT * -(-job.size.adapter // parts),
        "gradients": _FLOAT * trained,
        "optimizer": 2 * _FLOAT * trained,
        "reference model": base * job.number_bytes * job.has_reference,
    }


def gathered_bytes(size: ModelSize, number_bytes: int, gather: Gather) -> dict[str, int]:
    """Return the bytes of split weights that are whole while they compute, and of gradients that are whole until they are summed."""
    trained = 0 if size.adapter else 1
    if gather == "once":
        weights = size.base + size.adapter
        # The head's gradient has a tensor of its own; a tied embedding has one besides.
        gradients = (size.adapter or size.base) + trained * size.is_tied * size.head
    else:
        weights = size.outside + _LAYERS_AT_ONCE * size.layer + size.adapter
        # The row counts that of the embedding; that of a tied head is another tensor.
        tables = size.outside if size.is_tied else size.outside - size.head
        gradients = trained * (tables + _GRADIENTS_AT_ONCE * size.layer) + size.adapter
    return {
        "gathered weights": number_bytes * weights,
        "gradients before they are summed": _FLOAT * gradients,
    }
