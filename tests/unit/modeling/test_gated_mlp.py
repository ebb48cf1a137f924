import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen2Config

from ramify.modeling.gated_mlp import keep_less

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


def test_values_and_gradients_are_bitwise_those_of_the_plain_module():
    plain, lean = random_model(), random_model()
    keep_less(lean)
    ids = torch.arange(50)[None]
    assert torch.equal(plain(ids).logits, lean(ids).logits)
    expected, actual = gradients(plain), gradients(lean)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_the_product_is_not_kept():
    lean = random_model()
    keep_less(lean)
    mlp, x = lean.model.layers[0].mlp, torch.randn(1, 50, 32, requires_grad=True)
    output = mlp(x)
    seen = []
    node = output.grad_fn
    while node is not None:
        seen.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    assert any("_Product" in name for name in seen)


def test_a_copy_computes_with_its_own_weights():
    lean = random_model()
    keep_less(lean)
    other = copy.deepcopy(lean)
    with torch.no_grad():
        for parameter in lean.parameters():
            parameter.zero_()
    assert other(torch.arange(5)[None]).logits.abs().sum() > 0


def test_doing_it_twice_changes_nothing():
    model = random_model()
    keep_less(model)
    kind = type(model.model.layers[0].mlp)
    keep_less(model)
    assert type(model.model.layers[0].mlp) is kind


@pytest.mark.parametrize("config", [Gemma3TextConfig])
def test_other_activations_stay_as_they_are(config):
    model = random_model(config)
    kind = type(model.model.layers[0].mlp)
    keep_less(model)
    assert type(model.model.layers[0].mlp) is kind
