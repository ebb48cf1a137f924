"""The vLLM engine against stand-ins of its servers: ids and logprobs, stops, weights, servers that die or lie."""

import asyncio
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

import build
from loopback import Reply, as_json, serve
from model_folders import write_model
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError, EngineError, MachineError, ServiceDownError
from ramify.core.records import Finish, Request, version_folder
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm import replica
from ramify.modeling.load import load_model
from ramify.sampler.publisher import write_weights
from vllm_stand_in import sent, stand_in

pytestmark = pytest.mark.integration

STOPS = ("</search>", "</answer>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("vllm") / "model", "qwen2")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(replica, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(replica, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(replica, "HEALTH_SECONDS", 1.0)
    monkeypatch.setattr("ramify.engines.vllm.engine._PAUSE_SECONDS", 0.01)


def engine_of(folder, *servers, notes=None, hands_over=False, context=300, **section):
    settings = {
        "name": "vllm",
        "urls": tuple(s.url for s in servers),
        "dtype": "float32",
        "start_seconds": 5.0,
    }
    return build_vllm(
        VllmEngineConfig(**{**settings, **section}),
        ChatTokenizer(folder),
        context,
        folder.parent / "run",
        [].append if notes is None else notes.append,
        hands_over=hands_over,
    )


def play(engine, work):
    async def main():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def ask(folder, text="the capital of France", seed=0, **changes):
    return replace(Request(ChatTokenizer(folder).encode(text), seed, 24, STOPS), **changes)


def test_ids_go_in_and_out_and_logprobs_are_those_of_the_model(folder):
    request = ask(folder, entropy_first_k=3, temperature=0.7, seed=2**63 - 3)
    with stand_in(folder) as (_, server):
        done, again = play(
            engine_of(folder, server), lambda e: asyncio.gather(e.generate(request), e.generate(request))
        )
    assert done == again
    bodies = sent(server, "/inference/v1/generate")
    first = [body for body in bodies if body["sampling_params"]["logprobs"]]
    assert [tuple(body["token_ids"]) for body in first] == [request.token_ids] * 2
    assert {body["sampling_params"]["max_tokens"] for body in first} == {3}
    rest = [body for body in bodies if body not in first]
    assert {tuple(body["token_ids"]) for body in rest} <= {request.token_ids + done.token_ids[:3]}
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


def scripted_tokens(here, *tokens):
    """Have the server write these tokens, from the first request on, and end as vLLM does."""
    queue = list(tokens)

    def write(asked):
        body = asked.json()
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

    here.faults["/inference/v1/generate"] = write


def spelt(tokenizer, text):
    """Ids of a text, byte by byte."""
    return tuple(tokenizer.token_bytes.index(bytes([byte])) for byte in text.encode())


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_stop_string_may_begin_in_the_request_before(folder, cut):
    tokenizer = ChatTokenizer(folder)
    stop, after = spelt(tokenizer, "</search>"), spelt(tokenizer, "and more")
    request = ask(folder)
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
        done = play(engine_of(folder, server), lambda e: e.generate(ask(folder, entropy_first_k=5)))
    assert (done.token_ids, done.finish, len(done.entropies)) == (stop, Finish.STOP, 5)


def test_the_end_token_ends_a_turn_in_the_probe(folder):
    tokenizer = ChatTokenizer(folder)
    with stand_in(folder) as (here, server):
        scripted_tokens(here, 40, tokenizer.eos_id, 41)
        done = play(engine_of(folder, server), lambda e: e.generate(ask(folder, entropy_first_k=5)))
    assert (done.token_ids, done.finish) == ((40, tokenizer.eos_id), Finish.EOS)


def test_a_turn_that_the_server_ends_too_early_goes_on(folder):
    """Of a request that begins inside a character vLLM may make a text that holds a stop string of the prompt."""
    with stand_in(folder) as (here, server):
        top = [{"token_id": i, "logprob": -3.0 - i} for i in range(21)]
        content = [{"token_id": 40, "logprob": -1.0, "top_logprobs": top}]
        here.faults["/inference/v1/generate"] = broken(finish_reason="stop", logprobs={"content": content})
        request = ask(folder, entropy_first_k=3, max_new_tokens=6)
        done = play(engine_of(folder, server), lambda e: e.generate(request))
    asked = [len(body["token_ids"]) for body in sent(server, "/inference/v1/generate")]
    assert (done.token_ids, done.finish, len(done.entropies)) == ((40,) * 6, Finish.LENGTH, 3)
    assert asked == [len(request.token_ids) + i for i in range(6)]


def new_weights(folder, engine, version, seed=1):
    model = load_model(folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    write_weights(build.learner(model), version_folder(engine.info().weights_folder, version), "float32")
    return model


def plain_scores(model, ids):
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].float(), -1)
    return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double().numpy()


