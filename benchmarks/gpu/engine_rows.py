"""The local engine: tokens a second, and how far its logprobs are from the learner's."""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import SMALL, ModelSizes, learner_in, random_model, served
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from ramify.algos.sft import counted_once
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Problem
from ramify.core.records import Completion, Request
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id
from ramify.engines.local import LocalEngine
from ramify.learner.pack import pack
from ramify.learner.update import Learner

_FINAL_NORM = 6.0
"""At random weights every token is about equally likely, and so is every rounding; this makes distributions sharper."""
_AIM_KL = 0.0015
_TYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Load:
    """`sequences` at a time, of `prompt` tokens each, which write `written` more."""

    sequences: int
    prompt: int
    written: int


DECODING = Load(sequences=64, prompt=512, written=256)
COMPARED = Load(sequences=16, prompt=512, written=256)


def engine_speed() -> Iterator[Figure]:
    """Tokens a second at 0.5B in bfloat16."""
    yield from speed(served(random_model(SMALL, "cuda"), torch.bfloat16), SMALL, DECODING)


def mismatch_by_type() -> Iterator[Figure]:
    """The mismatch at 0.5B, in three types."""
    for dtype in _TYPES:
        yield mismatch(random_model(SMALL, "cuda", _FINAL_NORM), SMALL, COMPARED, dtype)


def speed(model: PreTrainedModel, sizes: ModelSizes, load: Load) -> Iterator[Figure]:
    """Prefill alone, and whole requests; each after a run of the same size, in which graphs are captured."""
    engine = _engine(model, load)
    settings = {"model": f"random, {sizes.name}'s sizes, {model.dtype}", "load": _in_words(load)}
    seconds: dict[str, float] = {}
    tokens: dict[str, int] = {}
    with asyncio.Runner() as runner:
        for number, (what, written) in enumerate([("prefill", 1), ("whole", load.written)] * 2):
            batch = prompts(sizes, load, seed=number)
            started = time.perf_counter()
            done = runner.run(_write(engine, batch, written))
            # The last tokens were read from the device.
            seconds[what] = time.perf_counter() - started
            tokens[what] = sum(len(completion.token_ids) for completion in done)
        runner.run(engine.close())
    fed = load.sequences * load.prompt
    yield Figure(
        f"engine.{sizes.name}.prefill",
        "tokens of new context a second",
        fed / seconds["prefill"],
        settings=settings | {"seconds": seconds["prefill"]},
        proves="the local engine reads new context on a GPU, through the flash kernel",
    )
    yield Figure(
        f"engine.{sizes.name}.decode",
        "tokens written a second, without the time of the prefill",
        (tokens["whole"] - tokens["prefill"]) / (seconds["whole"] - seconds["prefill"]),
        settings=settings | {"seconds": seconds["whole"], "with_prefill": tokens["whole"] / seconds["whole"]},
        proves="decode steps run from CUDA graphs while requests come and go",
    )


def mismatch(model: PreTrainedModel, sizes: ModelSizes, load: Load, dtype: torch.dtype) -> Figure:
    """KL(engine || learner), both in `dtype`, the learner on float32 weights; k3 over the tokens that the engine wrote."""
    engine = _engine(served(model, dtype), load)
    prompt = prompts(sizes, load, seed=0)[0]
    with asyncio.Runner() as runner:
        done = runner.run(_write(engine, [prompt] * load.sequences, load.written))
        runner.run(engine.close())
    difference = _differences(learner_in(model, dtype), _tree(prompt, done))
    kl = float((np.exp(difference) - 1 - difference).mean())
    return Figure(
        f"mismatch.{sizes.name}.{str(dtype).removeprefix('torch.')}",
        "KL(engine || learner), nats a token (k3)",
        kl,
        f"at most {_AIM_KL}" if dtype == torch.bfloat16 else "",
        kl <= _AIM_KL if dtype == torch.bfloat16 else None,
        {
            "model": f"random, {sizes.name}'s sizes, final norm {_FINAL_NORM}: no trained model",
            "load": _in_words(load),
            "mean": float(np.abs(difference).mean()),
            "p99": float(np.quantile(np.abs(difference), 0.99)),
            "largest": float(np.abs(difference).max()),
            "mean_logprob": float(np.mean([value for c in done for value in c.logprobs])),
        },
        proves="engine and learner compute the same distribution up to rounding, so that old = behavior holds",
    )


def _engine(model: PreTrainedModel, load: Load) -> LocalEngine:
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_tokenizer(Path(folder), 0)
        tokenizer = ChatTokenizer(Path(folder))
    return LocalEngine(model, tokenizer, num_slots=load.sequences, context_tokens=load.prompt + load.written)


def prompts(sizes: ModelSizes, load: Load, seed: int) -> list[tuple[int, ...]]:
    """Random prompts, one for each sequence."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(100, sizes.vocabulary, (load.sequences, load.prompt))
    return [tuple(row) for row in ids.tolist()]


async def _write(engine: LocalEngine, prompts: Sequence[tuple[int, ...]], written: int) -> list[Completion]:
    requests = [Request(prompt, seed, written) for seed, prompt in enumerate(prompts)]
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


def _tree(prompt: tuple[int, ...], done: Sequence[Completion]) -> Tree:
    root = Node("", (), None, Source.PROMPT, prompt, "")
    leaves = [
        Node(
            node_id((index,)),
            (index,),
            "",
            Source.POLICY,
            completion.token_ids,
            "",
            completion.logprobs,
            stop=StopReason.TOKENS,
        )
        for index, completion in enumerate(done)
    ]
    return make_tree(Problem("mismatch", (), ()), TreeKey(0, 0), [root, *leaves])


def _differences(learner: Learner, tree: Tree) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """ln(learner / engine) of every written token, nats. [W]"""
    (row,) = pack([counted_once(tree)], sum(len(node.token_ids) for node in tree.nodes))
    (logprobs,) = learner.logprobs([row])
    return logprobs - row.behavior_logprobs


def _in_words(load: Load) -> str:
    return f"{load.sequences} sequences, {load.written} tokens written behind {load.prompt}"
