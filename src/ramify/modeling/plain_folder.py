"""Writes a model as a plain Hugging Face folder one tensor at a time, for models that do not fit into memory."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ramify.core.errors import DataError
from ramify.files.untrusted import read_small_file
from ramify.modeling.model_config import TRAINED_PROMPTS
from ramify.modeling.tensor_files import TensorHead, all_finite, write_each_tensor
from ramify.modeling.weight_files import INDEX, SINGLE

FILE_BYTES = 5_000_000_000
"""Largest file of weights, unless one tensor is larger."""

GENERATION = "generation_config.json"
COMPANIONS = (
    GENERATION,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    TRAINED_PROMPTS,
)
"""Files that a copy of a model takes over unchanged: the defaults of generation, the tokenizer, and what it was trained under."""


class Weights(Protocol):
    """The tensors of a model."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor by name."""
        ...

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor as `dtype`."""
        ...


def write_weights(
    folder: Path,
    weights: Weights,
    names: Iterable[str],
    dtype: torch.dtype,
    advance: Callable[[], object],
    *,
    threads: int = 1,
) -> None:
    """Write safetensors files of at most `FILE_BYTES`, with an index if there are several.

    Args:
        folder: Where to write.
        weights: The model.
        names: The tensors to write, in the order of the files.
        dtype: Type of the tensors in the files.
        advance: Called after each tensor.
        threads: How many tensors are asked for, checked and written at the same time.

    Raises:
        DataError: A tensor has NaN or infinity, or gets it as `dtype`.
        OSError: The files cannot be written.
    """
    heads = {name: TensorHead(dtype, weights.shapes[name]) for name in names}

    def checked(name: str) -> torch.Tensor:
        tensor = weights.tensor(name, dtype)
        if not all_finite(tensor):
            raise DataError(not_finite(weights, name))
        advance()
        return tensor

    write_in_parts(folder, heads, checked, threads=threads)


def write_in_parts(
    folder: Path,
    heads: Mapping[str, TensorHead],
    tensor: Callable[[str], torch.Tensor],
    *,
    threads: int = 1,
) -> None:
    """Write tensors, each of the type and shape in `heads`, in their order into files of at most `FILE_BYTES`.

    Raises:
        OSError: The files cannot be written.
    """
    parts = _parts(heads)
    width = max(5, len(str(len(parts))))
    places = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:0{width}}-of-{len(parts):0{width}}.safetensors" if len(parts) > 1 else SINGLE
        try:
            write_each_tensor(folder / file, {name: heads[name] for name in part}, tensor, threads=threads)
        except OSError as error:
            error.filename = error.filename or str(folder / file)
            raise
        places.update(dict.fromkeys(part, file))
    if len(parts) > 1:
        size = sum(head.nbytes for head in heads.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_settings(
    folder: Path, config: Mapping[str, Any], dtype: str, sources: Iterable[Path]
) -> tuple[str, ...]:
    """Write `config.json` with the type of the weights, and copy the tokenizer and the generation settings.

    Args:
        folder: Where to write.
        config: Content of the model's `config.json`.
        dtype: Type of the weights, such as "bfloat16".
        sources: Folders to copy from; the first that has a file gives it.

    Returns:
        Names of the copied files.

    Raises:
        DataError: A file cannot be read.
        OSError: A file cannot be written.
    """
    # Releases of transformers know one name or the other.
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    text = json.dumps({**config, **dict.fromkeys(keys, dtype)}, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    folders = tuple(sources)
    copies = {
        name: file
        for name in COMPANIONS
        if (file := next((source / name for source in folders if (source / name).exists()), None)) is not None
    }
    for name, file in copies.items():
        (folder / name).write_bytes(read_small_file(file))
    return tuple(copies)


def generation_defaults(config: Mapping[str, Any], eos_id: int | None) -> bytes:
    """Return a `generation_config.json` for a model whose folder has none: the ids of its `config.json`, and where a turn ends.

    Args:
        config: Content of the model's `config.json`.
        eos_id: The token that ends a turn, where the model has a tokenizer; ramify reads no other end from this file then.
    """
    ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if eos_id is not None:
        ids["eos_token_id"] = eos_id
    named = {name: value for name, value in ids.items() if value is not None}
    return (json.dumps(named, indent=2) + "\n").encode()


def _parts(heads: Mapping[str, TensorHead]) -> list[list[str]]:
    """Return the tensors of each file."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, head in heads.items():
        if parts[-1] and size + head.nbytes > FILE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += head.nbytes
    return parts


def not_finite(weights: Weights, name: str) -> str:
    """Return the message for a tensor that is not finite in the type in which it is needed."""
    if all_finite(weights.tensor(name, torch.float32)):
        return f"{name} has numbers beyond float16's 65,504. Use --dtype bfloat16 or float32"
    return f"{name} holds NaN or infinity: the training run had broken down by then. Take an earlier step"
