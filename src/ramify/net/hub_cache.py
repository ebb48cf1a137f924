"""The cache of the Hugging Face hub on this machine, in huggingface_hub's layout, so that each uses what the other fetched.

    models--ORG--NAME/blobs/HASH                      contents; HASH is the SHA-256 of a large file, else git's SHA-1
    models--ORG--NAME/snapshots/COMMIT/PATH           links to them
    models--ORG--NAME/refs/REVISION                   the commit that a branch or tag had when it was last fetched

A content gets its name under `blobs` once its size and hash are those of the hub's listing. No name here comes from a server
unless it was checked: a commit and a hash are hexadecimal digits, a path stays inside its snapshot.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, TypeAlias

from ramify.core.errors import DataError
from ramify.net.failures import FailureKind, RequestFailedError

RepoKind: TypeAlias = Literal["model", "dataset"]

_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 1024, 255
_MAX_SIZE = 2**50
_PART = ".ramify-part"
"""Suffix of an unfinished content."""


def hub_cache() -> Path:
    """Return the folder of the cache, where huggingface_hub has it."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def is_commit(text: object) -> bool:
    """Return True for a whole commit hash."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A repository at a revision: a branch, a tag or a commit; None stands for "main"."""

    kind: RepoKind
    name: str
    revision: str | None = None

    @property
    def ref(self) -> str:
        """The revision's name."""
        return self.revision or "main"

    def folder(self, cache: Path) -> Path:
        """Return the repository's folder in the cache.

        Raises:
            DataError: The name or the revision would lead out of it.
        """
        parts = [*self.name.split("/"), *self.ref.split("/")]
        if any(part in ("", ".", "..") for part in parts):
            raise DataError(f"{self.name}@{self.ref}: no name of a repository and its revision")
        return cache / f"{self.kind}s--{self.name.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of the hub's listing; `hash` is the SHA-256 of its content, or git's SHA-1 if that has 40 digits."""

    path: str
    size: int
    hash: str

    @classmethod
    def of_listing(cls, path: str, entry: Mapping[str, object]) -> "HubFile":
        """Check an entry of a listing.

        Raises:
            ValueError: The path leads out of its folder, or size or hash is missing or invalid; says which.
        """
        if not _stays_inside(path):
            raise ValueError(f"lists {path!r:.100}, which is no path inside a repository")
        large = entry.get("lfs")
        size, digest = entry.get("size"), entry.get("blobId")
        pattern = _COMMIT
        if large is not None:
            digest, pattern = large.get("sha256") if isinstance(large, Mapping) else None, _SHA256
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
            raise ValueError(f"lists {path} with the size {size!r:.40}")
        if not isinstance(digest, str) or not pattern.fullmatch(digest):
            raise ValueError(f"lists {path} with the hash {digest!r:.80}, expected a SHA-1 or SHA-256")
        return cls(path, size, digest)


