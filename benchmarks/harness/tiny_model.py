"""The fixture "tiny": a seeded random model of Qwen2's shape (4 layers x 256, vocabulary 8192) with a tokenizer.

Both sides of a comparison open the same folder. Every word of `words.json`, with its leading space, is one token,
so texts of any number of tokens can be written.
"""

import json
import random
from pathlib import Path

from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN, TAG_NAMES

VOCAB_SIZE = 8192
NUM_WORDS = 600
_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TAGS = (RESULT_OPEN, RESULT_CLOSE, *(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")))
_PEER_TAGS = tuple(
    f"<{slash}{name}>" for name in ("tool_call", "tool_response", "tools") for slash in ("", "/")
)
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PLAIN = (
    "system user assistant You are Qwen created by Alibaba Cloud a helpful Tools tools may call one or more functions"
    " to assist with the query provided function signatures within XML tags For each return json object name"
    " arguments search description parameters properties type string required Search Words"
)
_JSON = (
    '"}, {"type": "x", "x": {"x": "x"}}}, "x": ["x"]}} "x": {"x": {"x"}}}\n{"x": <x-x-x>, <x-x-x>}\n # x\n\n'
)


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    """Write model and tokenizer into `folder`, as transformers reads them, and the words beside them."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    write_tiny_tokenizer(folder, seed)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).save_pretrained(folder)


def words_of(folder: Path) -> list[str]:
    """Words that are one token each when a space is in front."""
    words: list[str] = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    return words


def write_tiny_tokenizer(folder: Path, seed: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    generator = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = sorted({"".join(generator.sample(syllables, 2)) for _ in range(4 * NUM_WORDS)})
    words = generator.sample(words, NUM_WORDS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(_TAGS) - len(_PEER_TAGS),
        special_tokens=[_PAD, _START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    unspaced = "\n".join(_PLAIN.split())
    tokenizer.train_from_iterator([" " + " ".join(words), " " + _PLAIN, unspaced, _JSON] * 2, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (*_TAGS, *_PEER_TAGS)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END, "pad_token": _PAD}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    (folder / "words.json").write_text(json.dumps(words), encoding="utf-8")
