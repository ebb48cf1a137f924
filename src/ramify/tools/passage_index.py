"""A BM25 index over a JSONL file of passages, in memory or in a folder, and the search provider `local` that uses it.

A passage is split into words: runs of letters and digits after NFKC and case folding. Queries are split in the same way,
so nothing that a model writes can act as query syntax. A folder is built once, fast to open, and extended when the file
of passages grows:

    lock            held by the process that builds or extends the index
    manifest.json   what is indexed, and in which index folder; replacing this file makes a change take effect
    index-NAME/     files of the index, never changed once the manifest names them

So an interrupted or concurrent build leaves either the old index or the new one.
"""

import asyncio
import fcntl
import importlib
import json
import os
import shutil
import unicodedata
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.protocols import Hit, Json
from ramify.tools.passages import (
    Passage,
    PassageReader,
    Ranked,
    RankedIndex,
    is_text,
    require_passages,
    words,
)

SCHEMA = 1
_MANIFEST, _LOCK, _PREFIX = "manifest.json", "lock", "index-"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index contains, and how it was built.

    Attributes:
        schema: Version of this record and of the index.
        engine: Name and version of the search engine, and the Unicode version used to split words.
        folder: Name of the folder with the index's files.
        files: Their sizes in bytes, by name.
        fingerprint: Fingerprint of the indexed bytes.
        bytes, lines, passages, ends_line: See `PassageReader`.
        stamp: Size and times of the file of passages when its bytes were last compared.
    """

    schema: int
    engine: tuple[str, str, str]
    folder: str
    files: dict[str, int]
    fingerprint: str
    bytes: int
    lines: int
    passages: int
    ends_line: bool
    stamp: tuple[int, int, int]


def open_folder(
    engine: type[RankedIndex], corpus: Path, folder: Path, note: Callable[[str], None]
) -> tuple[RankedIndex, str]:
    """Open the index of `corpus` in `folder`; builds or updates it if needed.

    Args:
        engine: The search engine.
        corpus: JSONL file of passages.
        folder: A folder for this index alone; created if it is missing.
        note: Called with a line for people when something is built.

    Returns:
        The index, and the fingerprint of the corpus.

    Raises:
        DataError: A row is broken; the folder holds something else or a newer ramify's index, or cannot be written.
    """
    require_passages(corpus)
    stamp = _stamp(corpus)
    manifest, _ = _read_manifest(folder, engine)
    if manifest is not None and manifest.stamp == stamp:
        index, _ = _open(engine, folder, manifest)
        if index is not None:
            return index, manifest.fingerprint
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return _bring_up_to_date(engine, corpus, folder, note)
    except engine.BROKEN as error:
        raise DataError(
            f"{folder}: the index cannot be written ({error}); expected a folder with room for it"
        ) from None


def _bring_up_to_date(
    engine: type[RankedIndex], corpus: Path, folder: Path, note: Callable[[str], None]
) -> tuple[RankedIndex, str]:
    """Build or update while holding the lock; another process may have done the work in the meantime."""
    stamp = _stamp(corpus)
    manifest, why = _read_manifest(folder, engine)
    index: RankedIndex | None = None
    if manifest is not None:
        index, why = _open(engine, folder, manifest)
    if index is None or manifest is None:
        note(f"{corpus}: building a search index in {folder}{why}")
        return _write(engine, PassageReader(corpus), folder, None, stamp)
    if manifest.stamp == stamp:
        return index, manifest.fingerprint
    reader = PassageReader(corpus)
    reader.skip(manifest.bytes, manifest.lines, manifest.passages)
    if reader.fingerprint != manifest.fingerprint or not reader.continues():
        index.close()
        note(f"{corpus}: has changed; building its search index in {folder} anew")
        return _write(engine, PassageReader(corpus), folder, None, stamp)
    if reader.bytes == stamp[0]:
        _write_manifest(folder, {**asdict(manifest), "stamp": stamp})
        return index, manifest.fingerprint
    index.close()
    note(f"{corpus}: has grown; adding to its search index in {folder}")
    return _write(engine, reader, folder, folder / manifest.folder, stamp)


def _write(
    engine: type[RankedIndex],
    reader: PassageReader,
    folder: Path,
    old: Path | None,
    stamp: tuple[int, int, int],
) -> tuple[RankedIndex, str]:
    """Index the remaining rows of `reader` in a new folder (on top of a copy of `old`, if given), and switch to it."""
    for left in folder.glob(f"{_PREFIX}*"):
        if left != old:
            shutil.rmtree(left)
    new = folder / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    rest = stamp[0] - reader.bytes
    try:
        if old is None:
            new.mkdir()
            index = engine.create(new, reader.rows(), rest)
        else:
            shutil.copytree(old, new, copy_function=engine.copy_file)
            index = engine.extend(new, reader.rows(), rest)
        if not len(index):
            raise DataError(f"{reader.path}: empty; expected one passage a line")
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    files = {file.name: file.stat().st_size for file in new.iterdir() if not file.name.endswith(".lock")}
    manifest = Manifest(
        SCHEMA,
        _made_with(engine),
        new.name,
        files,
        reader.fingerprint,
        reader.bytes,
        reader.lines,
        reader.passages,
        reader.ends_line,
        stamp,
    )
    _write_manifest(folder, asdict(manifest))
    if old is not None:
        shutil.rmtree(old)
    return index, manifest.fingerprint


def _open(engine: type[RankedIndex], folder: Path, manifest: Manifest) -> tuple[RankedIndex | None, str]:
    """(index that the manifest names, ""), or (None, the reason why it must be rebuilt)."""
    files = folder / manifest.folder
    try:
        for name, size in manifest.files.items():
            if (files / name).stat().st_size != size:
                return None, f" anew: {name} in it was cut or changed"
        index = engine.open(files)
    except engine.BROKEN as error:
        return None, f" anew: it is damaged ({error})"
    if len(index) != manifest.passages:
        index.close()
        return None, f" anew: {len(index)} of {manifest.passages} passages are in it"
    return index, ""


def _read_manifest(folder: Path, engine: type[RankedIndex]) -> tuple[Manifest | None, str]:
    """(manifest of a usable index, ""), or (None, the reason why it must be rebuilt).

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
        raise DataError(f"{folder}: expected a folder for a search index, found a file") from None
    except Exception:  # noqa: BLE001 - anyone may have written the file
        return None, f" anew: {_MANIFEST} in it is damaged"
    if isinstance(schema, int) and schema > SCHEMA:
        raise DataError(
            f"{folder}: a search index with schema {schema}, this ramify reads up to {SCHEMA}; "
            "update ramify, or delete the folder"
        )
    if schema != SCHEMA:
        return None, f" anew: it has schema {schema}, this ramify writes {SCHEMA}"
    try:
        manifest = Manifest(**{**record, "engine": tuple(record["engine"]), "stamp": tuple(record["stamp"])})
        names = (manifest.folder.removeprefix(_PREFIX), *manifest.files)
        if not manifest.folder.startswith(_PREFIX) or any(Path(name).name != name for name in names):
            raise ValueError("names that lead elsewhere")
    except Exception:  # noqa: BLE001 - as above
        return None, f" anew: {_MANIFEST} in it is damaged"
    if manifest.engine != _made_with(engine):
        return None, f" anew: it was made with {' '.join(manifest.engine[:2])}"
    return manifest, ""