def content_hash(content: Path, digits: int) -> str:
    """Return the hash of a file's content as the hub lists it: SHA-256, or for 40 digits the SHA-1 of a git blob."""
    if digits == 64:
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha1(b"blob %d\0" % content.stat().st_size, usedforsecurity=False)
    with content.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _stays_inside(path: str) -> bool:
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return False
    parts = path.split("/")
    return (
        len(encoded) <= _MAX_PATH_BYTES
        and path.isprintable()
        and "\\" not in path
        and not any(part in ("", ".", "..") or len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    )


def cached_snapshot(cache: Path, repo: HubRepo) -> Path | None:
    """Return the folder of a revision that was fetched before, perhaps not with all of its files; else None."""
    folder = repo.folder(cache)
    commit = repo.ref
    if not is_commit(commit):
        try:
            with (folder / "refs" / commit).open("rb") as file:
                commit = file.read(100).decode("ascii").strip()
        except (OSError, ValueError):
            return None
    snapshot = folder / "snapshots" / commit
    return snapshot if is_commit(commit) and snapshot.is_dir() else None


def record_ref(folder: Path, ref: str, commit: str) -> None:
    """Record the commit of a branch or tag.

    Raises:
        OSError: The cache cannot be written.
    """
    path = folder / "refs" / ref
    if is_commit(ref) or (path.is_file() and path.read_bytes() == commit.encode()):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(commit, encoding="ascii")
    new.replace(path)


def missing(snapshot: Path, file: HubFile) -> bool:
    """Return True unless the snapshot has the file with the listed size; its hash was checked after the download."""
    content = snapshot / file.path
    return not (content.is_file() and content.stat().st_size == file.size)


def link(folder: Path, snapshot: Path, file: HubFile) -> None:
    """Link a content into the snapshot.

    Raises:
        OSError: The cache cannot be written.
    """
    blob, pointer = folder / "blobs" / file.hash, snapshot / PurePosixPath(file.path)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    new = pointer.with_name(f".{file.hash}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    try:
        new.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        os.link(blob, new)  # a disk without symbolic links
    new.replace(pointer)


def is_intact(pointer: Path) -> bool:
    """Return True unless a file of a snapshot links to a content whose name is another hash than its own."""
    digest = pointer.resolve().name
    return not (_COMMIT.fullmatch(digest) or _SHA256.fullmatch(digest)) or digest == content_hash(
        pointer, len(digest)
    )


def forget(pointer: Path) -> None:
    """Remove a file of a snapshot and its content, so that it is fetched again."""
    content = pointer.resolve()
    pointer.unlink()
    if content != pointer and content.parent.name == "blobs":
        content.unlink(missing_ok=True)


class PartialContent:
    """Implements `ramify.net.client.Sink`: a content that grows in a file, and continues an earlier download."""

    def __init__(self, file: BinaryIO, listed: HubFile, reach: Callable[[int], None]) -> None:
        self._file, self._listed, self._reach = file, listed, reach
        self.max_bytes = listed.size
        if self.size > listed.size:
            file.truncate(0)

    @property
    def size(self) -> int:
        """Bytes received."""
        return self._file.seek(0, os.SEEK_END)

    def headers(self) -> Mapping[str, str]:
        """Return the range that is missing."""
        return {"range": f"bytes={self.size}-"} if 0 < self.size < self._listed.size else {}

    def begin(self, status: int) -> None:
        """Start again unless the server answers with the rest (206)."""
        if status != 206:
            self._file.truncate(0)

    def write(self, chunk: bytes) -> None:
        """Append bytes.

        Raises:
            RequestFailedError: TOO_LARGE; there are more than the listing says.
        """
        if self.size + len(chunk) > self._listed.size:
            detail = f"{self._listed.path}: more than the {self._listed.size} bytes of the listing"
            raise RequestFailedError(FailureKind.TOO_LARGE, detail)
        self._file.write(chunk)
        self._reach(self.size)

    def restart(self) -> None:
        """Drop the received bytes."""
        self._file.truncate(0)

    def is_whole(self) -> bool:
        """Return True if the content has the listed size and hash; it is then on the disk too."""
        if self.size != self._listed.size:
            return False
        os.fsync(self._file.fileno())
        return content_hash(Path(self._file.name), len(self._listed.hash)) == self._listed.hash


@contextmanager
def partial_content(
    blob: Path, listed: HubFile, reach: Callable[[int], None]
) -> Iterator[PartialContent | None]:
    """Open the unfinished content for this process alone; None if another process has finished it meanwhile.

    `reach` gets the bytes that are there, whenever there are more.

    Raises:
        OSError: The cache cannot be written.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(blob.name + _PART)
    while True:
        with part.open("a+b") as file:
            with suppress(OSError):  # a disk without locks: the hash shows whether two processes met
                fcntl.flock(file, fcntl.LOCK_EX)
            if blob.is_file() and blob.stat().st_size == listed.size:
                part.unlink(missing_ok=True)
                yield None
                return
            # The process that had the lock may have removed the file that this one has opened.
            if part.exists() and part.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield PartialContent(file, listed, reach)
                return


def finish(blob: Path) -> None:
    """Move the finished content to its final name.

    Raises:
        OSError: The cache cannot be written.
    """
    blob.with_name(blob.name + _PART).replace(blob)


def discard(blob: Path) -> None:
    """Remove the unfinished content."""
    blob.with_name(blob.name + _PART).unlink(missing_ok=True)