IDS = [5, 9, 33, 60, 81, 12, 7, 7, 40, 101, 599, 0, 2, 17]


def test_new_weights_are_loaded_by_every_server_and_carry_their_version(folder):
    async def work(engine):
        model = new_weights(folder, engine, 7)
        before = await engine.score(IDS)
        await engine.load_weights(7)
        done = await engine.generate(ask(folder))
        return before, await engine.score(IDS), plain_scores(model, IDS), done

    with stand_in(folder) as (one, first), stand_in(folder) as (two, second):
        engine = engine_of(folder, first, second, hands_over=True)
        path = engine.info().weights_folder
        before, after, plain, done = play(engine, work)
    np.testing.assert_allclose(before, plain_scores(load_model(folder), IDS), atol=1e-5)
    np.testing.assert_allclose(after, plain, atol=1e-5)
    assert done.version_runs == ((7, len(done.token_ids)),)
    assert one.label == two.label != "default"
    assert one.loads == two.loads == 1
    assert not path.exists()


def test_what_servers_hold_before_the_first_hand_over_does_not_matter(folder):
    async def work(engine):
        await engine.score(IDS)
        new_weights(folder, engine, 4)
        await engine.load_weights(4)
        return await engine.generate(ask(folder))

    with stand_in(folder) as (one, first), stand_in(folder) as (two, second):
        two.label = "ramify-ffffffff-9"  # of a run that has ended
        done = play(engine_of(folder, first, second, hands_over=True), work)
        assert one.label == two.label
    assert done.version_runs == ((4, len(done.token_ids)),)


@pytest.mark.parametrize("when", ["between requests", "in a request"])
def test_a_server_that_starts_again_gets_the_weights_of_this_step_before_it_answers(folder, when):
    """Its first weights would answer with other tokens and logprobs, under the label of a fresh start."""
    notes = []

    async def work(engine):
        new_weights(folder, engine, 3)
        await engine.load_weights(3)
        whole = await engine.generate(ask(folder))
        if when == "between requests":
            here.restart()
        else:
            dies_in_the_next_request(here)
        return whole, await engine.generate(ask(folder))

    with stand_in(folder) as (here, server):
        whole, again = play(engine_of(folder, server, hands_over=True, notes=notes), work)
    assert again == whole
    assert here.loads == 2
    assert any("is down" in note for note in notes)
    assert any("is back" in note for note in notes)


def dies_in_the_next_request(here):
    def die(asked):
        here.is_dead = True
        del here.faults["/inference/v1/generate"]
        threading.Timer(0.3, here.restart).start()
        return Reply(write=lambda stream: None)

    here.faults["/inference/v1/generate"] = die


