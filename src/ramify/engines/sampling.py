"""Choosing the next token of each row from counter-based draws."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.draws import uniforms

_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens, their logprobs (nats), and entropies (nats) of the rows that asked. [B], [B], {row: H}"""

    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    entropies: dict[int, float]


class Sampler(Protocol):
    """Chooses a token for each row; see `sample`, which does it by chance."""

    def __call__(
        self,
        logits: torch.Tensor,
        temperatures: npt.NDArray[np.float64],
        seeds: npt.NDArray[np.uint64],
        positions: npt.NDArray[np.uint64],
        entropy_rows: list[int],
    ) -> Sampled:
        """One token for each row of the logits."""
        ...


def sample(
    logits: torch.Tensor,
    temperatures: npt.NDArray[np.float64],
    seeds: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.uint64],
    entropy_rows: list[int],
) -> Sampled:
    """Draw one token a row by inverting the distribution function at the draw of (seed, position).

    Args:
        logits: [B, V]; rounded to float32 before anything else.
        temperatures: Per row; 0 takes the most likely token, with logprob and entropy at temperature 1. [B]
        seeds: Streams. [B]
        positions: Position of the new token in its context: its number in the stream. [B]
        entropy_rows: Rows whose full-vocabulary entropy at the sampling temperature is wanted.
    """
    scale = torch.from_numpy(np.where(temperatures > 0, temperatures, 1.0)).to(logits.device, torch.float32)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    draws = torch.from_numpy(uniforms(seeds, positions)).to(logits.device)
    tokens = torch.cat(
        [
            _invert(logprobs[start : start + _ROWS_AT_ONCE], draws[start : start + _ROWS_AT_ONCE])
            for start in range(0, len(logprobs), _ROWS_AT_ONCE)
        ]
    )
    greedy = torch.from_numpy(temperatures == 0).to(logits.device)
    if bool(greedy.any()):
        tokens = torch.where(greedy, logprobs.argmax(dim=-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    entropies: dict[int, float] = {}
    if entropy_rows:
        wanted = logprobs[torch.tensor(entropy_rows, device=logits.device)]
        # An impossible token has probability 0 and log-probability -inf; it adds nothing.
        terms = torch.where(wanted.isneginf(), 0.0, wanted.exp() * wanted)
        entropies = dict(zip(entropy_rows, (-terms.sum(dim=-1)).tolist(), strict=True))
    return Sampled(tokens.cpu().numpy(), chosen.double().cpu().numpy(), entropies)


def _invert(logprobs: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    # Scaling by the last value keeps a draw next to 1 inside the vocabulary in spite of rounding.
    targets = (draws * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_(max=logprobs.shape[1] - 1)
