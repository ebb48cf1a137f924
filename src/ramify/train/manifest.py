"""What a training run is made from beside its recipe, by checksum, and what it is made with: its `manifest.json`.

Weights are read once a process (CRC-32 over all tensors, 2 GB/s on one core where the disk keeps up); a file's time
stamp is not believed. The corpus is known by the fingerprint of its index.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.config.schema_parts import TrainedModelSection
from ramify.config.schema_train import TrainRecipe
from ramify.eval.manifest import problems_sha256, script_sha256
from ramify.modeling.adapter_files import checksums
from ramify.modeling.numerics import device_name
from ramify.obs.manifest import file_sha256, made_with
from ramify.train.rollout import Task


def make_manifest(
    model: TrainedModelSection, data: Path, tokenizer: str, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`made_from` and `made_with`.

    Args:
        model: The recipe's; its weights are where the policy starts, and the reference.
        data: File of problems, demonstrations or pairs.
        tokenizer: Fingerprint.
        own: What else a kind of training is made from.

    Raises:
        DataError: A file cannot be read.
    """
    made_from = {
        "weights": checksums(model.folder),
        "tokenizer": tokenizer,
        "data": {"sha256": file_sha256(data)},
        **(own or {}),
    }
    return {"made_from": made_from, "made_with": [made_with(device_name(model.device))]}


def task_manifest(recipe: TrainRecipe, task: Task, tokenizer: str) -> dict[str, Any]:
    """`make_manifest` with the problems that are left of the data, the tools, the rewards and the script.

    The sandbox's level is noted, not compared: a run may go on on another machine.

    Raises:
        DataError: A file cannot be read.
    """
    levels = {name: identity for name, identity in task.toolbox.identities.items() if name == "python"}
    own = {
        "problems": {"count": len(task.problems), "sha256": problems_sha256(task.problems)},
        "tools": {name: i for name, i in task.toolbox.identities.items() if name not in levels},
        "rewards": dict(task.reward.identities),
        "script": script_sha256(recipe.engine),
    }
    manifest = make_manifest(recipe.model, recipe.data.train, tokenizer, own)
    return {**manifest, "made_with": [{**manifest["made_with"][-1], **levels}]}
