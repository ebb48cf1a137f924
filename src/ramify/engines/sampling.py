"""Choosing the next token of each row from counter-based draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.draws import uniforms
from ramify.core.records import TokenFilters
from ramify.core.tree import Entropy
from ramify.engines.served_logprobs import top_k_bracket

_UNIT = 2.0**52
"""Probability 1, in the integer units that are summed to draw a token."""

_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens, their logprobs (nats), and the entropies (nats) of the rows that asked for them. [B], [B], {row: H}"""

    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    entropies: dict[int, Entropy]


@dataclass(frozen=True, slots=True)
class RowFilters:
    """The filters of a row, and which tokens its context holds; None if nothing is asked of that. [V]"""

    filters: TokenFilters
    in_context: torch.Tensor | None = None


class Sampler(Protocol):
    """Chooses a token for each row; `sample` is the one that draws them at random."""

    def __call__(
        self,
        logits: torch.Tensor,
        temperatures: npt.NDArray[np.float64],
        filters: Sequence[RowFilters | None],
        seeds: npt.NDArray[np.uint64],
        positions: npt.NDArray[np.uint64],
        entropy_rows: list[int],
        entropy_top_k: int | None,
    ) -> SampledTokens:
        """Return one token for each row of the logits."""
        ...


def sample(
    logits: torch.Tensor,
    temperatures: npt.NDArray[np.float64],
    filters: Sequence[RowFilters | None],
    seeds: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.uint64],
    entropy_rows: list[int],
    entropy_top_k: int | None = None,
) -> SampledTokens:
    """Draw one token per row by inverting the distribution function at the draw of (seed, position).

    Args:
        logits: [B, V]; rounded to float32 before anything else.
        temperatures: Temperatures; 0 takes the most likely token, with logprob and entropy at temperature 1. [B]
        filters: Further changes of a row's distribution; None for a row without any. [B]
        seeds: Random streams. [B]
        positions: Position of the new token in its context, which is its index in the stream. [B]
        entropy_rows: Rows whose entropy is wanted, at the sampling temperature and without filters.
        entropy_top_k: Use only this many of the most likely tokens, so that the entropy is a bracket; None: the exact
            entropy over the whole vocabulary.
    """
    scores = logits.float()
    if not (temperatures == 1).all():
        scale = np.where(temperatures > 0, temperatures, 1.0)
        scores = scores / torch.from_numpy(scale).to(logits.device, torch.float32)[:, None]
    probabilities = torch.softmax(scores, dim=-1)
    entropies = _entropies(scores, probabilities, entropy_rows, entropy_top_k) if entropy_rows else {}
    filtered = [row for row, each in enumerate(filters) if each is not None]
    if filtered:
        index = torch.tensor(filtered, device=logits.device)
        changed = [each for each in filters if each is not None]
        penalised = _penalised(logits[index].float(), changed)
        scaled = np.where(temperatures > 0, temperatures, 1.0)[filtered]
        penalised = penalised / torch.from_numpy(scaled).to(logits.device, torch.float32)[:, None]
        scores = scores.index_copy(0, index, penalised)
        probabilities = probabilities.index_copy(0, index, _filtered(penalised, changed))
    draws = torch.from_numpy(uniforms(seeds, positions)).to(logits.device)
    tokens = torch.cat(
        [
            _invert(probabilities[start : start + _ROWS_AT_ONCE], draws[start : start + _ROWS_AT_ONCE])
            for start in range(0, len(probabilities), _ROWS_AT_ONCE)
        ]
    )
    if (temperatures == 0).any():
        greedy = torch.from_numpy(temperatures == 0).to(logits.device)
        tokens = torch.where(greedy, scores.argmax(dim=-1), tokens)
    chosen = probabilities.gather(1, tokens[:, None])[:, 0].double().log()
    return SampledTokens(tokens.cpu().numpy(), chosen.cpu().numpy(), entropies)


