"""Passes over a packed row: forward alone, or forward and backward, stage by stage.

A tree that is larger than the token budget is cut at branch points, depth-first. A segment with more tokens below it
than the budget is a stage by itself. The stages below read its keys and values, whose gradients are accumulated until
the last of these stages is done. So no token is computed twice, and only one path and one stage are in memory at a
time: memory grows with the depth of a tree, not with its size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ramify.core.errors import DataError
from ramify.core.records import Ints, PackedRow, SegmentSpan
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.attention import AttentionPlan
from ramify.modeling.head import written_backward, written_logprobs
from ramify.modeling.load import packs_trees
from ramify.modeling.numerics import compute_device, compute_dtype


@dataclass(frozen=True, slots=True)
class Stage:
    """Segments that are computed together.

    Attributes:
        segments: Indices of the segments in the row, ascending.
        above: Indices of the stages above, of one segment each, from the root down.
        release: Index of the last stage that needs this one, directly or through others; its own index if none does.
    """

    segments: tuple[int, ...]
    above: tuple[int, ...]
    release: int


def stages(segments: Sequence[SegmentSpan], token_budget: int) -> tuple[Stage, ...]:
    """Cut a row into stages of at most `token_budget` tokens; a longer segment is a stage of its own.

    Args:
        segments: Segments of the row, parents before children.
        token_budget: Most tokens of a stage.
    """
    below: list[list[int]] = [[] for _ in segments]
    roots: list[int] = []
    sizes = [segment.stop - segment.start for segment in segments]
    for number in range(len(segments) - 1, -1, -1):
        parent = segments[number].parent
        if parent >= 0:
            sizes[parent] += sizes[number]
        (below[parent] if parent >= 0 else roots).insert(0, number)
    cuts: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    _Cut(below, sizes, token_budget, cuts).children(roots, ())
    release = list(range(len(cuts)))
    for number in range(len(cuts) - 1, -1, -1):
        for above in cuts[number][1]:
            release[above] = max(release[above], release[number])
    return tuple(Stage(own, above, last) for (own, above), last in zip(cuts, release, strict=True))


@dataclass(frozen=True, slots=True)
class _Cut:
    """`below`: children of each segment; `sizes`: tokens of each segment's subtree; `cuts`: stages so far."""

    below: Sequence[Sequence[int]]
    sizes: Sequence[int]
    token_budget: int
    cuts: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def children(self, numbers: Sequence[int], above: tuple[int, ...]) -> None:
        """Add the stages of siblings, with as many whole subtrees per stage as fit."""
        group: list[int] = []
        room = 0
        for number in numbers:
            if self.sizes[number] > self.token_budget:
                trunk = self._add([number], above)
                self.children(self.below[number], (*above, trunk))
                continue
            if not group or self.sizes[number] > room:
                self._flush(group, above)
                group, room = [], self.token_budget
            group.append(number)
            room -= self.sizes[number]
        self._flush(group, above)

    def _flush(self, group: Sequence[int], above: tuple[int, ...]) -> None:
        if group:
            self._add(chain.from_iterable(self._subtree(number) for number in group), above)

    def _add(self, numbers: "Iterator[int] | list[int]", above: tuple[int, ...]) -> int:
        self.cuts.append((tuple(sorted(numbers)), above))
        return len(self.cuts) - 1

    def _subtree(self, number: int) -> Iterator[int]:
        yield number
        for child in self.below[number]:
            yield from self._subtree(child)


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
    """Return logprobs, and entropies on request, of the written tokens of a row, without gradient. Nats, [W] each

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
    model: PreTrainedModel,
    row: PackedRow,
    settings: PassSettings,
    loss: RowLoss,
    head_grad: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `forward_row`; also adds the gradient of `loss`, summed over stages, to the gradients of the parameters.

    That of the head's weight [V, H] is added to `head_grad` (`written_backward`); None: it is frozen.

    Raises:
        DataError: A context of the row is longer than the model's.
    """
    return _run(model, row, settings, (loss, head_grad))


def empty_pass(model: PreTrainedModel) -> None:
    """Forward and backward over one token with a loss of zero: what the other processes' passes wait for."""
    plan = _plan([SegmentSpan(-1, 0, 1)], compute_device(model), compute_dtype(model), 0)
    token = np.zeros(1, dtype=np.int64)
    hidden = _hidden(model, token, token, plan if packs_trees(model) else None)
    if hidden.requires_grad:
        torch.autograd.backward(hidden.sum() * 0)


_Backward: TypeAlias = tuple[RowLoss, torch.Tensor | None]


