"""Models whose layers or whose head are wide, and updates of one packed row: what is measured of their memory."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from ramify.core.records import SegmentSpan
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.attention import ATTENTION_NAME
from ramify.modeling.head import written_backward
from ramify.modeling.recompute import recompute_activations

FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}
WIDE_LAYERS = {"vocab_size": 500, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
WIDE_HEAD = {"vocab_size": 9000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}


def random_model(family="qwen3", sizes=WIDE_LAYERS, dtype=torch.float32):
    heads = {
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "head_dim": 32,
    }  # fmt: skip
    config = FAMILIES[family](**sizes, **heads, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)
    recompute_activations(model)
    return model.to(dtype).train()


def chain(size):
    return [SegmentSpan(-1, 0, size)]


def tree(size):
    """A trunk of a quarter; two branches, each with two leaves, of an eighth each."""
    eighth = size // 8
    spans = [SegmentSpan(-1, 0, 2 * eighth)]
    for parent in (0, 0, 1, 1, 2, 2):
        spans.append(SegmentSpan(parent, spans[-1].stop, spans[-1].stop + eighth))
    return spans


def positions_of(spans):
    ends, positions = [], np.zeros(spans[-1].stop, np.int64)
    for span in spans:
        first = ends[span.parent] if span.parent >= 0 else 0
        ends.append(first + span.stop - span.start)
        positions[span.start : span.stop] = np.arange(first, ends[-1])
    return torch.from_numpy(positions)[None]


def update(model, spans):
    """Forward and backward of a row whose every token is predicted, with entropies."""
    ids = torch.arange(spans[-1].stop) % model.config.vocab_size
    plan = TreeAttention(spans, model.device, model.dtype)
    positions = positions_of(spans)
    states = model.model(
        ids[None], position_ids=positions, use_cache=False, attention_plan=plan
    ).last_hidden_state[0]
    weight = model.get_output_embeddings().weight

    def loss(_, logprobs, entropies):
        return (logprobs + entropies).sum()

    room = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)).detach()
    if weight.dtype == room.dtype:
        # As the learner does where it can, which saves the head's gradient a second time.
        weight.grad = room if weight.grad is None else weight.grad
        room = weight.grad
    states.backward(written_backward(states, weight, ids, 1.0, True, 1024, loss, room)[0])
