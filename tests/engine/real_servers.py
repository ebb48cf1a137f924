"""How the tests start and use real vLLM servers."""

import asyncio
from pathlib import Path

from ramify.chat.tokenizer import ChatTokenizer
from ramify.config.build_vllm import build_vllm
from ramify.config.schema_vllm import VllmEngineSection

FLAGS = ("--enforce-eager", "--gpu-memory-utilization", "0.08", "--no-enable-chunked-prefill")
"""On a CPU: no compiler, a small share of its memory, and prompts in one piece (engines/vllm/server.py says why)."""
CONTEXT = 240


def engine_of(folder, *servers, **settings):
    section = {
        "name": "vllm",
        "urls": tuple(s.url for s in servers),
        "dtype": "float32",
        "start_seconds": 240.0,
    }
    hands_over = settings.pop("hands_over", False)
    return build_vllm(
        VllmEngineSection(**{**section, **settings}),
        ChatTokenizer(folder),
        CONTEXT,
        Path("nowhere"),
        print,
        hands_over=hands_over,
    )


def play(engine, work):
    async def run():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())
