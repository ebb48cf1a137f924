"""Passes over a packed row: forward alone, or forward and backward, stage by stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ramify.core.errors import DataError
from ramify.core.records import Ints, PackedRow, SegmentSpan
from ramify.learner.stages import Stage, stages
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.attention import AttentionPlan
from ramify.modeling.head import written_backward, written_logprobs
from ramify.modeling.load import packs_trees

RowLoss: TypeAlias = Callable[[Ints, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""The loss of some written tokens, from their indices in the row, logprobs and entropies. [P] each -> a scalar"""


@dataclass(frozen=True, slots=True)
class PassSettings:
    """How a row is computed.

    Attributes:
        temperature: Temperature of the sampling distribution; logits are divided by it.
        chunk_tokens: Number of tokens whose logits exist at a time.
        with_entropy: Whether entropies are computed.
    """

    temperature: float
    chunk_tokens: int
    with_entropy: bool = True


def forward_row(
    model: PreTrainedModel, row: PackedRow, settings: PassSettings
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logprobs, and entropies on request, of the written tokens of a row, without gradient. Nats, [W] each

    Args:
        model: Loaded by `ramify.modeling`.
        row: One or more trees; a single context if the model's layers do not take an attention plan.
        settings: How the row is computed.

    Raises:
        DataError: A context of the row is longer than the model's.
    """
    with torch.no_grad():
        return _run(model, row, settings, None)


def backward_row(
    model: PreTrainedModel, row: PackedRow, settings: PassSettings, loss: RowLoss
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `forward_row`; also adds the gradient of `loss`, summed over stages, to the gradients of the parameters.

    Raises:
        DataError: A context of the row is longer than the model's.
    """
    return _run(model, row, settings, loss)


def _run(
    model: PreTrainedModel, row: PackedRow, settings: PassSettings, loss: RowLoss | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    _check_length(model, row)
    device, size = model.device, len(row.written)
    logprobs = torch.empty(size, dtype=torch.promote_types(model.dtype, torch.float32), device=device)
    entropies = torch.empty_like(logprobs) if settings.with_entropy else None
    cut = stages(row.segments, row.token_budget) if packs_trees(model) else _one(row.segments)
    alive: dict[int, _Alive] = {}
    for number, stage in enumerate(cut):
        part = _Part.of(row, stage)
        above = [alive[n].plan for n in stage.above]
        plan = _StagePlan(_attention(row, cut, stage, device, model.dtype), above, stage.release > number)
        hidden = _hidden(model, row, part, plan if packs_trees(model) else None)
        alive[number] = _Alive(part, plan, hidden)
        del hidden
        for done in sorted((n for n in alive if cut[n].release == number), reverse=True):
            finished = alive.pop(done)
            some = finished.part.written
            slope = None
            if len(some):
                slope, logprobs[some], found = _head(
                    model, row, finished.part, finished.hidden, settings, loss
                )
                if entropies is not None and found is not None:
                    entropies[some] = found
            if loss is not None:
                finished.plan.backward(slope)
    return logprobs, entropies


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What a stage computes: indices of its `tokens` in the row, and of the `written` tokens that these predict.

    `predictor` is the index of each predicting token among `tokens`.
    """

    tokens: Ints
    written: Ints
    predictor: Ints

    @classmethod
    def of(cls, row: PackedRow, stage: Stage) -> "_Part":
        spans = [row.segments[number] for number in stage.segments]
        tokens = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        place = np.full(len(row.token_ids), -1)
        place[tokens] = np.arange(len(tokens))
        written = np.flatnonzero(place[row.predictor] >= 0)
        return cls(tokens, written, place[row.predictor[written]])


@dataclass(frozen=True, slots=True, eq=False)
class _Alive:
    """A stage between its forward and its backward pass; the head is computed last, as it needs the most memory."""

    part: _Part
    plan: "_StagePlan"
    hidden: torch.Tensor


class _StagePlan:
    """Attention of a stage: over the keys and values of the stages above it, then its own."""

    def __init__(self, attention: AttentionPlan, above: Sequence["_StagePlan"], keep: bool) -> None:
        self._attention, self._above, self._keep = attention, above, keep
        self._computed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._read: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self, layer_index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        # A layer that is recomputed in the backward pass calls this twice.
        if self._keep and layer_index not in self._read:
            self._computed[layer_index] = key, value
            self._read[layer_index] = (
                key.detach().requires_grad_(key.requires_grad),
                value.detach().requires_grad_(value.requires_grad),
            )
        if self._above:
            keys, values = zip(*(plan._read[layer_index] for plan in self._above), strict=True)
            key, value = torch.cat([*keys, key], 2), torch.cat([*values, value], 2)
        return self._attention(layer_index, query, key, value, scaling)

    def backward(self, slope: "_Slope | None") -> None:
        """Backward pass from the states below the head, and from the key and value gradients of the stages below."""
        roots: list[torch.Tensor] = []
        grads: list[torch.Tensor] = []
        if slope is not None and slope.states.requires_grad:
            roots.append(slope.states)
            grads.append(slope.grad)
        for layer_index, read in self._read.items():
            for computed, leaf in zip(self._computed[layer_index], read, strict=True):
                if leaf.grad is not None:
                    roots.append(computed)
                    grads.append(leaf.grad)
        if roots:
            torch.autograd.backward(roots, grads)


@dataclass(frozen=True, slots=True, eq=False)
class _Slope:
    """The states below the head, and the gradient of the loss with respect to them. [P, H] each"""

    states: torch.Tensor
    grad: torch.Tensor


def _hidden(model: PreTrainedModel, row: PackedRow, part: _Part, plan: AttentionPlan | None) -> torch.Tensor:
    """Last hidden states of a stage's tokens. [tokens, H]"""
    decoder: Callable[..., Any] = model.base_model
    output = decoder(
        input_ids=torch.from_numpy(row.token_ids[part.tokens]).to(model.device)[None],
        position_ids=torch.from_numpy(row.positions[part.tokens]).to(model.device)[None],
        use_cache=False,
        **({} if plan is None else {"attention_plan": plan}),
    )
    hidden: torch.Tensor = output.last_hidden_state[0]
    return hidden


def _head(
    model: PreTrainedModel,
    row: PackedRow,
    part: _Part,
    hidden: torch.Tensor,
    settings: PassSettings,
    loss: RowLoss | None,
) -> tuple[_Slope | None, torch.Tensor, torch.Tensor | None]:
    """Logprobs and entropies of the written tokens that a stage predicts; with a loss, also its gradient."""
    # An embedding look-up gathers rows with a fast backward pass, even if one row predicts many tokens.
    states = F.embedding(torch.from_numpy(part.predictor).to(model.device), hidden)
    targets = torch.from_numpy(row.token_ids[row.written[part.written]]).to(model.device)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    weight: torch.Tensor = head.weight
    how = settings.temperature, settings.with_entropy, settings.chunk_tokens
    if loss is None:
        return None, *written_logprobs(states, weight, targets, *how)
    grad, logprobs, entropies = written_backward(
        states, weight, targets, *how, lambda some, *found: loss(part.written[some], *found)
    )
    return _Slope(states, grad), logprobs, entropies


def _attention(
    row: PackedRow, cut: Sequence[Stage], stage: Stage, device: torch.device, dtype: torch.dtype
) -> AttentionPlan:
    above = [row.segments[n] for number in stage.above for n in cut[number].segments]
    context = sum(span.stop - span.start for span in above)
    segments = [SegmentSpan(-1, 0, context)] if context else []
    place: dict[int, int] = {}
    stop = context
    for number in stage.segments:
        span = row.segments[number]
        start, stop = stop, stop + span.stop - span.start
        place[number] = len(segments)
        outside = 0 if context and span.parent >= 0 else -1
        segments.append(SegmentSpan(place.get(span.parent, outside), start, stop))
    if device.type != "cuda":
        return TreeAttention(segments, device, dtype, context)
    # Imported here so that only a GPU run pays for the import of torch's compiler.
    from ramify.learner.flex_attention import FlexTreeAttention

    return FlexTreeAttention(segments, device)


def _one(segments: Sequence[SegmentSpan]) -> tuple[Stage, ...]:
    return (Stage(tuple(range(len(segments))), (), 0),)


def _check_length(model: PreTrainedModel, row: PackedRow) -> None:
    length, limit = int(row.positions.max()) + 1, int(model.config.max_position_embeddings)
    if length > limit:
        raise DataError(
            f"a context of {length} tokens is longer than the model's {limit}: nothing was trained on it; "
            "lower data.max_tokens, or rollout.max_tokens and data.max_prompt_tokens"
        )
