import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import build
from model_folders import write_model
from ramify.core.errors import DataError
from ramify.modeling.load import load_model, save_model
from ramify.modeling.tensor_files import weights_checksum
from ramify.modeling.weight_files import stored_tensors

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture(params=["qwen3", "qwen2", "llama"])
def folder(request, tmp_path):
    makers = {
        "qwen3": build.tiny_model,
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS, initializer_range=0.1)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, initializer_range=0.1)),
    }
    save_model(makers[request.param](), tmp_path / "model")
    return tmp_path / "model"


def test_logits_equal_those_of_the_stock_implementation(folder):
    ids = torch.randint(2, 50, (2, 17), generator=torch.Generator().manual_seed(1))
    ours, stock = (
        load_model(folder),
        AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager"),
    )
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, stock(ids).logits, atol=1e-5)


def test_decoding_with_a_cache_and_no_plan_is_causal(folder):
    ids = torch.randint(2, 50, (1, 12), generator=torch.Generator().manual_seed(2))
    model = load_model(folder)
    with torch.no_grad():
        first = model(ids[:, :7], use_cache=True)
        later = model(ids[:, 7:], past_key_values=first.past_key_values, use_cache=True).logits
        assert torch.allclose(later, model(ids, use_cache=False).logits[:, 7:], atol=1e-5)


def test_plan_sees_each_layer_once_and_its_answer_is_used(folder):
    model, calls = load_model(folder), []

    def plan(layer_index, query, key, value, scaling, window):
        calls.append((layer_index, query.shape, key.shape, value.shape, scaling))
        return torch.zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3])

    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        planned = model.model(ids, use_cache=False, attention_plan=plan).last_hidden_state
        plain = model.model(ids, use_cache=False).last_hidden_state
    assert calls == [(i, (1, 4, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8), 8**-0.5) for i in range(2)]
    assert not torch.allclose(planned, plain)


def test_saved_folder_says_nothing_of_ramify_and_weights_survive_bitwise(folder, tmp_path):
    model = load_model(folder)
    save_model(model, tmp_path / "again")
    assert "ramify" not in (tmp_path / "again" / "config.json").read_text()
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_padding_mask_is_refused(folder):
    with pytest.raises(ValueError, match="padding mask"):
        load_model(folder)(torch.tensor([[3, 4]]), attention_mask=torch.tensor([[0, 1]]))


def test_tiny_model_depends_on_its_seed_alone_and_leaves_the_global_state():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build.tiny_model(3)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(6)
    second, third = build.tiny_model(3), build.tiny_model(4)
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, second, third)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_tiny_model_is_tied_and_scaled_as_asked():
    model = build.tiny_model(hidden=64, vocab_size=200)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.2, rel=0.05)
    assert model.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.model.rotary_emb.inv_freq[1].item() == pytest.approx(100 ** (-1 / 4))


