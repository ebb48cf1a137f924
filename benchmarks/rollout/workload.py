"""How long turns and tool results are: the reasoning workload of the goals, at a quarter of its length."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PROMPT = (800, 0.35, 500, 1500)
TURN = (250, 0.40, 120, 700)
_SEARCH_RESULT = (450, 0.45, 150, 1000)
_PYTHON_RESULT = (80, 0.9, 10, 600)
QUARTER = 4
_LEAST_RESULT = 20  # both sides wrap a result in up to 17 tokens of their own


@dataclass(frozen=True, slots=True)
class Workload:
    """Token counts. Trajectory i has the turns `turns[i]`; a result follows every turn but the last."""

    prompt: int
    turns: Sequence[Sequence[int]]
    results: Sequence[Sequence[int]]

    @property
    def longest(self) -> int:
        """Tokens of the longest trajectory, prompt included."""
        return self.prompt + max(sum(t) + sum(r) for t, r in zip(self.turns, self.results, strict=True))

    def as_json(self) -> dict[str, Any]:
        """For a peer."""
        return asdict(self)


def reasoning(seed: int, trajectories: int, turns: int) -> Workload:
    """A flat group: every trajectory has `turns` turns, the last of which answers."""
    generator = np.random.default_rng(seed)
    prompt = lengths(generator, PROMPT, 1)[0]
    written = [lengths(generator, TURN, turns) for _ in range(trajectories)]
    return Workload(prompt, written, [results(generator, turns - 1) for _ in range(trajectories)])


def turn_tokens(seed: int) -> int:
    """Tokens of one turn, for trees whose shape is not known beforehand."""
    return lengths(np.random.default_rng(seed), TURN, 1)[0]


def results(generator: np.random.Generator, count: int, shorter: int = QUARTER) -> list[int]:
    """Tokens of `count` tool results, half of them of a search and half of a program, in random order."""
    search = lengths(generator, _SEARCH_RESULT, count, shorter)
    python = lengths(generator, _PYTHON_RESULT, count, shorter)
    is_search = generator.random(count) < 0.5
    return [
        max(_LEAST_RESULT, pair[0] if first else pair[1])
        for *pair, first in zip(search, python, is_search, strict=True)
    ]


def lengths(
    generator: np.random.Generator, kind: tuple[float, float, int, int], count: int, shorter: int = QUARTER
) -> list[int]:
    """Draws of a clipped log-normal (median, sigma, least, most), divided by `shorter`."""
    median, sigma, least, most = kind
    drawn = np.clip(generator.lognormal(np.log(median), sigma, count), least, most)
    return [int(value) for value in drawn // shorter]
