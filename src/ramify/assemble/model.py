"""Builds the model and the tokenizer of a checked recipe.

Imports are inside the functions, so that checking a recipe loads none of the libraries that running it needs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ramify.core.errors import ConfigError, DataError
from ramify.modeling.configs import AdapterConfig, ModelConfig, TrainedModelConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from ramify.chat.tokenizer import ChatTokenizer


_SAID = "caf\u00e9 \u4e2d\u6587"
_PROBE = f"What is 12 + 30?\n<think> 1372 </think> {_SAID}"
"""The user message with which a tokenizer and its chat template are tested."""


def build_tokenizer(
    folder: Path, note: "Callable[[str], None] | None" = None, *, computes: bool = True
) -> "ChatTokenizer":
    """Read a tokenizer; if the folder's model `computes` here, check that transformers encodes the same ids.

    With a server the check is skipped: the server has its own copy of the tokenizer, and importing transformers takes
    longer than a short evaluation.

    Args:
        folder: The model's folder.
        note: Receives a note if transformers' AutoTokenizer gives other ids than the folder's tokenizer.json.
        computes: Whether the model runs in this process.

    Raises:
        DataError: The ids differ, a file is missing or damaged, or the tokenizer has more ids than the model rows.
    """
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.core.messages import Message

    ours = ChatTokenizer(folder)
    text = ours.chat_text([Message.of("user", _PROBE)])
    if _SAID not in text:
        raise DataError(
            f"{folder}: the chat template drops or changes the user's message. Use the template of the model's publisher."
        )
    if not ours.encode(text):
        raise DataError(
            f"{folder}: tokenizer.json makes no tokens of a text. Copy it again from where the model came from."
        )
    other = _compare(ours, text) if computes else None
    if other is not None and note is not None:
        note(
            f"{folder}: its own tokenizer.json is used; transformers' AutoTokenizer makes a {other} of this folder, which gives "
            "other ids: elsewhere, open the model with PreTrainedTokenizerFast"
        )
    rows = head_rows(folder)
    if rows is not None and rows < ours.vocab_size:
        raise DataError(
            f"{folder}: tokenizer.json has {ours.vocab_size} tokens, config.json vocab_size = {rows}; "
            "use the model's own tokenizer"
        )
    return ours


def head_rows(folder: Path) -> int | None:
    """Return the number of ids that a model can sample, often more than its tokenizer has; None if the folder has no configuration."""
    from ramify.modeling.model_config import is_adapter_folder, read_model_config

    if not (folder / "config.json").is_file() and not is_adapter_folder(folder):
        return None
    rows = read_model_config(folder).get("vocab_size")
    return rows if isinstance(rows, int) else None


def _compare(ours: "ChatTokenizer", text: str) -> str | None:
    """Compare a tokenizer with the one that transformers builds from the folder.

    For some families (Qwen2) AutoTokenizer builds the family's own tokenizer, whatever tokenizer.json says. We use
    tokenizer.json, and return the name of AutoTokenizer's class if it gives other ids.

    Chat templates are compared as source text: transformers would render them without limits on time and memory.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from ramify.chat.tokenizer import naming_panics
    from ramify.modeling.load import quiet_transformers

    folder = ours.folder
    try:
        with quiet_transformers(), naming_panics(folder):
            theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            template, special = theirs.get_chat_template(), theirs.special_tokens_map
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            own = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
            own_ids = own(text, add_special_tokens=False)["input_ids"]
    except DataError:
        raise
    # Foreign files: transformers may raise anything about them.
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{folder}: transformers cannot read the tokenizer with its config.json ({reason})"
        ) from None
    if template != ours.template.source:
        raise DataError(
            f"{folder}: transformers finds another chat template than chat_template.jinja; keep one"
        )
    for name, token in special.items():
        if name in ours.template.source and token != ours.special.get(name):
            raise DataError(
                f"{folder}/tokenizer_config.json: {name}: transformers reads {token!r:.80}, expected "
                f"{ours.special.get(name)!r:.80} as for the chat template"
            )
    mine = list(ours.encode(text))
    if mine != own_ids:
        raise DataError(
            f"{folder}: tokenizer.json gives other ids here than in transformers; use the model's own tokenizer"
        )
    return None if mine == ids else type(theirs).__name__


def build_model(section: ModelConfig, context_tokens: int, seed: int = 0) -> "PreTrainedModel":
    """Load the model, with a fresh adapter if the recipe asks for one and the folder has none.

    Args:
        section: The recipe's model section.
        context_tokens: Length of the longest sequence.
        seed: Seed of a fresh adapter. With any seed the model computes the same until the adapter is trained.

    Raises:
        ConfigError: The model has too few positions; the folder's adapter has other settings than the recipe.
        DataError: The folder cannot be read.
    """
    import torch

    from ramify.modeling.load import load_model

    has_gpu = torch.cuda.is_available()
    if section.device == "cuda" and not has_gpu:
        raise ConfigError('model.device: expected a GPU, torch finds none; set it to "cpu"')
    device = ("cuda" if has_gpu else "cpu") if section.device == "auto" else section.device
    model = load_model(section.folder, section.dtype, device)
    require_positions(section.path, int(model.config.max_position_embeddings), context_tokens)
    if isinstance(section, TrainedModelConfig) and section.lora is not None:
        _adapt(model, section.lora, section.path, seed)
    return model


def require_positions(path: Path, limit: int, context_tokens: int) -> None:
    """Raise ConfigError unless a model with `limit` positions takes sequences of `context_tokens`."""
    if context_tokens > limit:
        raise ConfigError(
            f"model.path: {path} has {limit} positions, but prompt and response may take {context_tokens}. Lower the limits of tokens."
        )


def _adapt(model: "PreTrainedModel", section: AdapterConfig, path: Path, seed: int) -> None:
    from ramify.modeling.lora import adapter_settings, add_lora, spelt_out

    trained = adapter_settings(model)
    if trained is None:
        add_lora(model, section, seed)
    elif trained != spelt_out(model, section):
        raise ConfigError(
            f"model.lora: expected the settings of the adapter at {path} (rank = {trained.rank}, alpha = {trained.alpha}, "
            f"targets = {list(trained.targets)}) or no such section"
        )
