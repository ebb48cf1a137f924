"""Requests to a vLLM engine: ids and logprobs, stops, and servers that die, hang or differ. Stand-ins play the servers."""

import asyncio
import json
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from vllm_engines import GENERATE, IDS, answering, engine_of, play, request_of

from loopback import Reply, as_json
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.records import Finish, Request, TokenFilters
from ramify.modeling.load import load_model
from vllm_stand_in import sent, stand_in

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_servers")]


def test_ids_go_in_and_out_and_logprobs_are_those_of_the_model(folder):
    request = request_of(folder, entropy_first_k=3, temperature=0.7, seed=2**63 - 3)
    with stand_in(folder) as (_, server):
        done, again = play(
            engine_of(folder, server), lambda e: asyncio.gather(e.generate(request), e.generate(request))
        )
    assert done == again
    bodies = sent(server, GENERATE)
    first = [body for body in bodies if body["sampling_params"]["logprobs"]]
    assert [tuple(body["token_ids"]) for body in first] == [request.token_ids] * 2
    assert {body["sampling_params"]["max_tokens"] for body in first} == {3}
    later = [body for body in bodies if body not in first]
    assert {tuple(body["token_ids"]) for body in later} <= {request.token_ids + done.token_ids[:3]}
    assert all(0 <= body["sampling_params"]["seed"] < 2**63 for body in bodies)
    assert len({body["sampling_params"]["seed"] for body in bodies}) == len(bodies) // 2
    ids = torch.tensor([[*request.token_ids, *done.token_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(load_model(folder)(ids).logits[0].float() / 0.7, -1)
    start = len(request.token_ids) - 1
    plain = [float(logprobs[start + i, token]) for i, token in enumerate(done.token_ids)]
    np.testing.assert_allclose(done.logprobs, plain, atol=1e-5)
    exact = [-float((row.exp() * row).sum()) for row in logprobs[start : start + 3]]
    assert all(e.lower - 1e-5 <= h <= e.upper + 1e-5 for e, h in zip(done.entropies, exact, strict=True))
    assert any(e.lower < e.upper for e in done.entropies)
    assert sum(size for _, size in done.version_runs) == len(done.token_ids)


def test_filters_go_with_a_request_and_one_without_any_says_so(folder):
    filters = TokenFilters(0.9, 20, 0.05, 1.1)
    with stand_in(folder) as (_, server):
        play(engine_of(folder, server), lambda e: e.generate(request_of(folder, filters=filters)))
        play(engine_of(folder, server), lambda e: e.generate(request_of(folder)))
    bodies = [body["sampling_params"] for body in sent(server, GENERATE)]
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    sampling = {tuple(body[name] for name in names) for body in bodies}
    assert sampling == {(0.9, 20, 0.05, 1.1), (1.0, 0, 0.0, 1.0)}


def scripted_tokens(here, *tokens):
    """Have the server write these tokens, from the first request on, and end as vLLM does."""
    queue = list(tokens)

    def write(request):
        body = request.json()
        wants = body["sampling_params"]
        written, text, reason = [], b"", "length"
        while queue and len(written) < wants["max_tokens"]:
            written.append(queue.pop(0))
            text += here.tokenizer.token_bytes[written[-1]]
            if written[-1] in wants["stop_token_ids"] or any(s.encode() in text for s in wants["stop"]):
                reason = "stop"
                break
        top = [{"token_id": i, "logprob": -3.0 - i} for i in range(wants["logprobs"])]
        content = [{"token_id": t, "logprob": -1.0, "top_logprobs": top} for t in written]
        choice = {"token_ids": written, "finish_reason": reason, "logprobs": {"content": content}}
        choice["weight_versions"] = [{"version": here.label, "start": 0, "end": len(written)}]
        return as_json({"choices": [choice], "usage": {"prompt_tokens": len(body["token_ids"])}})

    here.faults[GENERATE] = write


def spelt(tokenizer, text):
    """Ids of a text, byte by byte."""
    return tuple(tokenizer.token_bytes.index(bytes([byte])) for byte in text.encode())


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_stop_string_may_begin_in_the_request_before(folder, cut):
    tokenizer = ChatTokenizer(folder)
    stop, after = spelt(tokenizer, "</search>"), spelt(tokenizer, "and more")
    request = request_of(folder)
    with stand_in(folder) as (here, server):
        scripted_tokens(here, *stop[cut:], *after)
        continued = replace(
            request, token_ids=request.token_ids + stop[:cut], stop_context=cut, max_new_tokens=12
        )
        done = play(engine_of(folder, server), lambda e: e.generate(continued))
    assert done.token_ids == stop[cut:]
    assert done.finish is Finish.STOP
    assert done.version_runs == ((0, len(stop) - cut),)


def test_a_stop_string_across_probe_and_rest_ends_the_turn(folder):
    tokenizer = ChatTokenizer(folder)
    stop = spelt(tokenizer, "</answer>")
    with stand_in(folder) as (here, server):
        scripted_tokens(here, *stop, *spelt(tokenizer, "xyz"))
        done = play(engine_of(folder, server), lambda e: e.generate(request_of(folder, entropy_first_k=5)))
    assert (done.token_ids, done.finish, len(done.entropies)) == (stop, Finish.STOP, 5)


def test_the_end_token_ends_a_turn_in_the_probe(folder):
    tokenizer = ChatTokenizer(folder)
    with stand_in(folder) as (here, server):
        scripted_tokens(here, 40, tokenizer.eos_id, 41)
        done = play(engine_of(folder, server), lambda e: e.generate(request_of(folder, entropy_first_k=5)))
    assert (done.token_ids, done.finish) == ((40, tokenizer.eos_id), Finish.EOS)


def test_a_turn_that_the_server_ends_too_early_goes_on(folder):
    """vLLM may make a text that holds a stop string of the prompt, of a request that begins inside a character."""
    with stand_in(folder) as (here, server):
        top = [{"token_id": i, "logprob": -3.0 - i} for i in range(21)]
        content = [{"token_id": 40, "logprob": -1.0, "top_logprobs": top}]
        here.faults[GENERATE] = answering(finish_reason="stop", logprobs={"content": content})
        request = request_of(folder, entropy_first_k=3, max_new_tokens=6)
        done = play(engine_of(folder, server), lambda e: e.generate(request))
    sizes = [len(body["token_ids"]) for body in sent(server, GENERATE)]
    assert (done.token_ids, done.finish, len(done.entropies)) == ((40,) * 6, Finish.LENGTH, 3)
    assert sizes == [len(request.token_ids) + i for i in range(6)]


def test_requests_of_a_dead_server_go_to_the_other_and_none_is_lost(folder):
    async def work(engine):
        await engine.generate(request_of(folder))
        here.is_dead = True
        return await asyncio.gather(*(engine.generate(request_of(folder, seed=i)) for i in range(12)))

    requests = [request_of(folder, seed=i) for i in range(12)]

    async def alone(engine):
        return await asyncio.gather(*map(engine.generate, requests))

    with stand_in(folder) as (here, first), stand_in(folder) as (_, second):
        done = play(engine_of(folder, first, second), work)
        assert done == play(engine_of(folder, second), alone)


@pytest.mark.usefixtures("hanging_servers")
def test_a_server_that_hangs_is_left_and_its_requests_are_asked_again(folder):
    over, waited = threading.Event(), []

    def hang(request):
        over.wait(200.0)
        waited.append(request.path)

    async def work(engine):
        await engine.generate(request_of(folder))
        here.faults |= {GENERATE: hang, "/health": hang}
        return await asyncio.gather(*(engine.generate(request_of(folder, seed=i)) for i in range(6)))

    with stand_in(folder) as (here, first), stand_in(folder) as (_, second):
        assert len(play(engine_of(folder, first, second), work)) == 6
        assert waited == []
        over.set()


def test_a_server_is_sent_as_many_requests_as_it_has_slots_and_is_looked_at_meanwhile(folder):
    over, writing = threading.Event(), []

    def hold(request):
        writing.append(request)
        over.wait(60.0)

    def looks():
        return sum(request.path == "/health" for request in server.requests)

    async def work(engine):
        await engine.generate(request_of(folder))
        here.faults[GENERATE] = hold
        completions = [asyncio.ensure_future(engine.generate(request_of(folder, seed=i))) for i in range(16)]
        while len(writing) < 2:
            await asyncio.sleep(0.01)
        before = looks()
        while looks() == before:
            await asyncio.sleep(0.01)
        assert len(writing) == 2
        over.set()
        return await asyncio.gather(*completions)

    notes = []
    with stand_in(folder) as (here, server):
        assert len(play(engine_of(folder, server, notes=notes, slots=2), work)) == 16
    assert notes == []


def test_an_evaluation_takes_a_server_without_dev_mode(folder):
    async def work(engine):
        done = await engine.generate(request_of(folder))
        before = len(server.requests)
        while [request.path for request in server.requests[before:]].count("/weight_info") < 2:
            await asyncio.gather(*(engine.generate(request_of(folder, seed=i)) for i in range(2)))
        return done, await engine.score(IDS)

    notes = []
    with stand_in(folder) as (here, server):
        here.dev_mode = False
        done, scores = play(engine_of(folder, server, notes=notes), work)
    assert sum(size for _, size in done.version_runs) == len(done.token_ids)
    assert len(scores) == len(IDS) - 1
    assert notes == []


def half(request):
    def write(stream):
        stream.write(
            b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"choi'
        )

    return Reply(write=write)


def test_half_an_answer_is_asked_for_again_and_not_for_ever(folder):
    with stand_in(folder) as (here, server):
        here.faults[GENERATE] = half
        with pytest.raises(
            EngineError, match=r"a request failed 10 times, the last time because .*"
        ) as failed:
            play(engine_of(folder, server), lambda e: e.generate(request_of(folder)))
        assert len(sent(server, GENERATE)) == 10
    assert "\n" not in str(failed.value)


def test_servers_that_differ_are_found(folder):
    with stand_in(folder) as (_, first), stand_in(folder) as (two, second):
        with torch.no_grad():
            two.model.model.norm.weight.mul_(1.5)
        with pytest.raises(EngineError, match="their weights differ"):
            play(engine_of(folder, first, second), lambda e: e.score(IDS))


def test_a_cancelled_request_is_dropped_and_the_engine_goes_on(folder):
    over = threading.Event()

    def slow(request):
        over.wait(60.0)

    async def work(engine):
        await engine.generate(request_of(folder))
        here.faults[GENERATE] = slow
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await engine.generate(request_of(folder))
        here.faults.clear()
        over.set()
        assert all(replica.in_flight == 0 for replica in engine._replicas)
        return await engine.generate(request_of(folder))

    with stand_in(folder) as (here, server):
        assert play(engine_of(folder, server), work).token_ids


def test_a_branch_goes_where_its_prefix_is(folder):
    tokenizer = ChatTokenizer(folder)
    texts = [" ".join(f"{word} {i}" for i in range(30)) for word in ("add", "solve", "print", "then")]

    async def work(engine):
        for text in texts:
            await engine.generate(Request(tokenizer.encode(text), 1, 2))
        for seed, text in enumerate(texts * 3):
            await engine.generate(Request(tokenizer.encode(text + " because"), seed, 2))

    with ExitStack() as stack:
        servers = [stack.enter_context(stand_in(folder))[1] for _ in range(2)]
        play(engine_of(folder, *servers), work)
    contexts = [{tuple(b["token_ids"][:8]) for b in sent(s, GENERATE)} for s in servers]
    assert not contexts[0] & contexts[1]


def test_a_model_that_also_reads_pictures_has_its_sizes_apart(folder, tmp_path):
    model = shutil.copytree(folder, tmp_path / "model")
    path = model / "config.json"
    sizes = json.loads(path.read_text())
    path.write_text(json.dumps({"model_type": "qwen3_5", "text_config": sizes}))
    engine = engine_of(model, urls=("http://127.0.0.1:9",))
    assert engine.info().vocab_size == sizes["vocab_size"]
    asyncio.run(engine.close())
