import copy
import gc
import json
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from model_folders import write_model
from ramify.modeling.attention import ATTENTION_NAME, grouped_sdpa
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.modeling.memory_plan import row_bytes
from ramify.modeling.numerics import available_bytes
from ramify.modeling.recompute import needs_checkpointing, recompute_activations, set_checkpointing
from wide_rows import FAMILIES, WIDE_HEAD, WIDE_LAYERS, chain, random_model, tree, update

CONFIGS = (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config)
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def small_model(config=Qwen2Config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**SIZES)).train()


def gradients_of_squares(model):
    model.zero_grad()
    model(torch.arange(50)[None]).logits.square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("config", CONFIGS)
def test_values_are_bitwise_those_of_plain_modules_and_gradients_but_for_the_order_of_a_sum(config):
    plain, recomputing = small_model(config), small_model(config)
    recompute_activations(recomputing)
    ids = torch.arange(50)[None]
    assert torch.equal(plain(ids).logits, recomputing(ids).logits)
    expected, actual = gradients_of_squares(plain), gradients_of_squares(recomputing)
    for name in expected:
        torch.testing.assert_close(
            actual[name], expected[name], rtol=1e-5, atol=1e-5 * float(expected[name].abs().max())
        )


def test_frozen_weights_get_no_gradient_and_the_rest_gets_its_own():
    plain, recomputing = small_model(), small_model()
    recompute_activations(recomputing)
    for model in (plain, recomputing):
        model.model.layers[1].input_layernorm.weight.requires_grad_(False)
    names = [name for name, p in plain.named_parameters() if p.requires_grad]
    gradients_of_both = [
        torch.autograd.grad(
            model(torch.arange(50)[None]).logits.square().sum(),
            [p for p in model.parameters() if p.requires_grad],
        )
        for model in (plain, recomputing)
    ]
    for name, expected, actual in zip(names, *gradients_of_both, strict=True):
        largest = float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * largest, msg=name)


def kept_bytes(model, num_tokens):
    """That a forward pass leaves behind."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        hidden = model.model(torch.arange(num_tokens)[None], use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(event.self_cpu_memory_usage for event in profile.key_averages())


def test_less_is_kept_than_autograd_keeps():
    plain, recomputing = small_model(), small_model()
    recompute_activations(recomputing)
    assert kept_bytes(recomputing, 50) < 0.62 * kept_bytes(plain, 50)


def test_a_copy_computes_with_its_own_weights():
    recomputing = small_model()
    recompute_activations(recomputing)
    other = copy.deepcopy(recomputing)
    with torch.no_grad():
        for parameter in recomputing.parameters():
            parameter.zero_()
    assert other(torch.arange(5)[None]).logits.abs().sum() > 0


def test_doing_it_twice_changes_nothing():
    model = small_model()
    recompute_activations(model)
    kind = type(model.model.layers[0].mlp)
    recompute_activations(model)
    assert type(model.model.layers[0].mlp) is kind


@pytest.mark.parametrize("config", [Gemma3TextConfig])
def test_other_activations_stay_as_they_are(config):
    model = small_model(config)
    kind = type(model.model.layers[0].mlp)
    recompute_activations(model)
    assert type(model.model.layers[0].mlp) is kind


def test_a_forward_pass_without_a_backward_one_leaves_nothing():
    recomputing = small_model()
    recompute_activations(recomputing)
    recomputing(torch.arange(50)[None])
    gc.collect()
    gc.disable()
    try:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            recomputing(torch.arange(50)[None])
    finally:
        gc.enable()
    assert sum(event.self_cpu_memory_usage for event in profile.key_averages()) == 0


def test_hooks_on_the_weight_of_a_norm_run_once():
    results = []
    for model in (small_model(), small_model()):
        if results:
            recompute_activations(model)
        weight = model.model.layers[0].input_layernorm.weight
        weight.register_hook(lambda gradient: 0.5 * gradient)
        results.append(gradients_of_squares(model)["model.layers.0.input_layernorm.weight"])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5 * float(results[0].abs().max()))


@pytest.mark.parametrize("name", ["input_layernorm.weight", "mlp.up_proj.weight", "self_attn.o_proj.weight"])
def test_a_weight_that_was_changed_in_between_is_told(name):
    recomputing = small_model()
    recompute_activations(recomputing)
    value = recomputing(torch.arange(50)[None]).logits.sum()
    with torch.no_grad():
        recomputing.model.layers[0].get_parameter(name).add_(1.0)
    with pytest.raises(RuntimeError, match=r"changed in place|modified by an inplace"):
        value.backward()


def test_layers_of_other_families_stay_as_they_are():
    model = small_model(Gemma3TextConfig)
    kinds = {type(module) for module in model.modules()}
    recompute_activations(model)
    assert {type(module) for module in model.modules()} == kinds


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


def test_the_row_of_an_adapter_is_the_one_that_the_plan_counts():
    model = random_model()
    add_lora(model, AdapterConfig(rank=2), 0)
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    whole, adapter = (
        row_bytes(model.config, 512, torch.float32.itemsize, adapter=flag).without_recompute
        for flag in (False, True)
    )
    assert whole != adapter
    assert not needs_checkpointing(model, 512, int(1.7 * adapter) + gradients)
    assert needs_checkpointing(model, 512, int(1.6 * adapter) + gradients)


def test_some_memory_is_available():
    assert 1 << 20 < available_bytes(torch.device("cpu")) < 1 << 50


@pytest.fixture(params=["qwen2", "qwen3", "llama", "mistral"])
def folder(request, tmp_path):
    return write_model(tmp_path / "m", request.param)


def gradients_of_row(model, spans, on):
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
    plain, again, off = (gradients_of_row(model, spans, on) for on in (False, True, False))
    assert len(plain) == (28 if with_adapter else len(list(model.parameters())))
    for name, gradient in plain.items():
        scale = gradient.abs().max().clamp(min=1e-3).item()
        torch.testing.assert_close(again[name], gradient, atol=2e-6 * scale, rtol=1e-5)
        torch.testing.assert_close(off[name], gradient, atol=2e-6 * scale, rtol=1e-5)


OWN_LAYERS = {
    "gemma3_text": {"head_dim": 64},
    "gemma4_text": {
        **{"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "head_dim": 32, "global_head_dim": 64},
        **{"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 500},
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "head_dim": 64},
}
"""Norms and MLPs that are transformers' own: Gemma's, and routed experts."""


@pytest.mark.parametrize("family", OWN_LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_is_no_less_than_what_layers_of_their_own_kind_keep(tmp_path, family, dtype):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    config = CONFIG_MAPPING[family](**WIDE_LAYERS, **heads, **OWN_LAYERS[family])
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME).to(dtype).train()
    recompute_activations(model)

    def once(size):
        ids = torch.arange(size)[None]
        states = model.model(ids, use_cache=False).last_hidden_state[0]
        states.backward(torch.ones_like(states))

    row = row_bytes(config, 256, dtype.itemsize)
    for again, estimate in ((False, row.without_recompute), (True, row.recomputed + row.head)):
        set_checkpointing(model, again)
        once(8)
        assert most_at_once(lambda: once(256), tmp_path / "trace.json") < 1.1 * estimate


def test_every_layer_is_computed_twice_from_its_input_alone():
    model, calls, sizes = random_model(), Counter(), []

    def plan(layer, query, key, value, scaling, window):
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
