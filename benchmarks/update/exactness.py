"""Row 14: the gradient of the packed update against plain sums over trajectories, for every algorithm there is.

The plain sums are those of `tests/reference`; the tests there run a sample of what is run here in full.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness.rows import Row

_TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "reference")]

_BOUNDS = {"float32": 1e-5, "float64": 1e-12}
_EVERYTHING = {"float32": ("whole",), "float64": ("whole", "split")}
"""Layouts of rows in which every combination is run, on the trees of seed 0."""
_LAYOUTS = ("split", "permuted", "one path a row")
_SAMPLED, _SAMPLE_SEEDS = 200, (1, 2)
"""Combinations that are run in all layouts of rows, on the trees of each of these seeds."""
_OVER_RANKS = 100
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class _Task:
    """Some combinations, by their numbers, on one set of trees."""

    folder: Path
    dtype: str
    seed: int
    layouts: Sequence[str]
    numbers: Sequence[int]


def exactness() -> Sequence[Row]:
    """Row 14."""
    from exactness_cases import all_cases
    from exactness_world import write_model

    count = len(all_cases())
    errors: dict[str, dict[str, float]] = {dtype: {} for dtype in _BOUNDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        write_model(folder)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            for dtype, worst in pool.map(_worst, _tasks(folder, count)):
                for layout, error in worst.items():
                    errors[dtype][layout] = max(error, errors[dtype].get(layout, 0.0))
        for dtype in _BOUNDS:
            errors[dtype]["two ranks"] = _over_two_ranks(folder, dtype, Path(name))
    largest = {dtype: max(by_layout.values()) for dtype, by_layout in errors.items()}
    return [
        Row(
            "14",
            "largest relative difference of value, clip fraction and gradient from plain sums over trajectories",
            ours=largest["float32"],
            peer=None,
            ratio=largest["float32"],
            target="at most 1e-5 in float32 and 1e-12 in float64",
            met=all(largest[dtype] <= bound for dtype, bound in _BOUNDS.items()),
            settings={
                "float64": largest["float64"],
                "by_layout": errors,
                "combinations": count,
                "in_every_layout": _SAMPLED * len(_SAMPLE_SEEDS),
                "over_two_ranks": _OVER_RANKS,
                "ratios": "up to e, none within 1e-4 of a clip edge (whole trajectories: 1e-5)",
                "model": "Qwen2 shape, 2 layers x 16, vocabulary 30",
            },
        )
    ]


def _tasks(folder: Path, count: int) -> Iterator[_Task]:
    import random

    for dtype, layouts in _EVERYTHING.items():
        for start in range(0, count, _CHUNK):
            yield _Task(folder, dtype, 0, layouts, range(start, min(start + _CHUNK, count)))
        for seed in _SAMPLE_SEEDS:
            numbers = random.Random(seed).sample(range(count), _SAMPLED)
            yield _Task(folder, dtype, seed, _LAYOUTS, numbers)


def _worst(task: _Task) -> tuple[str, Mapping[str, float]]:
    """The largest error in each layout."""
    import torch
    from exactness_cases import PackedUpdate, Plain, all_cases
    from exactness_world import World

    torch.set_num_threads(1)
    world = World(task.folder, getattr(torch, task.dtype), task.seed)
    plain, packed, cases = Plain(world), PackedUpdate(world), all_cases()
    worst = dict.fromkeys(task.layouts, 0.0)
    for number in task.numbers:
        expected: Any = plain(cases[number])
        for layout in task.layouts:
            worst[layout] = max(worst[layout], expected.error(packed(cases[number], layout)))
    return task.dtype, worst


def _over_two_ranks(folder: Path, dtype: str, scratch: Path) -> float:
    import torch
    from exactness_cases import all_cases
    from exactness_ranks import sample, worst_over_two_ranks

    empty = scratch / dtype
    empty.mkdir()
    cases = sample(all_cases(), _OVER_RANKS, seed=3)
    return float(worst_over_two_ranks(folder, getattr(torch, dtype), cases, empty))


ROWS = {"14": exactness}
