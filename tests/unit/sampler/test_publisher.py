"""Weights that are copied to an engine: what it computes is what the learner computes, or the run is told."""

import asyncio
from contextlib import asynccontextmanager
from copy import deepcopy

import numpy as np
import pytest
import torch

import build
from model_folders import write_model
from ramify.algos.sft import demonstrated
from ramify.assemble.worker import build_engine_model
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.records import Request
from ramify.engines.configs import TrainingEngineConfig
from ramify.engines.local import LocalEngine
from ramify.engines.scripted import ScriptedEngine
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.sampler.publisher import CopyPublisher, SharedPublisher
from random_trees import random_tree
from scripted_agents import script

COPY = TrainingEngineConfig(name="local", slots=4, weights="copy")
PROBE = tuple(range(3, 51))


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def folder(request, tmp_path_factory):
    """A model with a tied head, and one with a head of its own."""
    return write_model(tmp_path_factory.mktemp("published") / request.param, request.param)


def learner_of(folder, lora=False):
    model = load_model(folder)
    if lora:
        add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    return build.learner(model)


def step(learner, seed=0):
    rng = np.random.default_rng(seed)
    assert learner.update([demonstrated(random_tree(rng, contexts=False))]).outcome == "stepped"


@asynccontextmanager
async def engine_of(folder, model):
    engine = LocalEngine(model, ChatTokenizer(folder), num_slots=4, context_tokens=200)
    try:
        yield engine
    finally:
        await engine.close()


def publish_twice(folder, learner, copied, computes=None):
    """A first publish, a step of the learner, and a second publish, to an engine that computes with `computes`."""

    async def main():
        async with engine_of(folder, copied if computes is None else computes) as engine:
            publisher = CopyPublisher(engine, copied, learner, PROBE)
            await publisher.publish(0)
            step(learner)
            await publisher.publish(1)
            return engine.info().policy_version, await engine.score(PROBE)

    return asyncio.run(main())


@pytest.mark.parametrize("lora", [False, True])
def test_after_a_step_the_copy_computes_bitwise_what_an_engine_on_the_learners_weights_does(folder, lora):
    learner = learner_of(folder, lora)
    before = learner.score(PROBE)
    copied = build_engine_model(COPY, learner.model, pytest.fail)
    version, scored = publish_twice(folder, learner, copied)
    assert version == 1
    weights = dict(copied.named_parameters())
    for name, parameter in learner.model.named_parameters():
        assert parameter.data_ptr() != weights[name].data_ptr()
        assert torch.equal(parameter, weights[name]), name
        assert not weights[name].requires_grad
    tied = learner.model.config.tie_word_embeddings
    assert (copied.lm_head.weight is copied.model.embed_tokens.weight) == tied

    async def on_the_learners():
        async with engine_of(folder, learner.model) as engine:
            await SharedPublisher(engine).publish(1)
            request = Request(PROBE[:9], 7, 40)
            async with engine_of(folder, copied) as other:
                await other.load_weights(1)
                assert await engine.generate(request) == await other.generate(request)
            return await engine.score(PROBE)

    np.testing.assert_array_equal(scored, asyncio.run(on_the_learners()))
    assert np.abs(scored - before).max() > 0.1


def forgets_the_head(computes, copied):
    """The engine's head is a tensor of its own, which no copy reaches: a tied one is named only as the embedding."""
    if copied.config.tie_word_embeddings:
        computes.lm_head.weight = torch.nn.Parameter(copied.lm_head.weight.detach().clone())
    else:
        copied.lm_head = deepcopy(copied.lm_head)


def forgets_a_layer(computes, copied):
    copied.model.layers[1] = deepcopy(copied.model.layers[1])


def forgets_a_norm(computes, copied):
    copied.model.norm = deepcopy(copied.model.norm)


def shares_all_modules(model):
    """Another model of the same tensors, in which modules can be replaced."""
    memo = {id(parameter): parameter for parameter in model.parameters()}
    return deepcopy(model, memo)


@pytest.mark.parametrize("forgets", [forgets_the_head, forgets_a_layer, forgets_a_norm])
def test_a_part_that_is_forgotten_is_found(folder, forgets):
    learner = learner_of(folder)
    copied = build_engine_model(COPY, learner.model, pytest.fail)
    computes = shares_all_modules(copied)
    forgets(computes, copied)
    with pytest.raises(EngineError, match=r"^step 1: .*differ.* nats .*more than the 0\.001 ") as told:
        publish_twice(folder, learner, copied, computes)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_a_damaged_base_below_an_adapter_is_found(folder, value):
    learner = learner_of(folder, lora=True)
    copied = build_engine_model(COPY, learner.model, pytest.fail)
    with torch.no_grad():
        copied.model.layers[0].mlp.down_proj.base_layer.weight[3, 5] = value
    with pytest.raises(EngineError, match=r"^step 1: .*nothing was learned"):
        publish_twice(folder, learner, copied)


def test_an_engine_that_cannot_score_is_refused(folder):
    learner = learner_of(folder)
    engine = ScriptedEngine(ChatTokenizer(folder), script)
    with pytest.raises(EngineError, match="cannot score"):
        CopyPublisher(engine, learner.model, learner, PROBE)


def test_shared_weights_are_one_model(folder):
    learner = learner_of(folder)
    section = TrainingEngineConfig(name="local", slots=4)
    assert build_engine_model(section, learner.model, pytest.fail) is learner.model
