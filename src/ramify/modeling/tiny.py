"""A tiny random Qwen3 that can be trained on a laptop's CPU in minutes."""

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from ramify.modeling.attention import ATTENTION_NAME
from ramify.modeling.recompute import recompute_activations


def make_tiny_qwen3(
    *,
    vocab_size: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    rope_theta: float,
    context: int,
    eos_id: int,
    pad_id: int,
    seed: int,
    embedding_std: float = 0.2,
    weight_std: float = 0.02,
) -> PreTrainedModel:
    """Make a float32 Qwen3 with tied embeddings whose weights depend only on `seed` and the sizes.

    Embeddings are drawn with standard deviation `embedding_std`, matrices with `weight_std`; norms are 1. The global
    random state does not change. The model computes bitwise as one that `load_model` loads.
    """
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        attention_bias=False,
        pad_token_id=pad_id,
        eos_token_id=eos_id,
        bos_token_id=None,
        initializer_range=weight_std,
    )
    with torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter is embedding:
                parameter.normal_(0.0, embedding_std, generator=generator)
            elif parameter.ndim == 2:
                parameter.normal_(0.0, weight_std, generator=generator)
            else:
                parameter.fill_(1.0)
    model.set_attn_implementation(ATTENTION_NAME)
    recompute_activations(model)
    model.train()
    return model