def _entropies(
    scores: torch.Tensor, probabilities: torch.Tensor, rows: list[int], top_k: int | None
) -> dict[int, Entropy]:
    if len(rows) < len(scores):
        index = torch.tensor(rows, device=scores.device)
        scores, probabilities = scores[index], probabilities[index]
    size = scores.shape[1]
    if top_k is not None:
        tops = torch.log_softmax(scores, dim=-1).topk(min(top_k, size)).values.tolist()
        return {row: top_k_bracket(top, size) for row, top in zip(rows, tops, strict=True)}
    return {row: Entropy(h, h) for row, h in zip(rows, _exact(scores, probabilities).tolist(), strict=True)}


def _exact(scores: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """H = ln sum exp(s) - sum p s, with the largest score subtracted from all. [B, V], [B, V] -> [B]"""
    top = scores.amax(dim=-1, keepdim=True)
    # A token of probability 0 has score -inf; it adds nothing.
    mean = (probabilities * (scores - top).clamp_(min=torch.finfo(scores.dtype).min)).sum(dim=-1)
    # Rounding can give a token of probability 1 a little more than that.
    return (-probabilities.amax(dim=-1).log() - mean).clamp_(min=0.0)


def _penalised(logits: torch.Tensor, rows: Sequence[RowFilters]) -> torch.Tensor:
    """Return the logits with those of tokens in the context made less likely. [B, V]"""
    penalised = [
        row_logits
        if row.in_context is None
        else torch.where(
            row.in_context,
            torch.where(
                row_logits < 0,
                row_logits * row.filters.repetition_penalty,
                row_logits / row.filters.repetition_penalty,
            ),
            row_logits,
        )
        for row_logits, row in zip(logits, rows, strict=True)
    ]
    return torch.stack(penalised)


def _filtered(scores: torch.Tensor, rows: Sequence[RowFilters]) -> torch.Tensor:
    """Return the probabilities that top_k, top_p and min_p, in this order, leave over, scaled to 1. [B, V]"""
    size, device = scores.shape[1], scores.device
    top_ks = torch.tensor([min(row.filters.top_k or size, size) for row in rows], device=device)
    if (top_ks < size).any():
        least = scores.topk(int(top_ks.max()), dim=-1).values.gather(1, top_ks[:, None] - 1)
        scores = scores.masked_fill(scores < least, float("-inf"))
    probabilities = torch.softmax(scores, dim=-1)
    top_ps = torch.tensor([row.filters.top_p for row in rows], dtype=torch.float64, device=device)
    if (top_ps < 1).any():
        probabilities = _nucleus(probabilities, top_ps)
    min_ps = torch.tensor([row.filters.min_p for row in rows], device=device)
    if (min_ps > 0).any():
        likely = probabilities >= min_ps[:, None] * probabilities.amax(dim=-1, keepdim=True)
        probabilities = probabilities * likely
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return probabilities


def _nucleus(probabilities: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep the smallest sets of most likely tokens with at least `top_ps`, scaled to 1; others get 0. [B, V], [B]"""
    ordered, order = (
        (probabilities.double() * _UNIT).to(torch.int64).sort(dim=-1, descending=True, stable=True)
    )
    before = ordered.cumsum(dim=-1) - ordered
    total = ordered.sum(dim=-1, keepdim=True)
    in_nucleus = torch.zeros_like(ordered, dtype=torch.bool).scatter(
        1, order, before < top_ps[:, None] * total
    )
    nucleus = probabilities * in_nucleus
    return nucleus / nucleus.sum(dim=-1, keepdim=True)


def _invert(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    # Integers give the same sum in any order; for floating-point numbers a GPU does not guarantee that.
    cumulative = (probabilities.double() * _UNIT).to(torch.int64).cumsum(dim=-1)
    total = cumulative[:, -1]
    targets = torch.minimum((draws * total).to(torch.int64), total - 1)
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
