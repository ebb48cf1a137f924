"""Random models of real sizes, made on the device itself, and learners of them."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.harness.tiny_model import VOCAB_SIZE
from benchmarks.update.flops import Shape, qwen2
from benchmarks.update.ours import learner_of
from ramify.core.rank import Rank
from ramify.learner.parallel import make_mesh
from ramify.learner.sharding import Sharding, shard
from ramify.learner.update import Learner
from ramify.modeling.attention import ATTENTION_NAME
from ramify.modeling.memory_plan import GATHERED_ONCE
from ramify.modeling.recompute import recompute_activations


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Of a Qwen2 with tied embeddings."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def shape(self) -> Shape:
        """For counting operations."""
        return qwen2(self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads, self.vocabulary)


SMALL = ModelSizes("Qwen2.5-0.5B", 896, 4864, 24, 14, 2, 151936)
LARGE = ModelSizes("Qwen2.5-1.5B", 1536, 8960, 28, 12, 2, 151936)
BLOCK_7B = ModelSizes("Qwen2.5-7B in one layer", 3584, 18944, 1, 28, 4, 152064)
LAYERS_7B = 28
"""Layers of the whole model, which does not fit one GPU with its optimizer."""
SERVED = ModelSizes("Qwen2.5-0.5B with 8,192 words", 896, 4864, 24, 14, 2, VOCAB_SIZE)
"""For servers that read the tokenizer of `benchmarks.harness.tiny_model` too."""


def random_model(sizes: ModelSizes, device: str, final_norm: float = 1.0) -> PreTrainedModel:
    """A float32 model as `load_model` opens them.

    Args:
        sizes: Its sizes.
        device: Where it is made.
        final_norm: Weight of the last norm; logits grow with it, so that distributions are less flat than at random.
    """
    config = Qwen2Config(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        vocab_size=sizes.vocabulary,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    torch.nn.init.constant_(model.model.norm.weight, final_norm)
    model.set_attn_implementation(ATTENTION_NAME)
    recompute_activations(model)
    placed: PreTrainedModel = model.train()
    return placed


def served(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A frozen copy for an engine; buffers stay in float32, as they do when transformers reads a folder."""
    copy = deepcopy(model).requires_grad_(False)
    for parameter in copy.parameters():
        parameter.data = parameter.data.to(dtype)
    return copy


def learner_in(model: PreTrainedModel, dtype: torch.dtype) -> Learner:
    """A learner of a float32 model that computes in `dtype`, as a training run in one process builds it."""
    if dtype != torch.float32:
        mesh = make_mesh(Rank(), model.device.type, copies=1)
        shard(model, Sharding(mesh, dtype, GATHERED_ONCE))
    return learner_of(model)
