"""Passage indexes in folders: built once, fast to open, and built again when the file of passages changes.

    lock            held by the process that builds the index
    manifest.json   what is indexed, and in which index folder; replacing this file makes a change take effect
    index-NAME/     files of the index, never changed once the manifest names them

So an interrupted or concurrent build leaves either the old index or the new one.
"""

import fcntl
import json
import os
import shutil
import time
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tantivy

from ramify.core.errors import DataError
from ramify.runtime.progress import ProgressNotes
from ramify.tools.passage_index import (
    BROKEN,
    ENGINE,
    VERSION,
    PassageIndex,
    PassageReader,
    PassageRow,
    add_rows,
    fingerprint,
    new_index,
    require_passages,
)

MEMORY_BYTES = 32_000_000
"""Files up to this size are indexed in memory, which takes seconds, unless a folder is named."""
SCHEMA = 2
_BUILT_WITH = (ENGINE, VERSION, unicodedata.unidata_version)
_MANIFEST, _LOCK, _PREFIX = "manifest.json", "lock", "index-"
_REMOVALS, _PAUSE_SECONDS = 20, 0.05
"""Then a folder is left, which the next build removes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of an index, and the versions that built it.

    Attributes:
        schema: Version of this record and of the index.
        engine: Name and version of the search engine, and the Unicode version used to split words.
        folder: Name of the folder with the index's files.
        files: Their sizes in bytes, by name.
        fingerprint: Fingerprint of the indexed bytes.
        passages: Their number.
        stamp: Size and times of the file of passages when its bytes were last compared.
    """

    schema: int
    engine: tuple[str, str, str]
    folder: str
    files: dict[str, int]
    fingerprint: str
    passages: int
    stamp: tuple[int, int, int]


def open_index(
    path: Path, folder: Path | None = None, *, note: Callable[[str], None] = lambda _: None
) -> PassageIndex:
    """Open the index of `path` in a folder, building it if needed; a small file is indexed in memory.

    Args:
        path: As for `PassageIndex.build`.
        folder: A folder for this index alone, created if it is missing; None: in memory up to `MEMORY_BYTES`, else
            "PATH.index".
        note: Called with a line for the user when something is built.

    Raises:
        DataError: As in `PassageIndex.build`; or the folder holds something else, a newer ramify's index, or cannot be
            written.
    """
    require_passages(path)
    folder = folder or _default_folder(path)
    if folder is None:
        return PassageIndex.build(path)
    manifest, _ = _read_manifest(folder)
    if manifest is not None and manifest.stamp == _stamp(path):
        index, _ = _open(folder, manifest)
        if index is not None:
            return index
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, note):
            return _bring_up_to_date(path, folder, note)
    except BROKEN as error:
        raise DataError(
            f"{folder}: the index cannot be written ({error}). Choose a folder with room for it."
        ) from None


def check_passages(path: Path, folder: Path | None) -> None:
    """Read the passages that `open_index` would index, and build nothing; an index that is up to date is trusted.

    Raises:
        DataError: As for `open_index`.
    """
    require_passages(path)
    folder = folder or _default_folder(path)
    if folder is not None:
        manifest, _ = _read_manifest(folder)
        if manifest is not None and manifest.stamp == _stamp(path):
            return
    if not sum(1 for _ in PassageReader(path).rows()):
        raise DataError(f"{path}: empty. Expected one passage per line.")


def _default_folder(path: Path) -> Path | None:
    return path.with_name(path.name + ".index") if path.stat().st_size > MEMORY_BYTES else None


def _bring_up_to_date(path: Path, folder: Path, note: Callable[[str], None]) -> PassageIndex:
    """Build while holding the lock; another process may have done the work in the meantime."""
    stamp = _stamp(path)
    manifest, why = _read_manifest(folder)
    index: PassageIndex | None = None
    if manifest is not None:
        index, why = _open(folder, manifest)
    if index is None or manifest is None:
        note(f"{path}: building a search index in {folder}{why}")
        return _write(PassageReader(path), folder, stamp, note)
    if manifest.stamp == stamp:
        return index
    if manifest.fingerprint == fingerprint(path):
        _write_manifest(folder, replace(manifest, stamp=stamp))
        return index
    note(f"{path}: has changed. Rebuilding its search index in {folder}")
    return _write(PassageReader(path), folder, stamp, note)


