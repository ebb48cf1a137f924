"""The record of a checkpoint, `state.json`, which lists every other file with its size and CRC-32.

    {"schema": 4, "crc32": "...", "state": {...}, "files": {"model.safetensors": {"bytes": 1, "crc32": "..."}}}

The outer checksum covers `state` and `files`. A CRC finds damage by disks, copies and editors. It does not protect
against a malicious folder: all that is read later is checked for itself, and no name in a file may lead out of the folder.
"""

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_DEPTH, parse_json
from ramify.core.protocols import Json
from ramify.files.untrusted import read_small_file

SCHEMA = 4
RECORD = "state.json"
STATE = "state"
"""Folder of the optimizer's files within a checkpoint."""

_CHUNK = 1 << 20


def write_record(folder: Path, state: Mapping[str, Json]) -> None:
    """Write `state.json` for the files that are in `folder`.

    Raises:
        ValueError: A number in `state` is not finite.
    """
    files = {
        name: {"bytes": path.stat().st_size, "crc32": _file_crc(path)}
        for name, path in _files(folder).items()
    }
    # Tuples become lists before the checksum is computed, because they are read back as lists.
    content = json.loads(json.dumps({"state": state, "files": files}, allow_nan=False))
    record = {"schema": SCHEMA, "crc32": _content_crc(content), **content}
    (folder / RECORD).write_text(json.dumps(record, indent=2), encoding="ascii")


def read_record(folder: Path, if_damaged: str) -> dict[str, Any]:
    """The `state` of a checkpoint, from its `state.json` alone; `check_files` checks the rest.

    Args:
        folder: Folder of the checkpoint.
        if_damaged: Advice for a damaged checkpoint; ends the message.

    Raises:
        DataError: The file is missing, damaged or of another schema.
    """
    file = folder / RECORD
    if not file.is_file():
        raise DataError(
            f"checkpoint {folder}: {RECORD} is missing, so it was never finished or is no checkpoint; {if_damaged}"
        )
    return _state_and_files(file, if_damaged)[0]


def check_files(folder: Path, if_damaged: str, *, only_these: bool = True) -> None:
    """Compare every file of a checkpoint with its record; reads all of them once.

    Args:
        folder: Folder of the checkpoint.
        if_damaged: Advice for a damaged checkpoint; ends the message.
        only_these: Refuse files that the record does not name, since such a file could decide what is loaded.

    Raises:
        DataError: A file is missing or unexpected, or its size or content differs.
    """
    expected, found = _state_and_files(folder / RECORD, if_damaged)[1], _files(folder)
    for name, entry in expected.items():
        path = found.get(name)
        size = None if path is None else path.stat().st_size
        if path is None or size != entry["bytes"]:
            what = "is missing" if size is None else f"has {size} bytes, expected {entry['bytes']}"
            raise DataError(f"checkpoint {folder}: {name} {what}; it is incomplete, {if_damaged}")
        if (crc := _file_crc(path)) != entry["crc32"]:
            raise DataError(
                f"checkpoint {folder}: {name} has checksum {crc}, expected {entry['crc32']}; it is damaged, {if_damaged}"
            )
    if only_these and (others := found.keys() - expected.keys()):
        raise DataError(f"checkpoint {folder}: {min(others)} is not one of its files; move it away")
    for name in expected:
        if name.endswith(".index.json"):
            _check_index(found[name], expected, if_damaged)


def _state_and_files(file: Path, if_damaged: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    record = _read_json(file, if_damaged)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else None
        raise DataError(
            f"{file}: a checkpoint of schema {found!r}, expected {SCHEMA}; it was written by another version of "
            f"ramify: delete its {RECORD} and name it as model.path of a new run to start from its weights"
        )
    content = {key: record.get(key) for key in ("state", "files")}
    if record.get("crc32") != _content_crc(content):
        raise DataError(f"{file}: its content does not match its checksum; it is damaged, {if_damaged}")
    state, files = content["state"], content["files"]
    if not isinstance(state, dict) or not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise DataError(f"{file}: expected a state, and files with bytes and crc32; {if_damaged}")
    return state, files


def _read_json(file: Path, if_damaged: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return parse_json(read_small_file(file), max_depth=2 * MAX_DEPTH)
    except DataError as error:
        raise DataError(f"{error}; {if_damaged}") from None
    except ValueError as error:
        raise DataError(f"{file}: not valid JSON ({error}); {if_damaged}") from None


def _check_index(file: Path, names: Mapping[str, Any], if_damaged: str) -> None:
    """Check that the index of a model in several files names only files of the checkpoint.

    Raises:
        DataError: It names others.
    """
    record = _read_json(file, if_damaged)
    places = record.get("weight_map") if isinstance(record, dict) else None
    if not isinstance(places, dict) or not all(isinstance(p, str) and p in names for p in places.values()):
        raise DataError(
            f"{file}: expected the name of one of the checkpoint's files for each weight; {if_damaged}"
        )


def _files(folder: Path) -> dict[str, Path]:
    """All files except the record, by name within the folder."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {
        p.relative_to(folder).as_posix(): p for p in sorted(found) if p != folder / RECORD and p.is_file()
    }


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("crc32"), str)
    )


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
    """Where a checkpoint is while it is written or deleted."""
    return folder.with_name(f".{folder.name}.partial")


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason'}"[
        :160
    ]
