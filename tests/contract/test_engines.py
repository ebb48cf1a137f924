"""Laws of every engine: equal requests get equal answers, stops are exact, a split turn is the whole turn."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from model_folders import write_model
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.draws import stream
from ramify.core.errors import ConfigError, EngineError
from ramify.core.records import Finish, Request
from ramify.engines.local import LocalEngine
from ramify.engines.scripted import ScriptedEngine
from ramify.engines.virtual_clock import run_virtual
from ramify.learner.configs import OptimizerConfig
from ramify.learner.optimizer import Optimizers
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import adapters_off, add_lora
from scripted_agents import script

FAMILIES = ["qwen2", "qwen3", "llama", "mistral"]


@pytest.fixture(scope="module", params=[*FAMILIES, "scripted"])
def make_engine(request, tmp_path_factory):
    family = "qwen3" if request.param == "scripted" else request.param
    folder = write_model(tmp_path_factory.mktemp("engines") / request.param, family)
    tokenizer = ChatTokenizer(folder)
    model = load_model(folder)

    def make(slots=6):
        if request.param == "scripted":
            return ScriptedEngine(tokenizer, script, context_tokens=400)
        return LocalEngine(model, tokenizer, num_slots=slots, context_tokens=400)

    make.tokenizer, make.folder = tokenizer, folder
    return make


def ask(tokenizer, text, seed=0, **changes):
    base = Request(tokenizer.encode(text), stream("test", seed), 24, ("</search>",), entropy_first_k=3)
    return replace(base, **changes)


def run(engine, *requests):
    async def main():
        try:
            return await asyncio.gather(*(engine.generate(request) for request in requests))
        finally:
            await engine.close()

    return play(engine, main())


def play(engine, work):
    """Run a coroutine; a script plays its seconds on a virtual clock."""
    return run_virtual(work)[0] if engine.info().name == "scripted" else asyncio.run(work)


def test_lengths_agree_and_entropies_are_those_of_the_first_tokens(make_engine):
    requests = [ask(make_engine.tokenizer, "the capital of France" + " is" * i, i) for i in range(9)]
    for request, done in zip(requests, run(make_engine(), *requests), strict=True):
        assert 1 <= len(done.token_ids) == len(done.logprobs) <= request.max_new_tokens
        assert len(done.entropies) == min(3, len(done.token_ids))
        assert all(entropy.lower == entropy.upper >= 0 for entropy in done.entropies)
        assert (done.finish is Finish.LENGTH) <= (len(done.token_ids) == request.max_new_tokens)


def test_same_request_same_answer_whatever_runs_beside_it(make_engine):
    request = ask(make_engine.tokenizer, "the capital of France is")
    others = [ask(make_engine.tokenizer, "add multiply what" * (1 + i % 3), i) for i in range(8)]
    alone = run(make_engine(), request)[0]
    crowded = run(make_engine(), *others[:4], request, *others[4:])[4]
    assert crowded.token_ids == alone.token_ids
    assert crowded.finish is alone.finish
    np.testing.assert_allclose(crowded.logprobs, alone.logprobs, atol=1e-4)


def test_a_turn_in_two_requests_is_the_turn_in_one(make_engine):
    request = ask(make_engine.tokenizer, "the capital of France is", max_new_tokens=12)
    whole = run(make_engine(), request)[0]
    cut = min(4, len(whole.token_ids) - 1)
    engine = make_engine()

    async def two():
        first = await engine.generate(replace(request, max_new_tokens=cut))
        second = await engine.generate(
            replace(
                request,
                token_ids=request.token_ids + first.token_ids,
                max_new_tokens=12 - cut,
                stop_context=cut,
                entropy_first_k=0,
            )
        )
        await engine.close()
        return first, second

    first, second = play(engine, two())
    assert first.token_ids + second.token_ids == whole.token_ids
    assert second.finish is whole.finish


def test_new_weights_carry_their_version(make_engine):
    engine = make_engine()

    async def main():
        await engine.load_weights(5)
        done = await engine.generate(ask(make_engine.tokenizer, "solve"))
        await engine.close()
        return done

    done = play(engine, main())
    assert done.version_runs == ((5, len(done.token_ids)),)
    assert engine.info().policy_version == 5


IDS = [5, 9, 33, 60, 81, 12, 7, 7, 40, 101, 599, 0, 2, 17] * 20


def test_scores_are_the_logprobs_of_transformers_own_pass_or_refused(make_engine):
    engine, texts = make_engine(), [IDS[:size] for size in (2, 40, 280)]

    async def main():
        try:
            return [await engine.score(ids) for ids in texts]
        finally:
            await engine.close()

    if engine.info().logprob_tolerance is None:
        with pytest.raises(EngineError, match="cannot score"):
            play(engine, main())
        return
    stock = AutoModelForCausalLM.from_pretrained(make_engine.folder)
    for ids, scored in zip(texts, play(engine, main()), strict=True):
        with torch.no_grad():
            logits = stock(torch.tensor([ids])).logits[0, :-1]
        plain = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        assert scored.dtype == np.float64
        np.testing.assert_allclose(scored, plain.numpy(), atol=1e-5, rtol=0)


def test_scores_are_those_that_requests_report_and_change_nothing_for_them(make_engine):
    engine = make_engine()
    if engine.info().logprob_tolerance is None:
        pytest.skip("this engine does not score")
    request = ask(make_engine.tokenizer, "the capital of France is")
    (undisturbed,) = run(make_engine(), request)

    async def main():
        await engine.score(IDS[:30])
        done, _ = await asyncio.gather(engine.generate(request), engine.score(IDS))
        scored = await engine.score([*request.token_ids, *done.token_ids])
        await engine.close()
        return done, scored

    done, scored = play(engine, main())
    assert done == undisturbed
    np.testing.assert_allclose(scored[-len(done.token_ids) :], done.logprobs, atol=1e-5)


def test_ids_that_cannot_be_scored_are_refused_and_a_closed_engine_does_not_score(make_engine):
    engine = make_engine()

    async def main():
        for ids in ([], [5], [5, 600], [-1, 5], [5] * 401):
            with pytest.raises(EngineError, match=r"2 to 400 token ids from 0 to 599|cannot score"):
                await engine.score(ids)
        await engine.close()
        with pytest.raises(EngineError, match=r"closed|cannot score"):
            await engine.score(IDS[:5])

    play(engine, main())


def learner_logprobs(model, context, written):
    logits = model(torch.tensor([[*context, *written]])).logits[0, len(context) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(written)[:, None])[:, 0]


@pytest.mark.parametrize(
    ("family", "targets"),
    [*((family, "all-linear") for family in FAMILIES), (FAMILIES[0], ("q_proj", "down_proj"))],
)
def test_logprobs_under_an_adapter_are_the_learners_before_and_after_an_update(tmp_path, family, targets):
    folder = write_model(tmp_path / family, family)
    tokenizer, model = ChatTokenizer(folder), load_model(folder)
    add_lora(model, AdapterConfig(rank=4, alpha=8, targets=targets), seed=0)
    optimizers = Optimizers(model, OptimizerConfig(rate=0.02))
    request = ask(tokenizer, "the capital of France is", max_new_tokens=12)
    engine = LocalEngine(model, tokenizer, num_slots=4, context_tokens=400)

    async def main():
        written = []
        for version in range(3):
            await engine.load_weights(version)
            done = await engine.generate(request)
            logprobs = learner_logprobs(model, request.token_ids, done.token_ids)
            np.testing.assert_allclose(done.logprobs, logprobs.detach().numpy(), atol=1e-4)
            written.append(done.token_ids)
            learner_logprobs(model, request.token_ids, written[0]).sum().backward()
            optimizers.step(1.0)
            optimizers.zero_grad()
        await engine.close()
        return written

    written = asyncio.run(main())
    with torch.no_grad():
        now = learner_logprobs(model, request.token_ids, written[0])
        with adapters_off(model):
            before = learner_logprobs(model, request.token_ids, written[0])
    assert (now - before).abs().max() > 0.1


def test_the_local_engine_refuses_models_that_it_cannot_compute(tmp_path):
    folder = write_model(tmp_path / "m", "qwen2")
    config = json.loads((folder / "config.json").read_text())
    windows = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "layer_types": None}
    (folder / "config.json").write_text(json.dumps(config | windows))
    with pytest.raises(
        ConfigError, match=r'engine\.name: "local" does not compute the layers of.*use another engine'
    ):
        LocalEngine(load_model(folder), ChatTokenizer(folder), num_slots=2, context_tokens=40)