def test_missing_folder_configuration_or_weights(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"config\.json is missing"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match="broken JSON"):
        load_model(tmp_path)
    save_model(build.tiny_model(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"no weights, expected model\.safetensors or"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x01")
    with pytest.raises(DataError, match="cannot be read"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            r"\['linear_attention'\] are not supported",
        ),
        ({"layer_types": ["full_attention", "chunked_attention"]}, r"\['chunked_attention'\] are not supp"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1, expected 0"),
        ({"model_type": "seed_oss"}, "residual_dropout = 0.1, expected 0"),
        ({"model_type": "ministral3"}, r"rope_parameters\.llama_4_scaling_beta = None, expected a number"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_parameters of type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling of type 'longrope'"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "rope_parameters of type 'proportional'"),
        ({"model_type": "gemma3"}, "text_config = None, expected an object of model_type 'gemma3_text'"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "qwen3"}},
            "expected an object of model_type 'gemma3_text'",
        ),
        (
            {"model_type": "gemma3", "text_config": {"final_logit_softcapping": 30.0}},
            "final_logit_softcapping = 30.0, expected null",
        ),
        (
            {"model_type": "gemma3", "text_config": {"attn_logit_softcapping": 30.0}},
            "attn_logit_softcapping = 30.0, expected null",
        ),
        (
            {"model_type": "gemma4", "text_config": {}, "quantization_config": {"bits": 4}},
            "quantised weights cannot be trained",
        ),
        ({"model_type": "gemma4_text", "final_logit_softcapping": -1}, "expected a number above 0"),
        ({"model_type": "gemma4_text", "enable_moe_block": True}, "without routed experts only"),
        ({"model_type": "gemma4_text", "use_bidirectional_attention": "all"}, "causal attention"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0, expected null"),
        ({"use_bidirectional_attention": True}, "expected a model with causal attention"),
        ({"output_router_logits": True}, r"output_router_logits = true, expected false"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "rope_parameters of type 'dynamic'",
        ),
    ],
)
def test_architectures_that_packing_cannot_be_exact_for_are_refused(tmp_path, changes, message):
    save_model(build.tiny_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=message):
        load_model(tmp_path)


def test_unknown_dtype(tmp_path):
    save_model(build.tiny_model(), tmp_path)
    assert load_model(tmp_path, dtype="bfloat16").dtype is torch.bfloat16
    with pytest.raises(DataError, match="dtype 'fp8' is unknown"):
        load_model(tmp_path, dtype="fp8")


def with_weights(folder, edit):
    """Edit the tensors of a folder's file."""
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_missing_weights_are_not_drawn_anew(tmp_path):
    save_model(build.tiny_model(), tmp_path)
    with_weights(tmp_path, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(DataError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_model(tmp_path)


def test_weights_of_another_class_are_not_dropped(tmp_path):
    """A Qwen3 called Llama has all that a Llama has, and norms that nobody would compute."""
    save_model(build.tiny_model(hidden=32, heads=4, head_dim=8), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(
        DataError, match=r"layers\.0\.self_attn\.k_norm\.weight is none of this model.*; and 1 more"
    ):
        load_model(tmp_path)


def test_several_problems_are_one_line(tmp_path):
    save_model(build.tiny_model(), tmp_path)

    def edit(weights):
        del weights["model.layers.0.mlp.up_proj.weight"]
        weights["model.more"] = torch.ones(2)
        weights["model.norm.weight"] = torch.ones(3)

    with pytest.raises(DataError) as refused:
        load_model(with_weights(tmp_path, edit))
    message = str(refused.value)
    for problem in (
        "up_proj.weight is missing",
        "model.more is none of",
        "model.norm.weight is [3], expected [32]",
    ):
        assert problem in message
    assert "\n" not in message


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, initializer_range=0.1, attention_bias=True))


def nothing(weights):
    pass


def tied_twice(weights):
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()


def head_only(weights):
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")


def old_buffers(weights):
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)


def without_prefix(weights):
    for name in [name for name in weights if name.startswith("model.")]:
        weights[name.removeprefix("model.")] = weights.pop(name)


def zero_vectors(weights):
    for name in weights:
        if weights[name].ndim == 1:
            weights[name].zero_()


def grown(weights):
    """Blocks that were added to a model, which change nothing at first."""
    weights["model.layers.1.self_attn.o_proj.weight"].zero_()
    weights["model.layers.1.mlp.down_proj.weight"].zero_()


def in_bfloat16(weights):
    for name in weights:
        weights[name] = weights[name].to(torch.bfloat16)


def padded(weights):
    weights["model.embed_tokens.weight"][40:] = 0


@pytest.mark.parametrize(
    ("make", "edit"),
    [
        *(
            (build.tiny_model, edit)
            for edit in (nothing, tied_twice, head_only, old_buffers, without_prefix, in_bfloat16)
        ),
        *((build.tiny_model, edit) for edit in (zero_vectors, grown, padded)),
        *((llama, edit) for edit in (nothing, old_buffers, without_prefix, zero_vectors, grown)),
    ],
)
def test_what_real_folders_hold_is_no_damage(tmp_path, make, edit):
    save_model(make(), tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    edit(expected)
    save_file(expected, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_model(tmp_path).state_dict()
    for name, tensor in expected.items():
        key = name if name in loaded else f"model.{name}"
        assert "inv_freq" in name or torch.equal(loaded[key], tensor.float())


def test_shards_are_read_as_their_index_says(tmp_path):
    save_model(build.tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    load_model(tmp_path).save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    loaded = load_model(tmp_path / "shards").state_dict()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_weights_that_may_not_be_read_are_not_called_missing():
    """Root reads all files, so it becomes somebody else for the test."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(Path(scratch) / "model")
        for readable in (Path(scratch), folder):
            readable.chmod(0o755)
        (folder / "model.safetensors").chmod(0)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            for read in (stored_tensors, weights_checksum):
                with pytest.raises(DataError, match=r"model\.safetensors: cannot be read: Permission denied"):
                    read(folder)
        finally:
            os.seteuid(user)
