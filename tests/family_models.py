"""A tiny random model of every family that can be trained, as transformers' own class makes and saves it."""

import torch

from ramify.modeling.model_config import WRAPPERS

SIZES = {
    "vocab_size": 600,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "bos_token_id": None,
}
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SEES = {"num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}

GROWING = {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5}
"""Queries of Ministral 3 grow at every eighth place."""

ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
}

GEMMA_4 = {
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 600, "final_logit_softcapping": 5.0},
    **{"num_hidden_layers": 4, "num_kv_shared_layers": 2, "head_dim": 8, "global_head_dim": 16},
    **{"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
"""Layers that read the keys of others, heads of two sizes, an embedding for each layer, capped logits."""

OWN = {
    "ministral3": {
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **GROWING},
    },
    "seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0, "head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "mistral": {"sliding_window": 4},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**EXPERTS, "head_dim": 8, "norm_topk_prob": True},
    "olmo3": WINDOWS,
    "gemma3_text": {**WINDOWS, "head_dim": 8, "rope_parameters": ROPES, "final_logit_softcapping": 5.0},
    "gemma4_text": GEMMA_4,
    "qwen3_next": {
        **{**EXPERTS, "shared_expert_intermediate_size": 16, "head_dim": 8, "linear_key_head_dim": 8},
        **{"linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
        "layer_types": ["linear_attention", "full_attention"],
    },
}


def make_model(family, seed=3, **changes):
    """The model, as transformers makes it."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    text = WRAPPERS.get(family, family)
    sizes = {**SIZES, **OWN.get(text, {}), **changes}
    config = CONFIG_MAPPING[text](**sizes)
    if family == "gemma3":
        # transformers ignores a cap in this class.
        config.final_logit_softcapping = None
        pixels = {"image_size": 8, "patch_size": 4}
        whole = {"vision_config": {**SEES, **pixels}, "mm_tokens_per_image": 4, "eos_token_id": [2, 1]}
        config = CONFIG_MAPPING[family](text_config=config.to_dict(), **whole)
    elif family == "gemma4":
        sees = {
            **SEES,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "position_embedding_size": 16,
        }
        config = CONFIG_MAPPING[family](text_config=config.to_dict(), vision_config=sees)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)


def write_family(folder, family, **changes):
    """Its folder."""
    make_model(family, **changes).save_pretrained(folder)
    return folder
