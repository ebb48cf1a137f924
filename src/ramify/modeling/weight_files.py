"""Reads the headers of a folder's safetensors files: names, types and shapes of all tensors, without the weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.files.untrusted import require_readable
from ramify.modeling.model_config import ADAPTER_WEIGHTS, WRAPPERS, is_adapter_folder, read_object_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
WITHIN = "model.language_model."
"""Where transformers' class of the whole model has the decoder's modules; adapters are saved under these names."""

OLDER = "language_model."
"""Where older files of these models have it."""

_DECODER = {
    f"{OLDER}model.": "model.",
    f"{OLDER}lm_head.": "lm_head.",
    WITHIN: "model.",
    "lm_head.": "lm_head.",
}
"""Prefixes of weights in the files, and the decoder's own."""

_FLOATS = ("F64", "F32", "BF16", "F16")


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The file, the shape and the type (such as "BF16") of a tensor."""

    file: Path
    shape: tuple[int, ...]
    kind: str


def stored_tensors(folder: Path) -> Mapping[str, StoredTensor]:
    """Return all tensors of a model folder by name; for an adapter's folder, those of the adapter's file.

    Like transformers it reads `model.safetensors`, or else the files that `model.safetensors.index.json` names.

    Raises:
        DataError: A file is missing, damaged or outside the folder, or a tensor is not a plain float.
    """
    if is_adapter_folder(folder):
        if not (folder / ADAPTER_WEIGHTS).is_file():
            is_pickle = (folder / "adapter_model.bin").is_file()
            raise DataError(
                f"adapter folder {folder}: {ADAPTER_WEIGHTS} is missing"
                + (
                    ", and adapter_model.bin is a pickle, which is never read. Load the adapter with peft and save it again"
                    if is_pickle
                    else ". Copy it from the folder of its training run"
                )
            )
        return read_head(folder / ADAPTER_WEIGHTS)
    if (folder / SINGLE).is_file():
        return read_head(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    for name in (SINGLE, INDEX):
        if (folder / name).is_dir():
            raise DataError(f"{folder / name} is a folder, expected a file")
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    others_hint = f"; found {', '.join(others[:3])}" if others else ""
    raise DataError(f"model folder {folder}: no weights, expected {SINGLE} or {INDEX}{others_hint}")


def read_head(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one safetensors file.

    Raises:
        DataError: As for `stored_tensors`.
    """
    heads = {}
    if not file.is_file():
        raise DataError(f"{file}: expected a file")
    require_readable(file)
    try:
        with safe_open(file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                head = tensors.get_slice(name)
                heads[name] = (str(head.get_dtype()), tuple(head.get_shape()))
    # Foreign files: report anything that is wrong with them in one line.
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{file}: cannot be read as safetensors ({reason}); copy it again from where it was made"
        ) from None
    for name, (kind, _) in heads.items():
        if kind not in _FLOATS:
            raise DataError(
                f"{file}: {name} is of type {kind}, expected one of {', '.join(_FLOATS)} (no quantised weights)"
            )
    return {name: StoredTensor(file, shape, kind) for name, (kind, shape) in heads.items()}


def _sharded(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX
    listed = read_object_file(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise DataError(f"{index}: expected weight_map to be an object of file names by weight")
    tensors_by_name: dict[str, StoredTensor] = {}
    for name in dict.fromkeys(map(str, listed.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise DataError(
                f"{index}: {name!r:.100} in weight_map, expected the name of a safetensors file beside it"
            )
        if not (folder / name).is_file():
            raise DataError(f"{index}: names {name}, which is missing. Copy it from the source of the model")
        for tensor, head in read_head(folder / name).items():
            if tensor in tensors_by_name:
                raise DataError(f"{folder / name}: {tensor} is in {tensors_by_name[tensor].file.name} too")
            tensors_by_name[tensor] = head
    for tensor, name in listed.items():
        if tensor not in tensors_by_name or tensors_by_name[tensor].file.name != name:
            raise DataError(f"{folder / str(name)}: {tensor} is missing, although {INDEX} says it is there")
    return tensors_by_name


def decoder_name(name: str) -> str | None:
    """Return the decoder's own name of a weight of the whole model; None for one of another part."""
    own = ((prefix, decoder) for prefix, decoder in _DECODER.items() if name.startswith(prefix))
    return next((decoder + name.removeprefix(prefix) for prefix, decoder in own), None)


def of_decoder(config: Mapping[str, Any], tensors: Mapping[str, _T]) -> Mapping[str, _T]:
    """Return the decoder's entries under its own names; all entries if `config.json` is not that of a wrapper."""
    if config.get("model_type") not in WRAPPERS:
        return tensors
    named = ((decoder_name(name), tensor) for name, tensor in tensors.items())
    return {name: tensor for name, tensor in named if name is not None}
