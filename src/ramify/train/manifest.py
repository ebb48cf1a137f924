"""`manifest.json` of a training run: checksums of what it is made from besides its recipe, and what it is made with.

Weights are read once per process (CRC-32 over all tensors, 2 GB/s on one core if the disk keeps up); time stamps of
files are not trusted. The corpus is identified by the fingerprint of its index.
"""

from collections.abc import Mapping
from typing import Any

from ramify.data.configs import DataFiles
from ramify.modeling.adapter_files import checksums
from ramify.modeling.configs import TrainedModelConfig
from ramify.modeling.numerics import device_name
from ramify.runs.manifest import data_sha256, made_with, model_files


def make_manifest(
    model: TrainedModelConfig, data: DataFiles | None, tokenizer: str, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`made_from` and `made_with`.

    Args:
        model: The recipe's model; its weights are the policy's start and the reference.
        data: Problems, demonstrations or pairs; None: the environment brings the problems.
        tokenizer: Fingerprint of the tokenizer.
        own: What else this kind of training is made from.

    Raises:
        DataError: A file cannot be read.
    """
    made_from = {
        "weights": checksums(model.folder),
        "model": model_files(model.folder),
        "tokenizer": tokenizer,
        "data": None if data is None else {"sha256": data_sha256(data)},
        **(own or {}),
    }
    return {"made_from": made_from, "made_with": [made_with(device_name(model.device))]}