def _write(
    reader: PassageReader,
    folder: Path,
    stamp: tuple[int, int, int],
    note: Callable[[str], None],
) -> PassageIndex:
    """Index the rows of `reader` in a new folder, and switch to it; what was there goes, an open index of it works on."""
    before = list(folder.glob(f"{_PREFIX}*"))
    new = folder / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        new.mkdir()
        files = new_index(new)
        add_rows(files, _with_progress(reader, stamp[0], note), stamp[0])
        index = PassageIndex.of_rows(files, reader)
    except BaseException:
        _remove(new)
        raise
    manifest = Manifest(
        SCHEMA,
        _BUILT_WITH,
        new.name,
        {file.name: file.stat().st_size for file in new.iterdir() if not file.name.endswith(".lock")},
        reader.fingerprint,
        reader.passages,
        stamp,
    )
    _write_manifest(folder, manifest)
    for left in before:
        _remove(left)
    return index


def _remove(index: Path) -> None:
    """Delete the folder of an index. Threads of tantivy, of any process that has it open, may write a lock meanwhile."""
    for _ in range(_REMOVALS):
        shutil.rmtree(index, ignore_errors=True)
        if not index.exists():
            return
        time.sleep(_PAUSE_SECONDS)


def _with_progress(reader: PassageReader, size: int, note: Callable[[str], None]) -> Iterator[PassageRow]:
    progress = ProgressNotes(note, f"{reader.path}: index", size)
    for row in reader.rows():
        progress.reach(reader.bytes)
        yield row


def _open(folder: Path, manifest: Manifest) -> tuple[PassageIndex | None, str]:
    """Return (index that the manifest names, ""), or (None, the reason why it must be rebuilt)."""
    files = folder / manifest.folder
    try:
        for name, size in manifest.files.items():
            if (files / name).stat().st_size != size:
                return None, f" again: {name} in it was cut or changed"
        index = PassageIndex(tantivy.Index.open(str(files)), manifest.fingerprint)
    except BROKEN as error:
        return None, f" again: it is damaged ({error})"
    if len(index) != manifest.passages:
        return None, f" again: {len(index)} of {manifest.passages} passages are in it"
    return index, ""


def _read_manifest(folder: Path) -> tuple[Manifest | None, str]:
    """Return (manifest of a usable index, ""), or (None, the reason why it must be rebuilt).

    Raises:
        DataError: The folder holds something else, or the index of a newer ramify.
    """
    try:
        record = json.loads((folder / _MANIFEST).read_bytes())
        schema = record["schema"]
    except FileNotFoundError:
        _refuse_foreign(folder)
        return None, ""
    except NotADirectoryError:
        raise DataError(f"{folder}: expected a folder for a search index, got a file") from None
    except Exception:  # noqa: BLE001 - anyone may have written the file
        return None, f" again: {_MANIFEST} in it is damaged"
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(
            f"{folder}: a search index with schema {schema}, this ramify reads up to {SCHEMA}. "
            "Update ramify or delete the folder."
        )
    if schema != SCHEMA:
        return None, f" again: it has schema {schema}, this ramify writes {SCHEMA}"
    try:
        manifest = Manifest(**{**record, "engine": tuple(record["engine"]), "stamp": tuple(record["stamp"])})
        names = (manifest.folder.removeprefix(_PREFIX), *manifest.files)
        if not manifest.folder.startswith(_PREFIX) or any(Path(name).name != name for name in names):
            raise ValueError("names that lead elsewhere")
    except Exception:  # noqa: BLE001 - as above
        return None, f" again: {_MANIFEST} in it is damaged"
    if manifest.engine != _BUILT_WITH:
        return None, f" again: it was built with {' '.join(manifest.engine[:2])}"
    return manifest, ""


def _refuse_foreign(folder: Path) -> None:
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name != _LOCK and not entry.name.startswith((_PREFIX, _MANIFEST)):
                raise DataError(f"{folder}: holds {entry.name}. Choose a search index or an empty folder.")


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    unfinished = folder / f"{_MANIFEST}.part"
    with unfinished.open("w", encoding="ascii") as file:
        json.dump(asdict(manifest), file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / _MANIFEST)


@contextmanager
def _locked(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"{folder}: another process works on the search index. Waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
