"""The first example: a tiny model that is trained from nothing in a world of its own, in minutes on a CPU.

Its tokenizer is a byte-level BPE trained on the world's own text. Each word and each number from 0 to 99, with its leading space,
is one token. So a name or a number is the same token everywhere, and copying it takes one token. Longer numbers are split into
groups of two digits from the left (" 1372" is " 13", "72"). All 256 bytes are in the vocabulary, so any text survives a round trip.
The dialect's tags are added tokens that are not special (like the think tags of Qwen3); so are the two strings that the dialect
puts around a result, with their spaces and line breaks.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN, TAG_NAMES
from ramify.chat.tokenizer import ChatTokenizer
from ramify.modeling.load import save_model, writing_model
from ramify.modeling.tiny import make_tiny_qwen3
from ramify.obs.console import RunConsole
from ramify.quickstart.demonstrator import write_demonstrations
from ramify.quickstart.example import Example, ExampleData, Settings, search_tool
from ramify.quickstart.world_files import WorldSettings, build_world
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

FULL = WorldSettings(num_train=750, num_dev=100, num_test=500, num_seen=250)
SMOKE = WorldSettings(num_train=30, num_dev=10, num_test=20, num_seen=20, num_demo_editions=10)
_SHARES = {"data": 0.02, "SFT": 0.42, "RL": 0.38, "evaluation": 0.18}
_SMOKE_SHARES = {"data": 0.05, "SFT": 0.20, "RL": 0.25, "evaluation": 0.50}

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


def make_example(difficulty: int, *, smoke: bool, ambiguous: float | None = None) -> Example:
    """Return the example in a world of some difficulty and ambiguity; `smoke` is a miniature that learns nothing."""
    size = SMOKE if smoke else FULL
    settings = replace(size, difficulty=difficulty, ambiguous=ambiguous)
    # Tokens and calls that a question of the world can need, with room to try again.
    is_long = difficulty > 1 or ambiguous is not None
    limits = {"max_tokens": 256, "max_calls": 10} if is_long else {"max_tokens": 180, "max_calls": 7}
    # A weak start keeps contrast scarce where rules are compared: half of the groups of 8 are all right or all wrong.
    demonstrations = 9_600 if difficulty == 3 else 19_200
    short: Settings = {"learner.optimizer.warmup_steps": 3} if smoke else {}
    options = [f"--difficulty {difficulty}"] if difficulty > 1 else []
    options += [] if ambiguous is None else [f"--ambiguous {ambiguous}"]
    options += ["--smoke"] if smoke else []
    return Example(
        name="quickstart",
        base="Untrained",
        make_data=partial(_make_data, settings, 480 if smoke else demonstrations),
        shares=_SMOKE_SHARES if smoke else _SHARES,
        sft=short,
        rl={
            **{f"rollout.{key}": value for key, value in limits.items()},
            **({"learner.optimizer.warmup_steps": 1, "preflight.enabled": False} if smoke else {}),
        },
        evaluation={f"sampling.{key}": value for key, value in limits.items()},
        greedy=True,
        options=" ".join(options),
    )


def _make_data(
    settings: WorldSettings, num_demonstrations: int, out: Path, seed: int, console: RunConsole
) -> ExampleData:
    with console.phase("data", 3) as phase:
        world = build_world(out / "world", settings, seed)
        phase.advance(passages=world.num_passages)
        with writing_model(out / "base"):
            write_base(out / "base", seed)
        phase.advance()
        demonstrations = out / "world" / "demonstrations.jsonl"
        with search_tool("quickstart", world.passages) as search:
            summary = write_demonstrations(demonstrations, settings, seed, num_demonstrations, search)
        phase.advance(demonstrations=summary.count, correct=f"{summary.correct:.0%}")
    return ExampleData(
        out / "base", demonstrations, world.train, world.passages, world.test, world.train_entities
    )


def write_base(folder: Path, seed: int) -> None:
    """Write the untrained model."""
    train_world_tokenizer(folder)
    tokenizer = ChatTokenizer(folder)
    model = make_tiny_qwen3(
        vocab_size=tokenizer.vocab_size,
        hidden=128,
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=32,
        intermediate=384,
        rope_theta=100.0,
        context=512,
        eos_id=tokenizer.eos_id,
        pad_id=0,
        seed=seed,
    )
    save_model(model, folder)


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