def _run(
    model: PreTrainedModel, row: PackedRow, settings: PassSettings, backward: _Backward | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    _check_length(model, row)
    device, size, dtype = compute_device(model), len(row.written), compute_dtype(model)
    logprobs = torch.empty(size, dtype=torch.promote_types(dtype, torch.float32), device=device)
    entropies = torch.empty_like(logprobs) if settings.with_entropy else None
    cut = (
        stages(row.segments, row.token_budget)
        if packs_trees(model)
        else (Stage(tuple(range(len(row.segments))), (), 0),)
    )
    alive: dict[int, _Alive] = {}
    for number, stage in enumerate(cut):
        part = _Part.of(row, stage)
        above = [alive[n].plan for n in stage.above]
        plan = _StagePlan(_attention(row, cut, stage, device, dtype), above, stage.release > number)
        tokens = row.token_ids[part.tokens], row.positions[part.tokens]
        hidden = _hidden(model, *tokens, plan if packs_trees(model) else None)
        alive[number] = _Alive(part, plan, hidden)
        del hidden
        for done in sorted((n for n in alive if cut[n].release == number), reverse=True):
            finished = alive.pop(done)
            written = finished.part.written
            grad = None
            if len(written):
                grad, logprobs[written], of_part = _head(
                    model, row, finished.part, finished.hidden, settings, backward
                )
                if entropies is not None and of_part is not None:
                    entropies[written] = of_part
            if backward is not None:
                finished.plan.backward(grad)
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
        index = np.full(len(row.token_ids), -1)
        index[tokens] = np.arange(len(tokens))
        written = np.flatnonzero(index[row.predictor] >= 0)
        return cls(tokens, written, index[row.predictor[written]])


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
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None = None,
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
        return self._attention(layer_index, query, key, value, scaling, window)

    def backward(self, head: "_HeadGradient | None") -> None:
        """Backward pass from the states below the head, and from the key and value gradients of the stages below."""
        roots: list[torch.Tensor] = []
        grads: list[torch.Tensor] = []
        if head is not None and head.states.requires_grad:
            roots.append(head.states)
            grads.append(head.grad)
        for layer_index, read in self._read.items():
            for computed, leaf in zip(self._computed[layer_index], read, strict=True):
                if leaf.grad is not None:
                    roots.append(computed)
                    grads.append(leaf.grad)
        if roots:
            torch.autograd.backward(roots, grads)


@dataclass(frozen=True, slots=True, eq=False)
class _HeadGradient:
    """The states below the head, and the gradient of the loss with respect to them. [P, H] each"""

    states: torch.Tensor
    grad: torch.Tensor


def _hidden(
    model: PreTrainedModel, token_ids: Ints, positions: Ints, plan: AttentionPlan | None
) -> torch.Tensor:
    """Last hidden states. [T] each -> [T, H]"""
    # A sharded model has a way in of its own, which gathers its weights (`learner.sharding`).
    decoder: Callable[..., Any] = getattr(model, "base_forward", model.base_model)
    output = decoder(
        input_ids=torch.from_numpy(token_ids).to(compute_device(model))[None],
        position_ids=torch.from_numpy(positions).to(compute_device(model))[None],
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
    backward: _Backward | None,
) -> tuple[_HeadGradient | None, torch.Tensor, torch.Tensor | None]:
    """Return the logprobs and entropies of the written tokens that a stage predicts; with a loss, also its gradient."""
    # An embedding look-up gathers rows with a fast backward pass, even if one row predicts many tokens.
    states = F.embedding(torch.from_numpy(part.predictor).to(compute_device(model)), hidden)
    targets = torch.from_numpy(row.token_ids[row.written[part.written]]).to(compute_device(model))
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    weight: torch.Tensor = head.weight
    how = settings.temperature, settings.with_entropy, settings.chunk_tokens
    cap: float | None = getattr(model.config, "final_logit_softcapping", None)
    if backward is None:
        return None, *written_logprobs(states, weight, targets, *how, cap=cap)
    loss, head_grad = backward
    grad, logprobs, entropies = written_backward(
        states,
        weight,
        targets,
        *how,
        lambda chunk, *values: loss(part.written[chunk], *values),
        head_grad,
        cap=cap,
    )
    return _HeadGradient(states, grad), logprobs, entropies


def _attention(
    row: PackedRow, cut: Sequence[Stage], stage: Stage, device: torch.device, dtype: torch.dtype
) -> AttentionPlan:
    above = [row.segments[n] for number in stage.above for n in cut[number].segments]
    context = sum(span.stop - span.start for span in above)
    segments = [SegmentSpan(-1, 0, context)] if context else []
    index: dict[int, int] = {}
    stop = context
    for number in stage.segments:
        span = row.segments[number]
        start, stop = stop, stop + span.stop - span.start
        index[number] = len(segments)
        outside = 0 if context and span.parent >= 0 else -1
        segments.append(SegmentSpan(index.get(span.parent, outside), start, stop))
    return _plan(segments, device, dtype, context)


def _plan(
    segments: Sequence[SegmentSpan], device: torch.device, dtype: torch.dtype, context: int
) -> AttentionPlan:
    if device.type != "cuda":
        return TreeAttention(segments, device, dtype, context)
    # Imported here so that only a GPU run pays for the import of torch's compiler.
    from ramify.learner.flex_attention import FlexTreeAttention

    return FlexTreeAttention(segments, device)


def _check_length(model: PreTrainedModel, row: PackedRow) -> None:
    length, limit = int(row.positions.max()) + 1, int(model.config.max_position_embeddings)
    if length > limit:
        raise DataError(
            f"a context of {length} tokens is longer than the model's {limit}, and was not trained on. "
            "Lower data.max_tokens, or rollout.max_tokens and data.max_prompt_tokens"
        )
