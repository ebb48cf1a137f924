"""Models with linear attention take a row for each context of a trajectory; those with sliding windows take trees."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from ramify.core.errors import ConfigError
from ramify.core.tree import Source
from ramify.learner.forward import PassSettings, forward_row
from ramify.learner.pack import pack
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, packs_trees, save_model
from ramify.modeling.lora import add_lora, has_adapters
from ramify.modeling.model_config import fits_slots
from random_trees import credited, node, supervised_credit, tree_of

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
WINDOW = {"sliding_window": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **WINDOW, use_sliding_window=True, max_window_layers=1))


def mistral():
    return MistralForCausalLM(MistralConfig(**SIZES, **WINDOW))


def qwen3_next():
    kinds = ["linear_attention", "full_attention"]
    sizes = {**LINEAR, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 16, "head_dim": 8}
    return Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES, **EXPERTS, **sizes, layer_types=kinds))


def saved(make, folder):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return saved(qwen3_next, tmp_path / "model")


@pytest.mark.parametrize("make", [qwen2, mistral, qwen3_next])
def test_logits_equal_those_of_the_stock_implementation_beyond_the_window(make, tmp_path):
    folder = saved(make, tmp_path)
    ids = torch.randint(2, 50, (1, 23), generator=torch.Generator().manual_seed(1))
    ours = load_model(folder)
    assert packs_trees(ours) == (make is not qwen3_next)
    assert not fits_slots(ours.config)
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, stock(ids).logits, atol=1e-5)
        shifted = ids.clone()
        shifted[0, 0] = (ids[0, 0] + 1) % 50
        assert not torch.equal(ours(ids).logits, ours(shifted).logits)


def test_no_state_passes_from_one_context_of_a_trajectory_to_the_next(folder):
    model = load_model(folder)
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3, 4, 5, 6]),
            node((0,), Source.POLICY, [11, 12, 13, 14]),
            node((0, 0), Source.TOOL, [21, 22, 23, 24, 25, 26], context="fresh"),
            node((0, 0, 0), Source.POLICY, [31, 32, 33], leaf=True),
            node((0, 0, 1), Source.POLICY, [34, 35], leaf=True),
        ]
    )
    rows = pack(credited([tree], [supervised_credit(tree)]), 1000, share_prefixes=False)
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        got = [
            forward_row(model, row, PassSettings(1.0, chunk_tokens=8, with_entropy=False))[0] for row in rows
        ]
        contexts = {s.token_ids: s.written for t in tree.trajectories for s in t.segments}
        expected = []
        for ids, written in contexts.items():
            scores = stock(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
            expected += [scores[i - 1, ids[i]] for i in range(len(ids)) if written[i]]
    assert torch.allclose(torch.cat(got), torch.stack(expected), atol=1e-5)


def test_gradients_reach_every_weight_and_a_saved_model_is_the_same(folder, tmp_path):
    model = load_model(folder)
    ids = torch.randint(2, 50, (1, 23), generator=torch.Generator().manual_seed(1))
    model(ids).logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    save_model(model, tmp_path / "again")
    again = load_model(tmp_path / "again")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not packs_trees(again)


def test_adapters_can_be_trained_on_them(folder, tmp_path):
    model = load_model(folder)
    add_lora(model, AdapterConfig(rank=2, alpha=4, targets=("q_proj", "v_proj")), 0)
    save_model(model, tmp_path / "adapter")
    again = load_model(tmp_path / "adapter")
    assert has_adapters(again)
    assert not packs_trees(again)
    ids = torch.arange(2, 20)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_a_mistral_without_a_window_is_for_the_local_engine_too(tmp_path):
    MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)).save_pretrained(tmp_path)
    assert fits_slots(load_model(tmp_path).config)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sliding_window"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    # transformers omits defaults; Mistral's is a window of 4096.
    assert not fits_slots(load_model(tmp_path).config)


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
def test_adapters_on_routed_experts_are_refused(tmp_path):
    qwen3_next().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="Name modules of the attention only"):
        add_lora(load_model(tmp_path), AdapterConfig(rank=2, alpha=4), 0)
