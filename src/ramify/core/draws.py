"""Counter-based random draws: every random number is a hash of its purpose.

A stream is named by (run seed, step, batch slot, attempt, problem id, node path, ...); the n-th number of a
stream depends only on the name and on n. So nothing depends on the order of events, and a step that is
repeated draws the same numbers.
"""

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

StreamPart: TypeAlias = int | str | tuple[int, ...]

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_64_BITS = (1 << 64) - 1
_TO_UNIT = 2.0**-53


def stream(*parts: StreamPart) -> int:
    """Name a stream: a 63-bit seed that is a hash of `parts` (their types and order count)."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def uniforms(seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return the number `indices[i]` of stream `seeds[i]`, each in [0, 1). Shapes [B], [B] -> [B] (SplitMix64)."""
    with np.errstate(over="ignore"):
        z = seeds + (indices + np.uint64(1)) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
        z = z ^ (z >> np.uint64(31))
    unit: npt.NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * _TO_UNIT
    return unit


def uniform(seed: int, index: int = 0) -> float:
    """Return the number `index` of stream `seed`, in [0, 1)."""
    z = (seed + (index + 1) * _GOLDEN) & _64_BITS
    z = ((z ^ (z >> 30)) * _MIX_1) & _64_BITS
    z = ((z ^ (z >> 27)) * _MIX_2) & _64_BITS
    return float((z ^ (z >> 31)) >> 11) * _TO_UNIT


def permutation(seed: int, size: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0..size-1 drawn from stream `seed`."""
    keys = uniforms(np.full(size, seed, np.uint64), np.arange(size, dtype=np.uint64))
    return np.argsort(keys, kind="stable")
