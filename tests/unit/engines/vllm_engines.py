"""vLLM engines on stand-ins of servers (tests/vllm_stand_in.py), requests to them, and weights that they get."""

import asyncio
from dataclasses import replace

import numpy as np
import torch

import build
from loopback import as_json
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.records import Request, version_folder
from ramify.engines.configs import VllmEngineConfig
from ramify.modeling.load import load_model
from ramify.sampler.served_weights import write_weights

GENERATE = "/inference/v1/generate"
IDS = [5, 9, 33, 60, 81, 12, 7, 7, 40, 101, 599, 0, 2, 17]


def engine_of(folder, *servers, notes=None, hands_over=False, run=None, **section):
    """An engine with contexts of 300 tokens; `section` holds more settings, `notes` gets its lines."""
    settings = {"urls": tuple(server.url for server in servers), "dtype": "float32", "start_seconds": 60.0}
    return build_vllm(
        VllmEngineConfig(name="vllm", **{**settings, **section}),
        ChatTokenizer(folder),
        300,
        run or folder.parent / "run",
        [].append if notes is None else notes.append,
        hands_over=hands_over,
    )


def play(engine, work):
    """Return what `work(engine)` returns; the engine is closed then."""

    async def main():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def request_of(folder, text="the capital of France", seed=0, **changes):
    request = Request(ChatTokenizer(folder).encode(text), seed, 24, ("</search>", "</answer>"))
    return replace(request, **changes)


def write_version(folder, engine, version):
    """Write weights of a version for the servers; returns the model that has them."""
    model = load_model(folder)
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    write_weights(build.learner(model), version_folder(engine.info().weights_folder, version), "float32")
    return model


def plain_scores(model, ids):
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].float(), -1)
    return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double().numpy()


def answering(prompt_tokens_less=0, **changes):
    """A generate route that writes token 40, with changes of its choice; it may have read less of the prompt."""

    def fault(request):
        choice = {
            "token_ids": [40],
            "finish_reason": "length",
            "logprobs": {"content": [{"token_id": 40, "logprob": -1.0, "top_logprobs": []}]},
            "weight_versions": [{"version": "default", "start": 0, "end": 1}],
            **changes,
        }
        size = len(request.json()["token_ids"]) - prompt_tokens_less
        return as_json({"choices": [choice], "usage": {"prompt_tokens": size}})

    return fault


async def step(engine, folder, version):
    """Take a step of a run up to its sleep: publish, roll out, compare; returns what was sampled before the sleep."""
    model = write_version(folder, engine, version)
    await engine.load_weights(version)
    completion = await engine.generate(Request((5, 9, 33, 60), 1, 4))
    assert {number for number, _ in completion.version_runs} == {version}
    np.testing.assert_allclose(await engine.score(IDS), plain_scores(model, IDS), atol=1e-4)
    return completion
