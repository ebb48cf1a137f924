"""Checkpoints: a plain model folder with the training state beside it; a checkpoint is complete or absent.

    step-000120/
        config.json, model.safetensors, tokenizer files    opens in transformers and vLLM as it is
        state/optimizer.safetensors                         optimizer state, "kind.parameter name"; one file a rank
        state.json                                          step, cursor, score, ..., every file with its checksum

A model with an adapter is a peft folder instead (`modeling.lora`). A checkpoint is written to a hidden folder beside
its place, synced to disk and renamed; to delete one, it is renamed first. Each rank writes its part of the optimizer state
(`optimizer_files`), so all must see the run's folder; rank 0 writes the rest. The optimizer state is in `state/` because
vLLM loads every safetensors file beside `config.json`.
"""

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError, MachineError, TrainingError
from ramify.files.untrusted import read_small_file
from ramify.learner.update import Learner
from ramify.modeling.load import save_model, saved_parameters
from ramify.modeling.run_models import checkpoints
from ramify.runs.checkpoint_files import (
    RECORD,
    STATE,
    check_files,
    first_line,
    partial_of,
    read_record,
    remove,
)
from ramify.runs.checkpoint_writer import GENERATION_FILE, write_companions

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
)


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Folder of the checkpoint after step `step`."""
    return run_dir / "checkpoints" / f"step-{step:06d}"


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint with the highest step; None when there is none."""
    return next(reversed(checkpoints(run_dir).values()), None)


def advice_on_damaged(folder: Path) -> str:
    """What the user can do about a damaged checkpoint that the run would resume from."""
    before = [path.name for path in checkpoints(folder.parent.parent).values() if path.name != folder.name]
    if before:
        return f"delete this folder to go on from {before[-1]}"
    return "there is none before it: put it back from a copy, or name a new run.dir to start again"


def prune_checkpoints(run_dir: Path, last: int, keep: Collection[int] = ()) -> None:
    """Delete old checkpoints, and the partial ones that interrupted saves left behind.

    Args:
        run_dir: Folder of the run.
        last: How many checkpoints with the highest steps to keep, at least 1.
        keep: Steps whose checkpoints are kept in any case.
    """
    folders = checkpoints(run_dir)
    kept = {*list(folders)[-last:], *keep}
    for partial in (run_dir / "checkpoints").glob(".step-*.partial"):
        remove(partial)
    for step, folder in folders.items():
        if step not in kept:
            partial = partial_of(folder)
            remove(folder.rename(partial))


def companion_files(model_path: Path) -> dict[str, bytes]:
    """Files that a checkpoint copies unchanged from the recipe's model: the tokenizer and the generation defaults.

    Raises:
        DataError: A file cannot be read.
    """
    names = [name for name in (*_TOKENIZER_FILES, GENERATION_FILE) if (model_path / name).is_file()]
    return {name: read_small_file(model_path / name) for name in names}


def check_saving(run_dir: Path, learner: Learner, companions: Mapping[str, bytes]) -> None:
    """Check before the first step that a checkpoint can be written.

    Writes everything but the tensors into a folder of `run_dir` and removes it again; for the tensors it checks the free
    space.

    Raises:
        MachineError: There is too little space for one checkpoint.
        TrainingError: The disk cannot be written.
        DataError: transformers or peft refuses to save the model.
    """
    model, optimizers = learner.model, learner.optimizers
    weights = sum(p.numel() * p.element_size() for _, p in saved_parameters(model))
    needed = weights + optimizers.state_bytes() + sum(map(len, companions.values()))
    free = shutil.disk_usage(run_dir).free
    if needed > free:
        raise MachineError(
            f"run.dir: {run_dir} has room for {free / 1e9:.3g} GB, one checkpoint takes {needed / 1e9:.3g} GB; make room or "
            "name another disk"
        )
    scratch = run_dir / ".checkpoint.part"
    try:
        remove(scratch)
        scratch.mkdir()
        save_model(model, scratch, weights=False)
        write_companions(scratch, model, companions)
    except OSError as error:
        raise TrainingError(f"{error.filename or scratch}: cannot be written: {error.strerror}") from error
    except Exception as error:
        raise DataError(
            f"model.path: a checkpoint of this model cannot be saved: {first_line(error)}"
        ) from error
    finally:
        with suppress(OSError):
            remove(scratch)


def read_state(folder: Path, if_damaged: str) -> dict[str, Any]:
    """Check every file of a checkpoint and return its `state`. Call it before you read anything else from the folder.

    Args:
        folder: Folder of the checkpoint.
        if_damaged: Advice for a damaged checkpoint; ends the message.

    Raises:
        DataError: The checkpoint is incomplete, damaged or of another schema.
    """
    state = read_record(folder, if_damaged)
    check_files(folder, if_damaged)
    return state


def check_model_folder(folder: Path) -> None:
    """If a model's folder is a checkpoint, check that it is complete.

    Raises:
        DataError: It is a checkpoint, and incomplete, damaged or of another schema.
    """
    if (folder / RECORD).is_file():
        check_files(
            folder, "copy it again from where it was made, or name another model.path", only_these=False
        )


def load_state(folder: Path, learner: Learner, if_damaged: str) -> None:
    """Load the optimizer state of a checkpoint, whatever number of ranks wrote it.

    Args:
        folder: Folder of the checkpoint.
        learner: Has the weights of the checkpoint.
        if_damaged: Advice for a damaged checkpoint; ends the message.

    Raises:
        DataError: The state cannot be read, or belongs to another model.
    """
    learner.ranks.all("load_state", folder / STATE, if_damaged)


def load_weights(folder: Path, learner: Learner) -> None:
    """Copy the trained weights of a checkpoint into a learner's model of the same shape, in place.

    Raises:
        DataError: The weights cannot be read, or belong to another model.
    """
    learner.ranks.all("load_weights", folder)
