"""Checkpoints: a plain model folder, beside it the training state, complete or not there at all.

    step-000120/
        config.json, model.safetensors, tokenizer files    opens in transformers and vLLM as it is
        state/                                              optimizer state (torch.distributed.checkpoint)
        state.json                                          step, policy version, cursor, ..., list of files

A checkpoint is written to a hidden folder beside its place, synced to disk and renamed.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import PreTrainedModel

from ramify.core.errors import DataError, MachineError
from ramify.learner.optimizer import Optimizers
from ramify.modeling.load import save_model

SCHEMA = 1
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
_STEP = re.compile(r"step-(\d+)")


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` optimizer steps lies."""
    return run_dir / "checkpoints" / f"step-{step:06d}"


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint with the highest step; None when there is none."""
    found = _checkpoints(run_dir)
    return found[-1] if found else None


def prune_checkpoints(run_dir: Path, keep: int) -> None:
    """Delete all but the last `keep` >= 1 checkpoints, and what an interrupted save left behind."""
    for folder in _checkpoints(run_dir)[:-keep]:
        shutil.rmtree(folder)
    for partial in (run_dir / "checkpoints").glob(".step-*.partial"):
        shutil.rmtree(partial)


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    optimizers: Optimizers,
    state: Mapping[str, Any],
    tokenizer_dir: Path,
) -> None:
    """Write a checkpoint; `state` is what JSON can hold, and comes back from `load_checkpoint`.

    Raises:
        DataError: `folder` exists.
        MachineError: The files cannot be written.
    """
    if folder.exists():
        raise DataError(f"checkpoint {folder}: exists already, expected a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_model(model, partial)
        with _one_process():
            save(optimizers.state_tensors(), checkpoint_id=partial / "state", no_dist=True)
    except (RuntimeError, SafetensorError) as error:
        shutil.rmtree(partial)
        raise MachineError(
            f"checkpoint {folder}: cannot be written ({_first_line(error)}); is the disk full?"
        ) from error
    for name in _TOKENIZER_FILES:
        if (tokenizer_dir / name).is_file():
            shutil.copyfile(tokenizer_dir / name, partial / name)
    record = {"schema": SCHEMA, "state": dict(state), "files": _sizes(partial)}
    (partial / "state.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
    _sync(partial)
    partial.rename(folder)
    _sync_one(folder.parent)


def load_checkpoint(folder: Path, optimizers: Optimizers) -> dict[str, Any]:
    """Give the optimizers their state back and return the saved `state`.

    The weights are a model folder: open it with `ramify.modeling.load.load_model` first, and make the optimizers
    from that model.

    Raises:
        DataError: The checkpoint is incomplete, of another program or of another model.
    """
    state = read_state(folder)
    try:
        tensors = _read_tensors(folder / "state")
    except (
        CheckpointException,
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        EOFError,
        UnpicklingError,
    ) as error:
        raise DataError(
            f"checkpoint {folder}: its training state is damaged ({_first_line(error)}); delete this folder to go on "
            "from the one before"
        ) from error
    optimizers.load_state_tensors(tensors)
    return state


def _read_tensors(folder: Path) -> dict[str, Any]:
    reader = FileSystemReader(folder)
    tensors: dict[str, Any] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"{name!r} is no tensor")
        tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    with _one_process():
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"[
        :160
    ]


def read_state(folder: Path) -> dict[str, Any]:
    """Check that a checkpoint is complete and return its `state`.

    Raises:
        DataError: `state.json` is missing or not ours, or a file is missing or has another size.
    """
    file = folder / "state.json"
    if not file.is_file():
        raise DataError(f"checkpoint {folder}: state.json is missing")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON ({error})") from error
    ours = isinstance(record, dict) and record.get("schema") == SCHEMA
    if not ours or not {"state", "files"} <= record.keys():
        raise DataError(f"{file}: expected a checkpoint of schema {SCHEMA}")
    sizes = _sizes(folder)
    for name, size in record["files"].items():
        if sizes.get(name) != size:
            raise DataError(
                f"checkpoint {folder}: {name} has {sizes.get(name)} bytes, expected {size}; it is incomplete, delete "
                "this folder to go on from the one before"
            )
    state: dict[str, Any] = record["state"]
    return state


@contextmanager
def _one_process() -> Iterator[None]:
    """Keep torch from warning that there is no process group, which is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _checkpoints(run_dir: Path) -> list[Path]:
    found = [
        (int(match[1]), folder)
        for folder in (run_dir / "checkpoints").glob("step-*")
        if (match := _STEP.fullmatch(folder.name))
    ]
    return [folder for _, folder in sorted(found)]


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "state.json")
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync_one(path)
    _sync_one(folder)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
