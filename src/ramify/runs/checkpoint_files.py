"""The files of checkpoints: where they are, which are kept, and the record that shows whether one is whole.

`state.json` lists every other file of a checkpoint with its size and CRC-32:

    {"schema": 5, "crc32": "...", "state": {...}, "files": {"model.safetensors": {"bytes": 1, "crc32": "..."}}}

The outer checksum covers `state` and `files`. A CRC finds damage by disks, copies and editors. It does not protect
against a malicious folder: all that is read later is checked for itself, and no name in a file may lead out of the folder.
"""

import json
import os
import shutil
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, Reader, count, mapping, one_of, part, text
from ramify.core.protocols import Json
from ramify.files import durable
from ramify.modeling.model_path import checkpoints

SCHEMA = 5
_LAST_READERS = {4: "0.1.0 at commit c7758c3"}
"""The last ramify that goes on from checkpoints of an older schema."""
RECORD = "state.json"
STATE = "state"
"""Folder of the optimizer's files within a checkpoint."""

_CHUNK = 1 << 20
_READ_CONTENT = part(state=part(), files=mapping(part(bytes=count, crc32=text)))


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint after step `step`."""
    return run_dir / "checkpoints" / f"step-{step:06d}"


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Return the checkpoint with the highest step; None when there is none."""
    return next(reversed(checkpoints(run_dir).values()), None)


def prune_checkpoints(run_dir: Path, last: int, keep: Collection[int] = ()) -> None:
    """Delete old checkpoints, and the partial ones that interrupted saves left behind.

    Args:
        run_dir: Folder of the run.
        last: How many checkpoints with the highest steps to keep, at least 1.
        keep: Steps whose checkpoints are kept in any case.
    """
    folders = checkpoints(run_dir)
    steps = {*list(folders)[-last:], *keep}
    # One that somebody reads cannot go yet on some file systems; the next time it is a partial one.
    for partial in (run_dir / "checkpoints").glob(".step-*.partial"):
        with suppress(OSError):
            remove(partial)
    for step, folder in folders.items():
        if step not in steps:
            with suppress(OSError):
                remove(folder.rename(partial_of(folder)))


def advice_on_damaged(folder: Path) -> str:
    """Return what the user can do about a damaged checkpoint that the run would resume from."""
    before = [path.name for path in checkpoints(folder.parent.parent).values() if path.name != folder.name]
    if before:
        return f"delete this folder to go on from {before[-1]}"
    return "there is none before it: put it back from a copy, or name a new run.dir to start again"


def check_model_folder(folder: Path) -> None:
    """If a model's folder is a checkpoint, check that it is complete.

    Raises:
        DataError: It is a checkpoint, and incomplete, damaged or of another schema.
    """
    if (folder / RECORD).is_file():
        advice = "copy it again from where it was made, or name another model.path"
        read_state(folder, advice, only_these=False)


def write_record(folder: Path, state: Mapping[str, Json]) -> None:
    """Write `state.json` for the files that are in `folder`, and before it a `.gitignore` that leaves the run's state out of what is pushed.

    Raises:
        ValueError: A number in `state` is not finite.
    """
    (folder / ".gitignore").write_text(f"{STATE}/\n{RECORD}\n", encoding="ascii")
    files = {
        name: {"bytes": path.stat().st_size, "crc32": _file_crc(path)}
        for name, path in _files(folder).items()
    }
    # Tuples become lists before the checksum is computed, because they are read back as lists.
    content = json.loads(json.dumps({"state": state, "files": files}, allow_nan=False))
    record = {"schema": SCHEMA, "crc32": _content_crc(content), **content}
    (folder / RECORD).write_text(json.dumps(record, indent=2), encoding="ascii")


def read_state(folder: Path, if_damaged: str, *, only_these: bool = True) -> dict[str, Any]:
    """Compare every file of a checkpoint with its record and return its `state`; reads all of them once.

    Call it before anything else is read from the folder.

    Args:
        folder: Folder of the checkpoint.
        if_damaged: Advice for a damaged checkpoint; ends the message.
        only_these: Refuse files that the record does not name, since such a file could decide what is loaded.

    Raises:
        DataError: The record is missing or of another schema; a file is missing or unexpected, or its size or content differs.
    """
    if not (folder / RECORD).is_file():
        raise DataError(
            f"checkpoint {folder}: {RECORD} is missing, so it was never finished or is no checkpoint; {if_damaged}"
        )
    content = _read_content(folder / RECORD, if_damaged)
    expected, files = content["files"], _files(folder)
    for name, entry in expected.items():
        path = files.get(name)
        size = None if path is None else path.stat().st_size
        if path is None or size != entry["bytes"]:
            what = "is missing" if size is None else f"has {size} bytes, expected {entry['bytes']}"
            raise DataError(f"checkpoint {folder}: {name} {what}; it is incomplete, {if_damaged}")
        if (crc := _file_crc(path)) != entry["crc32"]:
            raise DataError(
                f"checkpoint {folder}: {name} has checksum {crc}, expected {entry['crc32']}; it is damaged, {if_damaged}"
            )
    if only_these and (others := files.keys() - expected.keys()):
        raise DataError(f"checkpoint {folder}: {min(others)} is not one of its files; move it away")
    for name in expected:
        if name.endswith(".index.json"):
            # The index of a model in several files must lead to none outside of the checkpoint.
            _read_json(files[name], part(weight_map=mapping(one_of(expected))), if_damaged)
    state: dict[str, Any] = content["state"]
    return state


def _read_content(file: Path, if_damaged: str) -> dict[str, Any]:
    record = _read_json(file, part(), if_damaged)
    if (schema := record.get("schema")) != SCHEMA:
        reader = _LAST_READERS.get(schema) if isinstance(schema, int) else None
        last = f" The last version that goes on from it is {reader}." if reader else ""
        raise DataError(
            f"{file}: a checkpoint of schema {schema!r}, expected {SCHEMA}: it was written by another version of "
            f"ramify.{last} To start from its weights, delete its {RECORD} and name it as model.path of a new run"
        )
    content = {key: record.get(key) for key in ("state", "files")}
    if record.get("crc32") != _content_crc(content):
        raise DataError(f"{file}: its content does not match its checksum; it is damaged, {if_damaged}")
    try:
        return _READ_CONTENT(content)
    except FieldError as error:
        raise DataError(f"{file}: {error}; {if_damaged}") from None


def _read_json(file: Path, read: Reader[dict[str, Any]], if_damaged: str) -> dict[str, Any]:
    try:
        return durable.read_record(file, read)
    except DataError as error:
        raise DataError(f"{error}; {if_damaged}") from None


def _files(folder: Path) -> dict[str, Path]:
    """Return all files except the record, by name within the folder."""
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return {
        p.relative_to(folder).as_posix(): p for p in sorted(paths) if p != folder / RECORD and p.is_file()
    }


def _content_crc(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _file_crc(path: Path) -> str:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return f"{crc:08x}"


def remove(path: Path) -> None:
    """Delete a folder or a file, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def partial_of(folder: Path) -> Path:
    """Return the folder that a checkpoint has while it is written or deleted."""
    return folder.with_name(f".{folder.name}.partial")


def first_line(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"[
        :160
    ]
