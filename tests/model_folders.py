"""Small model folders for tests: a trained byte-level BPE with a chat template and a random model."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TAGS = [f"<{slash}{name}>" for name in ("think", "search", "python", "result", "answer") for slash in ("", "/")]  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "solve the number sum tool call search result answer is user assistant please compute",
    "add multiply what why because then if for in return def print list python final think step",
    "the capital of France is Paris , 12 plus 30 is 42 . \\boxed{ 42 }",
]


def write_tokenizer(folder: Path, vocab_size: int = 600, tags_are_tokens: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - (len(TAGS) if tags_are_tokens else 0),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = " ".join(CORPUS).split()
    text = [" ".join(words[i % len(words)] + str(i % 90) for i in range(j, j + 12)) for j in range(600)]
    tokenizer.train_from_iterator([*CORPUS, *text], trainer)
    if tags_are_tokens:
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def write_model(
    folder: Path, family: str = "qwen3", seed: int = 0, layers: int = 2, tags_are_tokens: bool = True
) -> Path:
    """A random model of two layers beside a 600-token tokenizer, saved as an ordinary Hugging Face folder."""
    # Most tests need a tokenizer at most.
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Ministral3Config,
        Ministral3ForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        SeedOssConfig,
        SeedOssForCausalLM,
        SmolLM3Config,
        SmolLM3ForCausalLM,
    )

    write_tokenizer(folder, tags_are_tokens=tags_are_tokens)
    sizes = {
        "vocab_size": 600, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192,
        "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, "initializer_range": 0.2,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
        elif family == "llama":
            model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
        elif family == "mistral":
            config = MistralConfig(**sizes, sliding_window=None, tie_word_embeddings=False)
            model = MistralForCausalLM(config)
        elif family == "ministral3":
            growing = {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5}
            rope = {"rope_type": "default", "rope_theta": 1e4, **growing}
            model = Ministral3ForCausalLM(Ministral3Config(**sizes, head_dim=16, rope_parameters=rope))
        elif family == "seed_oss":
            none = {"attention_dropout": 0.0, "residual_dropout": 0.0}
            model = SeedOssForCausalLM(SeedOssConfig(**sizes, **none, head_dim=32))
        elif family == "qwen3_moe":
            experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, head_dim=16, norm_topk_prob=True))
        elif family == "smollm3":
            model = SmolLM3ForCausalLM(SmolLM3Config(**sizes, no_rope_layers=[1, 0] * layers))
        else:
            model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=16, tie_word_embeddings=True))
    model.save_pretrained(folder)
    return folder
