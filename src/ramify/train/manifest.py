"""`manifest.json` of a training run: checksums of what it is made from besides its recipe, and what it is made with.

Weights are read once per process (CRC-32 over all tensors, 2 GB/s on one core if the disk keeps up); time stamps of
files are not trusted. The corpus is identified by the fingerprint of its index.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.modeling.adapter_files import checksums
from ramify.modeling.configs import TrainedModelConfig
from ramify.modeling.numerics import device_name
from ramify.runs.manifest import file_sha256, made_with, model_files
from ramify.sampler.identity import problems_sha256
from ramify.sampler.task import Task


def make_manifest(
    model: TrainedModelConfig, data: Path | None, tokenizer: str, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`made_from` and `made_with`.

    Args:
        model: The recipe's model; its weights are the policy's start and the reference.
        data: File of problems, demonstrations or pairs; None: the environment brings the problems.
        tokenizer: Fingerprint of the tokenizer.
        own: What else this kind of training is made from.

    Raises:
        DataError: A file cannot be read.
    """
    made_from = {
        "weights": checksums(model.folder),
        "model": model_files(model.folder),
        "tokenizer": tokenizer,
        "data": None if data is None else {"sha256": file_sha256(data)},
        **(own or {}),
    }
    return {"made_from": made_from, "made_with": [made_with(device_name(model.device))]}


def task_manifest(
    model: TrainedModelConfig, data: Path | None, task: Task, tokenizer: str, script: str | None
) -> dict[str, Any]:
    """`make_manifest` with the problems that are used, the tools, the rewards and the script.

    The sandbox level is noted, not compared: a run may continue on another machine.

    Raises:
        DataError: A file cannot be read.
    """
    levels = {name: identity for name, identity in task.toolbox.identities.items() if name == "python"}
    own = {
        "problems": {"count": len(task.problems), "sha256": problems_sha256(task.problems)},
        "tools": {name: i for name, i in task.toolbox.identities.items() if name not in levels},
        "rewards": dict(task.reward.identities),
        "rewriters": dict(task.rewriter_files),
        "helper": None if task.repairs is None else task.repairs.sha256,
        "script": script,
    }
    manifest = make_manifest(model, data, tokenizer, own)
    return {**manifest, "made_with": [{**manifest["made_with"][-1], **levels}]}