def _refuse_foreign(folder: Path) -> None:
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name != _LOCK and not entry.name.startswith((_PREFIX, _MANIFEST)):
                raise DataError(f"{folder}: holds {entry.name}; expected a search index or an empty folder")


def _made_with(engine: type[RankedIndex]) -> tuple[str, str, str]:
    return (engine.NAME, engine.VERSION, unicodedata.unidata_version)


def _stamp(corpus: Path) -> tuple[int, int, int]:
    status = corpus.stat()
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _write_manifest(folder: Path, record: dict[str, object]) -> None:
    unfinished = folder / f"{_MANIFEST}.part"
    with unfinished.open("w", encoding="ascii") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / _MANIFEST)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


MEMORY_BYTES = 32_000_000
"""Files up to this size are indexed in memory, which takes seconds, unless a folder is named."""


class PassageIndex:
    """Ranks passages for a query. An open index never changes.

    Attributes:
        fingerprint: Hash of the file's bytes.
        engine: The search engine: "tantivy", or "sqlite" if tantivy is not installed.
    """

    def __init__(self, ranked: RankedIndex, fingerprint: str) -> None:
        self._ranked = ranked
        self.fingerprint = fingerprint
        self.engine = ranked.NAME

    @classmethod
    def build(cls, path: Path, engine: type[RankedIndex] | None = None) -> "PassageIndex":
        """Read `path` and index it in memory.

        Args:
            path: A line is {"text" or "contents", "id"?, "title"?, "collection"?}.
            engine: The search engine; None: tantivy if it is installed, else SQLite.

        Raises:
            DataError: The file is missing or empty, or a line is broken.
        """
        reader = PassageReader(path)
        ranked = (engine or _engine()).create(None, reader.rows(), path.stat().st_size)
        if not len(ranked):
            raise DataError(f"{path}: empty; expected one passage a line")
        return cls(ranked, reader.fingerprint)

    @classmethod
    def open(
        cls,
        path: Path,
        folder: Path | None = None,
        *,
        note: Callable[[str], None] = lambda _: None,
        engine: type[RankedIndex] | None = None,
    ) -> "PassageIndex":
        """Open the index of `path` in a folder, building it if needed; a small file is indexed in memory.

        Args:
            path: As in `build`.
            folder: Where to keep the index; None: in memory up to `MEMORY_BYTES`, else in "PATH.index".
            note: Called with a line for people when something is built.
            engine: As in `build`.

        Raises:
            DataError: As in `build`; or the folder holds something else, a newer ramify's index, or cannot be written.
        """
        if folder is None:
            if not path.is_file() or path.stat().st_size <= MEMORY_BYTES:
                return cls.build(path, engine)
            folder = path.with_name(path.name + ".index")
        ranked, fingerprint = open_folder(engine or _engine(), path, folder, note)
        return cls(ranked, fingerprint)

    def __len__(self) -> int:
        return len(self._ranked)

    def search(self, query: str, top_k: int, collection: str | None = None) -> tuple[Passage, ...]:
        """The `top_k` best passages that share a word with `query`, best first; ties in file order.

        Each distinct word of the query counts once. `collection` restricts the passages, but does not change scores.
        """
        return tuple(passage for _, passage in self.ranked(query, top_k, collection))

    def ranked(self, query: str, top_k: int, collection: str | None = None) -> tuple[Ranked, ...]:
        """As `search`, but each passage with its score."""
        asked = tuple(dict.fromkeys(words(query)))
        # A collection name with a lone surrogate matches no passage, and no engine accepts it.
        if not asked or not is_text(collection or ""):
            return ()
        return self._ranked.search(asked, top_k, collection)

    def close(self) -> None:
        """Close files; closing twice is allowed."""
        self._ranked.close()