def test_requests_of_a_dead_server_go_to_the_other_and_none_is_lost(folder):
    async def work(engine):
        await engine.generate(ask(folder))
        here.is_dead = True
        return await asyncio.gather(*(engine.generate(ask(folder, seed=i)) for i in range(12)))

    requests = [ask(folder, seed=i) for i in range(12)]

    async def alone(engine):
        return await asyncio.gather(*map(engine.generate, requests))

    with stand_in(folder) as (here, first), stand_in(folder) as (_, second):
        done = play(engine_of(folder, first, second), work)
        assert done == play(engine_of(folder, second), alone)


def test_a_server_that_hangs_is_left_and_its_requests_are_asked_again(folder):
    def hang(asked):
        time.sleep(20)

    async def work(engine):
        await engine.generate(ask(folder))
        here.faults |= {"/inference/v1/generate": hang, "/health": hang}
        return await asyncio.gather(*(engine.generate(ask(folder, seed=i)) for i in range(6)))

    with stand_in(folder) as (here, first), stand_in(folder) as (_, second):
        began = time.monotonic()
        assert len(play(engine_of(folder, first, second), work)) == 6
        assert time.monotonic() - began < 12


def broken(**changes):
    """A generate route whose answer lacks something or is wrong."""

    def fault(asked):
        body = asked.json()
        choice = {
            "token_ids": [40],
            "finish_reason": "length",
            "logprobs": {"content": [{"token_id": 40, "logprob": -1.0, "top_logprobs": []}]},
            "weight_versions": [{"version": "default", "start": 0, "end": 1}],
            **changes,
        }
        usage = {"prompt_tokens": len(body["token_ids"]) - changes.get("lost", 0)}
        return as_json({"choices": [choice], "usage": usage})

    return fault


