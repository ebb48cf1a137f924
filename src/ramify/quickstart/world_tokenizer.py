"""The tokenizer of the quick-start world: a byte-level BPE trained on the world's own text.

Each word and each number from 0 to 99, with its leading space, is one token. So a name or a number is the same token
everywhere, and copying it takes one token. Longer numbers are split into groups of two digits from the left (" 1372"
is " 13", "72"). All 256 bytes are in the vocabulary, so any text survives a round trip. The dialect's tags are added
tokens that are not special (like the think tags of Qwen3); so are the two strings that the dialect puts around a
result, with their spaces and line breaks.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN, TAG_NAMES
from ramify.quickstart.world_questions import (
    HELD_OUT_NAMES,
    LEVELS,
    LINE,
    OPERATORS,
    SYNONYMS,
    TRAINING_NAMES,
    make_edition,
    make_question,
)

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = (RESULT_OPEN, RESULT_CLOSE, *(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")))
PIECES = r" ?\\boxed\{|\n-| ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s"
"""Pre-tokenization: no token extends beyond one of these pieces."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + ('' if message.role == 'assistant' else ' ') + message.content"
    " + '<|im_end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant' }}{%- endif -%}"
)
"""Uses as few tokens as possible; the space makes a question's first word the same token as elsewhere."""

_DEMONSTRATED = (
    " find compute this search not found done",
    ' print("=", 10 + 11 - 12 * 13 > 14)',
    "= True\n= False\n= -15",
    " \\boxed{ -15 }",
)
_OBSERVED = "No search results found."
_ROLES = ("user", "assistant")
_NUM_SAMPLED = 60


def train_world_tokenizer(folder: Path) -> None:
    """Train the tokenizer and write it to `folder` (created if missing), in the format of transformers.

    Files: tokenizer.json, tokenizer_config.json, chat_template.jinja. The model's config.json in the same folder must
    be of type qwen3 or llama; for qwen2, transformers replaces the pre-tokenizer by its own.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # The vocabulary never reaches this size: training ends when every piece of the text is one token.
    trainer = trainers.BpeTrainer(
        vocab_size=10_000,
        min_frequency=1,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(world_text(), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE + "\n", encoding="utf-8")


def world_text() -> Iterator[str]:
    """Yield text that contains every word of the world, at every difficulty."""
    yield from _DEMONSTRATED
    yield _OBSERVED
    yield from _ROLES
    for name in (*TRAINING_NAMES, *HELD_OUT_NAMES):
        yield f" {name}"
    for number in range(100):
        yield f" {number} 10{number:02d}"
    for relation, synonyms in SYNONYMS.items():
        yield "".join(f"\n{LINE}Mimo {word} was 33" for word in (relation, *synonyms))
    for word in OPERATORS:
        yield f" {word}"
    for level in LEVELS.values():
        edition = make_edition("tokenizer", level)
        for number in range(_NUM_SAMPLED):
            yield f" {make_question(number, 'train', edition, level, seed=0).text}"
