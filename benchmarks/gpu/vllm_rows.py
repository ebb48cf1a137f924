"""A real vLLM that sleeps while the learner computes on its card, where a Python with vLLM is there."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.engine_rows import Load, prompts
from benchmarks.gpu.figures import Figure, not_measured
from benchmarks.gpu.models import SERVED, ModelSizes, learner_in, random_model
from benchmarks.gpu.update_rows import TREES, TreeRow
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.update.ours import make_batch
from benchmarks.update.trees import reasoning_tree
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.protocols import Engine, Publisher
from ramify.core.records import Request
from ramify.engines.configs import VllmEngineConfig
from ramify.learner.update import Learner
from ramify.modeling.load import save_model
from ramify.sampler.memory_phases import MemoryPhases
from ramify.sampler.publisher import FolderPublisher

PYTHON = "RAMIFY_VLLM_PYTHON"
_CONTEXT = 1024
_LOAD = Load(sequences=64, prompt=512, written=128)
_SHARE = "0.5"
_START_SECONDS = 80.0
_MOST_SECONDS = 20.0
"""Of one hand-over at 0.5B: sleep, weights, wake."""
_GIB = 2**30
_PROVES = (
    "a real vLLM sleeps, wakes and takes new weights on the learner's card, and writes what the learner would"
)


def sleep_and_wake() -> Iterator[Figure]:
    """At 0.5B in bfloat16, with CUDA graphs off in the server, which takes half of the card."""
    python = Path(os.environ.get(PYTHON, sys.executable))
    if (missing := no_vllm(python)) is not None:
        yield not_measured("vllm.turn", missing, _PROVES)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = random_model(SERVED, "cuda")
        write_tiny_tokenizer(folder / "model", 0)
        save_model(model, folder / "model")
        learner = learner_in(model, torch.bfloat16)
        engine = served_engine(folder, python)
        weights = engine.info().weights_folder
        assert weights is not None
        probe = prompts(SERVED, _LOAD, seed=9)[0][:64]
        publisher = FolderPublisher(engine, weights, "bfloat16", learner, probe)
        yield from turns(engine, publisher, learner, SERVED, TREES[0], _LOAD)


def no_vllm(python: Path) -> str | None:
    """Why this Python has no vLLM; None: it has one."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        absent = subprocess.run([python, "-c", code], check=False).returncode
    except OSError as error:
        return f"{python.name}: {error.strerror}; name the Python of an environment with vLLM in {PYTHON}"
    return f"no vLLM in this Python; name one that has it in {PYTHON}" if absent else None


def served_engine(folder: Path, python: Path) -> Engine:
    """The engine of the model in `folder`, whose server starts at the first turn."""
    section = VllmEngineConfig(
        name="vllm",
        launch=True,
        sleep=True,
        python=python,
        flags=("--enforce-eager", "--gpu-memory-utilization", _SHARE),
        start_seconds=_START_SECONDS,
    )
    tokenizer = ChatTokenizer(folder / "model")
    return build_vllm(section, tokenizer, _CONTEXT, folder / "run", print, hands_over=True)


def turns(
    engine: Engine, publisher: Publisher, learner: Learner, sizes: ModelSizes, tree: TreeRow, load: Load
) -> Iterator[Figure]:
    """Start, sleep, and two steps: weights, tokens, sleep, update."""
    batch = make_batch(learner, [reasoning_tree(tree.seed, tree.trajectories, tree.shorter)])
    rows = batch.rows(tree.token_budget)
    seconds: dict[str, list[float]] = {"start": [], "wake": [], "write": [], "sleep": []}
    losses, differences = [], []

    async def steps() -> None:
        phases = MemoryPhases(engine, learner.ranks)
        try:
            await _timed(seconds["start"], phases.begin())
            for version in range(2):
                await _timed(seconds["wake"], publisher.publish(version))
                requests = [
                    Request(ids, n, load.written) for n, ids in enumerate(prompts(sizes, load, version))
                ]
                started = time.perf_counter()
                done = await asyncio.gather(*(engine.generate(request) for request in requests))
                seconds["write"].append(time.perf_counter() - started)
                await _timed(seconds["sleep"], phases.to_learner())
                whole = (*requests[0].token_ids, *done[0].token_ids)
                ours = learner.score(whole)[-len(done[0].token_ids) :]
                differences.append(float(np.abs(ours - np.asarray(done[0].logprobs)).mean()))
                losses.append(learner.update_rows(rows, batch.denominator).loss)
        finally:
            await engine.close()

    asyncio.run(steps())
    turn = seconds["wake"][-1] + seconds["sleep"][-1]
    yield Figure(
        "vllm.turn",
        "seconds of one turn without its tokens: weights written, server awake, loaded, compared, asleep",
        turn,
        f"at most {_MOST_SECONDS}",
        turn <= _MOST_SECONDS,
        {"seconds": seconds, "losses": losses, "reserved_gib": _reserved() / _GIB},
        proves=_PROVES,
    )
    yield Figure(
        "vllm.mismatch",
        "nats a token between vLLM and the learner, mean, after the second hand-over",
        differences[-1],
        settings={"by_version": differences, "written": load.written},
        proves="vLLM's GPU path (its second model runner) gives the logprobs of the distribution that it sampled from",
    )


async def _timed(into: list[float], work: object) -> None:
    started = time.perf_counter()
    await work  # type: ignore[misc]
    into.append(time.perf_counter() - started)


def _reserved() -> int:
    return torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
