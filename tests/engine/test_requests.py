"""Single requests to a real server: ids, logprobs, entropies, stops, seeds, refusals."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from real_servers import CONTEXT, engine_of, play

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.records import Finish, Request
from ramify.modeling.load import load_model

pytestmark = pytest.mark.timeout(600)


def ask(taught, text="what is the capital of", **changes):
    ids = ChatTokenizer(taught).encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    return replace(Request(ids, 2**63 - 5, 40, ("</search>", "</python>"), entropy_first_k=6), **changes)


def test_logprobs_and_brackets_are_those_of_the_model(taught, server):
    requests = [
        ask(taught, seed=seed, temperature=temperature) for seed in range(8) for temperature in (1.0, 0.7)
    ]
    done = play(engine_of(taught, server), lambda e: asyncio.gather(*map(e.generate, requests)))
    model = load_model(taught)
    open_brackets = 0
    for request, completion in zip(requests, done, strict=True):
        ids = torch.tensor([[*request.token_ids, *completion.token_ids]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].double() / request.temperature, -1)
        rows = logprobs[len(request.token_ids) - 1 : -1]
        plain = rows.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, plain.numpy(), atol=1e-4)
        for entropy, row in zip(completion.entropies, rows, strict=False):
            exact = -float((row.exp() * row).sum())
            assert entropy.lower - 1e-4 <= exact <= entropy.upper + 1e-4
            open_brackets += entropy.upper > entropy.lower
    assert open_brackets


def test_the_server_reads_the_ids_that_it_is_sent(taught, server):
    """Ids that no text would encode to: the server must not go by way of text."""
    ids = list(range(3, 120))[::-1]
    body = {
        "model": taught.name,
        "token_ids": ids,
        "return_token_ids": True,
        "sampling_params": {"max_tokens": 1},
    }
    play(engine_of(taught, server), lambda e: e.score(ids[:9]))
    answer = server.ask("POST", "/inference/v1/generate", json=body)
    assert answer.json()["prompt_token_ids"] == ids


def test_scores_are_at_temperature_one(taught, server):
    ids = list(range(20, 90))
    scored = play(engine_of(taught, server), lambda e: e.score(ids))
    with torch.no_grad():
        logprobs = torch.log_softmax(load_model(taught)(torch.tensor([ids])).logits[0, :-1].double(), -1)
    np.testing.assert_allclose(
        scored, logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy(), atol=1e-4
    )


def test_the_same_request_gets_the_same_answer_in_a_crowd(taught, server):
    request = ask(taught)

    async def work(engine):
        alone = await engine.generate(request)
        crowd = await asyncio.gather(
            *(engine.generate(ask(taught, seed=i)) for i in range(30)), engine.generate(request)
        )
        return alone, crowd

    alone, crowd = play(engine_of(taught, server), work)
    assert crowd[-1].token_ids == alone.token_ids
    assert len({completion.token_ids for completion in crowd}) > 5


def test_parts_of_a_turn_draw_different_numbers(taught, server):
    """vLLM counts the draws of a request from its start; with one seed, each part would repeat the first one's."""
    tokenizer = ChatTokenizer(taught)
    flat = ask(taught, max_new_tokens=8, temperature=2.0, stops=(), entropy_first_k=4)

    async def work(engine):
        return await asyncio.gather(*(engine.generate(replace(flat, seed=seed)) for seed in range(40)))

    done = [c for c in play(engine_of(taught, server), work) if len(c.token_ids) == 8]
    equal = sum(c.token_ids[i] == c.token_ids[i + 4] for c in done for i in range(4))
    assert len(done) > 30
    assert equal < len(done) * 4 * 0.1
    assert tokenizer.eos_id not in {t for c in done for t in c.token_ids[:-1]}


def test_turns_end_at_stop_strings_and_end_tokens(taught, server):
    tokenizer = ChatTokenizer(taught)
    requests = [ask(taught, seed=seed, max_new_tokens=120) for seed in range(40)]
    done = play(engine_of(taught, server), lambda e: asyncio.gather(*map(e.generate, requests)))
    finishes = {completion.finish for completion in done}
    assert {Finish.STOP, Finish.EOS} <= finishes | {Finish.EOS}
    for completion in done:
        text = tokenizer.decode(completion.token_ids)
        if completion.finish is Finish.STOP:
            assert sum(text.count(stop) for stop in ("</search>", "</python>")) == 1
            assert "</" in tokenizer.decode(completion.token_ids[-9:])
        elif completion.finish is Finish.EOS:
            assert completion.token_ids[-1] in tokenizer.eos_ids


def test_a_prompt_that_is_too_long_is_refused_here_and_there(taught, server):
    with pytest.raises(EngineError, match=f"does not fit the engine's context of {CONTEXT}"):
        play(engine_of(taught, server), lambda e: e.generate(ask(taught, token_ids=(5,) * CONTEXT)))

    async def work(engine):
        await engine.score(range(20, 30))
        await engine._part(ask(taught, token_ids=(5,) * 300), (), 1, False)

    with pytest.raises(EngineError, match="refuses a request of 300 tokens"):
        play(engine_of(taught, server), work)


def test_a_cancelled_request_frees_the_server(taught, server):
    long = ask(taught, max_new_tokens=180, stops=(), temperature=2.0)

    async def work(engine):
        await engine.generate(ask(taught))
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await asyncio.gather(*(engine.generate(replace(long, seed=i)) for i in range(20)))
        async with asyncio.timeout(60):
            while running() != [0.0]:
                await asyncio.sleep(0.1)

    def running():
        lines = server.ask("GET", "/metrics").text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")]

    play(engine_of(taught, server), work)
