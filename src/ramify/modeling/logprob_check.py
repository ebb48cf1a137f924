"""Compares two model folders by the logprobs that they give to fixed tokens, for checks of conversions.

Both models compute in float32, so that only their stored weights differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ramify.modeling.load import load_model, parameter_shapes
from ramify.modeling.weight_files import stored_tensors

_ROW = 256
"""Tokens of a pass, which bounds the memory for logits."""

_STRIDE = 7919
"""A prime: steps of this size visit the whole vocabulary."""

_TOLERANCES = {"F64": 1e-3, "F32": 1e-3, "F16": 0.2, "BF16": 0.5}
"""Largest difference in nats, by the coarsest type that either folder stores."""

_MAX_LISTED = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far two models are apart.

    Attributes:
        tokens: Number of tokens compared.
        largest: Largest difference of a token's logprob, in nats.
        mean: Mean of the differences' sizes.
        tolerance: What `largest` may be.
        kind: The stored type that the tolerance is for.
    """

    tokens: int
    largest: float
    mean: float
    tolerance: float
    kind: str


def differing_shapes(left: Path, right: Path) -> list[str]:
    """List the first parameters that only one model has, or that differ in shape; empty if the models have one form.

    Raises:
        DataError: A folder has no configuration that can be read.
    """
    first, second = (parameter_shapes(folder)[0] for folder in (left, right))
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]

    def shape(shapes: dict[str, tuple[int, ...]], name: str) -> str:
        return str(list(shapes[name])) if name in shapes else "missing"

    return [f"{name} is {shape(first, name)} and {shape(second, name)}" for name in names[:_MAX_LISTED]]


def compare_logprobs(left: Path, right: Path, tokens: int, advance: Callable[[int], None]) -> Comparison:
    """Load one model after the other, and compare the logprobs of `tokens` fixed tokens; `advance` counts those of both.

    Raises:
        DataError: A folder cannot be loaded.
    """
    first, second = (_logprobs(folder, tokens, advance) for folder in (left, right))
    differences = (first - second).abs()
    kinds = {stored.kind for folder in (left, right) for stored in stored_tensors(folder).values()}
    kind = max(kinds, key=lambda name: _TOLERANCES[name])
    return Comparison(
        len(differences), float(differences.max()), float(differences.mean()), _TOLERANCES[kind], kind
    )


def _logprobs(folder: Path, count: int, advance: Callable[[int], None]) -> torch.Tensor:
    """Return logprobs of `count` tokens, in rows that begin anew."""
    model = load_model(folder).train(False)
    ids = (torch.arange(1, count + 1) * _STRIDE) % model.config.vocab_size
    logprobs = []
    with torch.no_grad():
        for start in range(0, count, _ROW):
            # The first token of a row has no logprob; token 0 stands before it.
            row = torch.cat([torch.zeros(1, dtype=torch.int64), ids[start : start + _ROW]])
            logits = model(input_ids=row[None, :-1], use_cache=False).logits[0].float()
            logprobs.append(torch.log_softmax(logits, -1).gather(-1, row[1:, None])[:, 0])
            advance(len(row) - 1)
    return torch.cat(logprobs)
