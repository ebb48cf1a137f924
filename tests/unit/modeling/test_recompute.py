import copy
import gc

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from ramify.modeling.recompute import recompute_activations

FAMILIES = (LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config)
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def random_model(config=Qwen2Config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**SIZES)).train()


def gradients(model):
    model.zero_grad()
    model(torch.arange(50)[None]).logits.square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("config", FAMILIES)
def test_values_are_bitwise_those_of_plain_modules_and_gradients_but_for_the_order_of_a_sum(config):
    plain, recomputing = random_model(config), random_model(config)
    recompute_activations(recomputing)
    ids = torch.arange(50)[None]
    assert torch.equal(plain(ids).logits, recomputing(ids).logits)
    expected, actual = gradients(plain), gradients(recomputing)
    for name in expected:
        torch.testing.assert_close(
            actual[name], expected[name], rtol=1e-5, atol=1e-5 * float(expected[name].abs().max())
        )


def test_frozen_weights_get_no_gradient_and_the_rest_gets_its_own():
    plain, recomputing = random_model(), random_model()
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
    plain, recomputing = random_model(), random_model()
    recompute_activations(recomputing)
    assert kept_bytes(recomputing, 50) < 0.62 * kept_bytes(plain, 50)


def test_a_copy_computes_with_its_own_weights():
    recomputing = random_model()
    recompute_activations(recomputing)
    other = copy.deepcopy(recomputing)
    with torch.no_grad():
        for parameter in recomputing.parameters():
            parameter.zero_()
    assert other(torch.arange(5)[None]).logits.abs().sum() > 0


def test_doing_it_twice_changes_nothing():
    model = random_model()
    recompute_activations(model)
    kind = type(model.model.layers[0].mlp)
    recompute_activations(model)
    assert type(model.model.layers[0].mlp) is kind


@pytest.mark.parametrize("config", [Gemma3TextConfig])
def test_other_activations_stay_as_they_are(config):
    model = random_model(config)
    kind = type(model.model.layers[0].mlp)
    recompute_activations(model)
    assert type(model.model.layers[0].mlp) is kind


def test_a_forward_pass_without_a_backward_one_leaves_nothing():
    recomputing = random_model()
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
    for model in (random_model(), random_model()):
        if results:
            recompute_activations(model)
        weight = model.model.layers[0].input_layernorm.weight
        weight.register_hook(lambda gradient: 0.5 * gradient)
        results.append(gradients(model)["model.layers.0.input_layernorm.weight"])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5 * float(results[0].abs().max()))


@pytest.mark.parametrize("name", ["input_layernorm.weight", "mlp.up_proj.weight", "self_attn.o_proj.weight"])
def test_a_weight_that_was_changed_in_between_is_told(name):
    recomputing = random_model()
    recompute_activations(recomputing)
    value = recomputing(torch.arange(50)[None]).logits.sum()
    with torch.no_grad():
        recomputing.model.layers[0].get_parameter(name).add_(1.0)
    with pytest.raises(RuntimeError, match=r"changed in place|modified by an inplace"):
        value.backward()


def test_layers_of_other_families_stay_as_they_are():
    model = random_model(Gemma3TextConfig)
    kinds = {type(module) for module in model.modules()}
    recompute_activations(model)
    assert {type(module) for module in model.modules()} == kinds