def check_passages(path: Path, folder: Path | None) -> None:
    """Read the passages that `PassageIndex.open` would index, and build nothing; an index that is up to date is trusted.

    Raises:
        DataError: As for `PassageIndex.open`.
    """
    require_passages(path)
    if folder is None and path.stat().st_size > MEMORY_BYTES:
        folder = path.with_name(path.name + ".index")
    if folder is not None:
        manifest, _ = _read_manifest(folder, _engine())
        if manifest is not None and manifest.stamp == _stamp(path):
            return
    if not sum(1 for _ in PassageReader(path).rows()):
        raise DataError(f"{path}: empty; expected one passage a line")


def _engine() -> type[RankedIndex]:
    try:
        module: Any = importlib.import_module("ramify.tools.index_tantivy")
    except ImportError:
        module = importlib.import_module("ramify.tools.index_sqlite")
        engine: type[RankedIndex] = module.SqliteIndex
        return engine
    engine = module.TantivyIndex
    return engine


class LocalSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a passage index, which it closes."""

    name = "local"

    def __init__(self, index: PassageIndex) -> None:
        self._index = index
        self.identity: Mapping[str, Json] = {"corpus": index.fingerprint, "engine": index.engine}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """At most `top_k` passages. The search runs in a thread, since a long query takes a while."""
        found = await asyncio.to_thread(self._index.search, query, top_k, collection)
        return [Hit(passage.id, passage.text) for passage in found]

    async def close(self) -> None:
        """Close files."""
        self._index.close()