WRONG = {
    "no ids": (broken(token_ids=None), "expected token_ids"),
    "no logprobs": (broken(logprobs=None), "expected a logprob for each of 1 tokens, got 0"),
    "other tokens": (
        broken(logprobs={"content": [{"token_id": 41, "logprob": -1.0}]}),
        "expected a logprob for each",
    ),
    "no number": (
        broken(logprobs={"content": [{"token_id": 40, "logprob": None}]}),
        "expected a logprob that is a number",
    ),
    "no versions": (broken(weight_versions=None), "expected weight_versions"),
    "half a prompt": (broken(lost=2), r"it read \d+ tokens of a prompt of"),
    "no choices": (
        lambda asked: as_json({"usage": {"prompt_tokens": len(asked.json()["token_ids"])}}),
        "choices",
    ),
    "no json": (lambda asked: Reply(body=b"<html>"), "expected JSON"),
    "refused": (lambda asked: as_json({"error": {"message": "Token id 900 is out"}}, 400), "Token id 900"),
    "no route": (lambda asked: as_json({"detail": "Not Found"}, 404), "--enable-scale-out"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_answer_that_is_not_as_vllm_writes_it_ends_the_run_in_one_line(folder, kind):
    fault, expected = WRONG[kind]
    with stand_in(folder) as (here, server):
        here.faults["/inference/v1/generate"] = fault
        with pytest.raises(EngineError, match=expected) as told:
            play(engine_of(folder, server), lambda e: e.generate(ask(folder)))
    assert "\n" not in str(told.value)


def half(asked):
    def write(stream):
        stream.write(
            b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"choi'
        )

    return Reply(write=write)


def test_half_an_answer_is_asked_for_again_and_not_for_ever(folder):
    with stand_in(folder) as (here, server):
        here.faults["/inference/v1/generate"] = half
        with pytest.raises(EngineError, match=r"a request failed 10 times, the last time because .*") as told:
            play(engine_of(folder, server), lambda e: e.generate(ask(folder)))
        assert len(sent(server, "/inference/v1/generate")) == 10
    assert "\n" not in str(told.value)


def other_tokenizer(here):
    here.faults["/tokenize"] = lambda asked: as_json({"tokens": [1, 2, 3]})


def change(**config):
    return lambda here: here.config.update(config)


def has_attribute(name, value):
    return lambda here: setattr(here, name, value)


UNFIT = {
    "tokenizer": (other_tokenizer, "has another tokenizer than model.path"),
    "dtype": (
        change(dtype="torch.bfloat16"),
        "engine.dtype: .* computes in bfloat16, the recipe says float32",
    ),
    "raw logprobs": (change(logprobs_mode="raw_logprobs"), "--logprobs-mode processed_logprobs"),
    "few logprobs": (change(max_logprobs=5), "--max-logprobs 21"),
    "short context": (has_attribute("context", 200), "takes 200 tokens, prompt and response may have 300"),
    "no dev mode": (has_attribute("dev_mode", False), "VLLM_SERVER_DEV_MODE=1"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_server_that_does_not_fit_the_recipe_is_refused(folder, kind):
    spoil, expected = UNFIT[kind]
    with stand_in(folder) as (here, server):
        spoil(here)
        with pytest.raises(ConfigError, match=expected) as told:
            play(engine_of(folder, server, hands_over=True), lambda e: e.generate(ask(folder)))
    assert "\n" not in str(told.value)


def test_a_server_of_another_model_is_refused(folder):
    with stand_in(folder) as (_, server), pytest.raises(ConfigError, match="serves 'model', not 'other'"):
        play(engine_of(folder, server, model="other"), lambda e: e.generate(ask(folder)))


def test_another_release_is_a_note(folder):
    notes = []
    with stand_in(folder) as (here, server):
        here.version = "0.41.1"
        play(engine_of(folder, server, notes=notes), lambda e: e.generate(ask(folder)))
    assert notes == [f"engine 'vllm': {server.url} is vLLM 0.41.1; ramify is tested with 0.32"]


def test_a_refused_key_is_told(folder, monkeypatch):
    monkeypatch.setenv("VLLM_KEY", "right-key-123")
    with stand_in(folder) as (here, server):
        here.key = "right-key-123"
        play(engine_of(folder, server, key_variable="VLLM_KEY"), lambda e: e.generate(ask(folder)))
        with pytest.raises(ServiceDownError, match=r"engine\.key_variable: .*refuses the key .*401"):
            play(engine_of(folder, server), lambda e: e.generate(ask(folder)))


def test_an_address_where_nothing_answers_is_given_up(folder):
    with stand_in(folder) as (_, server):
        gone = server
    with pytest.raises(ServiceDownError, match=r"did not come up in 1 s .*ConnectError"):
        play(engine_of(folder, gone, start_seconds=1.0), lambda e: e.generate(ask(folder)))


def test_a_service_that_is_no_vllm_is_told(folder):
    says = serve(lambda asked: as_json({"hello": "world"}))
    with says as server, pytest.raises(ServiceDownError, match="is this a vLLM server"):
        play(engine_of(folder, server, start_seconds=1.0), lambda e: e.generate(ask(folder)))


def test_weights_of_another_run_are_not_learned_from(folder):
    async def work(engine):
        new_weights(folder, engine, 1)
        await engine.load_weights(1)
        here.label = "ramify-ffffffff-1"
        await engine.generate(ask(folder))

    with stand_in(folder) as (here, server), pytest.raises(EngineError, match="of another run"):
        play(engine_of(folder, server, hands_over=True), work)


def test_weights_that_change_in_an_evaluation_end_it(folder):
    async def work(engine):
        await engine.generate(ask(folder))
        here.label = "7"
        await engine.generate(ask(folder))

    with stand_in(folder) as (here, server), pytest.raises(EngineError, match="somebody else loads weights"):
        play(engine_of(folder, server), work)


def test_servers_that_differ_are_found(folder):
    with stand_in(folder) as (_, first), stand_in(folder) as (two, second):
        with torch.no_grad():
            two.model.model.norm.weight.mul_(1.5)
        with pytest.raises(EngineError, match="their weights differ"):
            play(engine_of(folder, first, second), lambda e: e.score(IDS))


def test_a_damaged_folder_ends_the_run(folder):
    async def work(engine):
        new_weights(folder, engine, 1)
        file = next(version_folder(engine.info().weights_folder, 1).glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:100])
        await engine.load_weights(1)

    with stand_in(folder) as (_, server), pytest.raises(EngineError, match="did not come back"):
        play(engine_of(folder, server, hands_over=True, start_seconds=1.0), work)


def test_a_request_in_flight_goes_on_with_the_new_weights_and_says_which_wrote_what(folder):
    """The stand-in writes a request under one label; vLLM tells of both, as here."""

    async def work(engine):
        new_weights(folder, engine, 1)
        await engine.load_weights(1)
        first = here.label
        new_weights(folder, engine, 2)
        await engine.load_weights(2)
        spans = [{"version": first, "start": 0, "end": 2}, {"version": here.label, "start": 2, "end": 3}]
        content = [{"token_id": t, "logprob": -1.0, "top_logprobs": []} for t in (40, 41, 42)]
        here.faults["/inference/v1/generate"] = broken(
            token_ids=[40, 41, 42], logprobs={"content": content}, weight_versions=spans
        )
        return await engine.generate(ask(folder, max_new_tokens=3))

    with stand_in(folder) as (here, server):
        done = play(engine_of(folder, server, hands_over=True), work)
    assert done.version_runs == ((1, 2), (2, 1))


def test_memory_is_handed_back_until_the_next_weights(folder):
    async def work(engine):
        model = new_weights(folder, engine, 1)
        await engine.load_weights(1)
        await engine.sleep()
        asleep = here.asleep
        await engine.load_weights(1)
        return asleep, here.asleep, await engine.score(IDS), plain_scores(model, IDS)

    with stand_in(folder) as (here, server):
        asleep, still, scored, plain = play(engine_of(folder, server, hands_over=True, sleep=True), work)
    assert (asleep, still) == (True, False)
    np.testing.assert_allclose(scored, plain, atol=1e-5)


def test_a_cancelled_request_is_dropped_and_the_engine_goes_on(folder):
    def slow(asked):
        time.sleep(0.5)

    async def work(engine):
        await engine.generate(ask(folder))
        here.faults["/inference/v1/generate"] = slow
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await engine.generate(ask(folder))
        here.faults.clear()
        assert all(replica.in_flight == 0 for replica in engine._replicas)
        return await engine.generate(ask(folder))

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
    asked = [{tuple(b["token_ids"][:8]) for b in sent(s, "/inference/v1/generate")} for s in servers]
    assert not asked[0] & asked[1]


def test_a_python_without_vllm_is_told(folder, tmp_path):
    engine = engine_of(folder, launch=True, urls=())
    with pytest.raises(
        ServiceDownError, match=r"has no vLLM: install it there, or name .* engine\.python"
    ) as told:
        play(engine, lambda e: e.generate(ask(folder)))
    assert "\n" not in str(told.value)


FAILING = """#!/bin/sh
echo "(Worker pid=7) ERROR 11-23 09:31:45 [core.py:953] ValueError: Available memory is less than desired"
exit 1
"""


def test_a_server_that_does_not_start_says_why(folder, tmp_path):
    python = tmp_path / "python"
    python.write_text(FAILING)
    python.chmod(0o755)
    engine = engine_of(folder, launch=True, urls=(), python=python)
    with pytest.raises(
        ServiceDownError, match=r"its process ended: ValueError: Available memory .*server-0\.log"
    ):
        play(engine, lambda e: e.generate(ask(folder)))


def test_a_server_that_cannot_be_started_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    section = {"launch": True, "urls": (), "python": tmp_path / "absent"}
    with pytest.raises(MachineError, match=r"engine\.python: .*absent cannot be started"):
        engine_of(folder, weights_dir=tmp_path / "weights", hands_over=True, **section)
    assert not list(tmp_path.glob("**/ramify-*"))
