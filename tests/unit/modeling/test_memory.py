import json
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from model_folders import write_model
from ramify.modeling.attention import grouped_sdpa
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.modeling.memory import available_bytes, needs_checkpointing, set_checkpointing
from ramify.modeling.memory_plan import row_bytes
from ramify.modeling.recompute import recompute_activations
from wide_rows import FAMILIES, WIDE_HEAD, WIDE_LAYERS, chain, random_model, tree, update


def most_at_once(work, file):
    """Highest sum of living tensors that were made inside `work`, in bytes."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    profile.export_chrome_trace(str(file))
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["name"] == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    return max(np.cumsum([event["args"]["Bytes"] for event in events]))


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [WIDE_LAYERS, WIDE_HEAD])
@pytest.mark.parametrize("shape", [chain, tree])
def test_the_estimate_is_near_what_tensors_take(tmp_path, family, dtype, sizes, shape):
    model = random_model(family, sizes, dtype)
    update(model, shape(64))
    measured = most_at_once(lambda: update(model, shape(256)), tmp_path / "trace.json")
    assert 0.8 < measured / row_bytes(model.config, 256, dtype.itemsize).without_recompute < 1.25


@pytest.mark.integration
@pytest.mark.parametrize("sizes", [WIDE_LAYERS, WIDE_HEAD])
@pytest.mark.parametrize("shape", [chain, tree])
def test_the_estimate_of_a_row_that_is_computed_again(tmp_path, sizes, shape):
    model = random_model("qwen2", sizes | {"num_hidden_layers": 12})
    set_checkpointing(model, True)
    update(model, shape(64))
    measured = most_at_once(lambda: update(model, shape(256)), tmp_path / "trace.json")
    row = row_bytes(model.config, 256, torch.float32.itemsize)
    assert 0.7 < measured / (row.recomputed + row.head) < 1.25


def test_the_estimate_grows_with_tokens_layers_and_bytes():
    config = random_model().config
    short, long = (
        row_bytes(config, tokens, torch.float32.itemsize).without_recompute for tokens in (8192, 16384)
    )
    assert 1.9 < long / short < 2
    assert row_bytes(config, 8192, torch.bfloat16.itemsize).without_recompute < short
    config.num_hidden_layers *= 2
    assert 1.8 < row_bytes(config, 8192, torch.float32.itemsize).without_recompute / short < 2


def test_recomputing_is_asked_for_when_a_row_does_not_fit():
    model = random_model()
    row = row_bytes(model.config, 512, torch.float32.itemsize).without_recompute
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert not needs_checkpointing(model, 512, int(1.7 * row) + gradients)
    assert needs_checkpointing(model, 512, int(1.6 * row) + gradients)
    update(model, chain(16))
    assert not needs_checkpointing(model, 512, int(1.7 * row))


def test_some_memory_is_available():
    assert 1 << 20 < available_bytes(torch.device("cpu")) < 1 << 50


@pytest.fixture(params=["qwen2", "qwen3", "llama", "mistral"])
def folder(request, tmp_path):
    return write_model(tmp_path / "m", request.param)


def gradients(model, spans, on):
    set_checkpointing(model, on)
    model.zero_grad()
    update(model, spans)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("with_adapter", [False, True])
def test_gradients_of_a_packed_tree_are_the_same_with_recomputing(folder, with_adapter):
    model = load_model(folder)
    if with_adapter:
        add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    spans = tree(80)
    plain, again, off = (gradients(model, spans, on) for on in (False, True, False))
    assert len(plain) == (28 if with_adapter else len(list(model.parameters())))
    for name, gradient in plain.items():
        scale = gradient.abs().max().clamp(min=1e-3).item()
        torch.testing.assert_close(again[name], gradient, atol=2e-6 * scale, rtol=1e-5)
        torch.testing.assert_close(off[name], gradient, atol=2e-6 * scale, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_is_no_less_than_what_layers_of_their_own_kind_keep(tmp_path, dtype):
    """Gemma's norms and MLPs are transformers' own."""
    config = Gemma3TextConfig(**WIDE_LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    model = AutoModelForCausalLM.from_config(config).to(dtype).train()
    recompute_activations(model)

    def once(size):
        ids = torch.arange(size)[None]
        states = model.model(ids, use_cache=False).last_hidden_state[0]
        states.backward(torch.ones_like(states))

    once(8)
    measured = most_at_once(lambda: once(256), tmp_path / "trace.json")
    assert measured < 1.1 * row_bytes(config, 256, dtype.itemsize).without_recompute


def test_every_layer_is_computed_twice_from_its_input_alone():
    model, calls, sizes = random_model(), Counter(), []

    def plan(layer, query, key, value, scaling):
        calls[layer] += 1
        return grouped_sdpa(query, key, value, scaling, causal=True).transpose(1, 2)

    def keep(tensor):
        sizes.append(tensor.nbytes)
        return tensor

    ids = torch.arange(200)[None]
    sums = []
    for on in (False, True):
        set_checkpointing(model, on)
        sizes.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            states = model.model(ids, use_cache=False, attention_plan=plan).last_hidden_state
        sums.append(sum(sizes))
        states.sum().backward()
    assert calls == dict.fromkeys(range(4), 3)
    assert sums[1] < sums[0] / 5


def test_the_embedding_stays_as_it_was_for_passes_without_gradients():
    model = random_model()
    set_checkpointing(model, True)
    with torch.inference_mode():
        assert not model.model.embed_tokens(torch.arange(5)).requires_grad
        states = model.model(torch.arange(20)[None], use_cache=False).last_hidden_state
    set_checkpointing(model, False)
    with torch.no_grad():
        assert torch.equal(states, model.model(torch.arange(20)[None], use_cache=False).last_hidden_state)
