"""Row 3.client: what a request to a vLLM server costs this process, with as many in flight as in a large rollout."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing

import aiohttp

from benchmarks.harness.rows import Row
from ramify.core.records import NO_FILTERS
from ramify.engines.vllm.answers import GenerateRequest
from ramify.engines.vllm.server import VllmServer
from ramify.net.client import HttpClient, HttpSettings

_IN_FLIGHT = 264
_REQUESTS = 1500
_CONTEXT, _WRITTEN = 500, 16
_ROUNDS = 5
_MOST_MS = 1.2

_SERVER = """
import asyncio, sys

async def answer(reader, writer):
    body = sys.argv[1].encode()
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""A server in a process of its own, which answers every request alike after 50 ms."""


def _answer() -> str:
    content = [{"token_id": n, "logprob": -0.123456789 * n, "top_logprobs": []} for n in range(_WRITTEN)]
    choice = {
        "index": 0,
        "token_ids": list(range(_WRITTEN)),
        "finish_reason": "length",
        "weight_versions": [{"version": "1", "start": 0, "end": _WRITTEN}],
        "logprobs": {"content": content},
    }
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": _CONTEXT}, "prompt_logprobs": None})


def _request(number: int) -> GenerateRequest:
    return GenerateRequest(
        tuple(range(_CONTEXT)), _WRITTEN, number, 1.0, NO_FILTERS, ("</python>", "</search>"), (0,)
    )


async def _milliseconds(ask: Callable[[int], Awaitable[object]]) -> float:
    """Return the CPU time of a request, over all threads of this process."""
    numbers = iter(range(_REQUESTS))

    async def one_after_another() -> None:
        for number in numbers:
            await ask(number)

    await asyncio.gather(*(ask(number) for number in range(_IN_FLIGHT)))  # opens the connections
    began = time.process_time()
    await asyncio.gather(*(one_after_another() for _ in range(_IN_FLIGHT)))
    return 1000 * (time.process_time() - began) / _REQUESTS


async def _ours(url: str) -> float:
    settings = HttpSettings(timeout_seconds=60.0, attempts=1, in_flight=_IN_FLIGHT)
    server = VllmServer(HttpClient("engine", settings, many_hosts=True), url, vocab_size=1000)
    try:
        return await _milliseconds(lambda number: server.generate(_request(number)))
    finally:
        await server.close()


async def _bare(url: str) -> float:
    """The library alone: the same body out, the same JSON in."""
    connector = aiohttp.TCPConnector(limit=_IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(number: int) -> object:
            body = {"token_ids": list(range(_CONTEXT)), "sampling_params": {"seed": number}}
            async with session.post(f"{url}/inference/v1/generate", json=body) as answer:
                return await answer.json()

        return await _milliseconds(ask)


def requests_in_flight() -> Sequence[Row]:
    """Row 3.client."""
    ours, bare = [], []
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, _answer()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert server.stdout is not None
    with closing(server.stdout):
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            for _ in range(_ROUNDS):
                ours.append(asyncio.run(_ours(url)))
                bare.append(asyncio.run(_bare(url)))
        finally:
            server.kill()
            server.wait()
    middle, alone = statistics.median(ours), statistics.median(bare)
    return [
        Row(
            "3.client",
            f"ms of CPU a request of {_CONTEXT} tokens for {_WRITTEN}, {_IN_FLIGHT} in flight; the ratio is ours, the peer aiohttp alone",
            middle,
            alone,
            middle,
            f"at most {_MOST_MS:g}",
            middle <= _MOST_MS,
            {"ours": ours, "peer": bare},
            {"requests": _REQUESTS, "rounds": _ROUNDS},
        )
    ]


ROWS = {"3.client": requests_in_flight}
