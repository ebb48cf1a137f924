"""Places where ranks leave messages for each other: a private folder on one machine, the launcher's TCP store on several
machines, or wherever the run has a secret.

Nothing is trusted because it is there: messages are signed (`learner.seal`). The folder also keeps other users out, so that they
cannot end the run.
"""

import hashlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ramify.core.errors import ConfigError
from ramify.core.rank import Rank
from ramify.learner.seal import Label, Seal, checked_secret

MEETING = "meeting"
"""In place of a generation: messages from before the ranks have met, and those that outlive restarts."""
_MOST_BYTES = 2**20
"""Of a message here; rows and results go directly from rank to rank."""
_POLL_SECONDS = 0.003
_SECRET_FILE = "secret"


class ChannelError(RuntimeError):
    """The place is gone, and with it rank 0."""


class Channel(Protocol):
    """A place for messages by key. RuntimeErrors of its methods mean that it is gone."""

    def put(self, key: str, message: bytes) -> None:
        """Leave a message, in place of an earlier one of that key."""
        ...

    def put_first(self, key: str, message: bytes) -> None:
        """Leave a message if there is none of that key."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return a message, if it is there."""
        ...

    def wait(self, key: str, seconds: float) -> None:
        """Wait until a message is there, or the time is over."""
        ...

    def delete(self, key: str) -> None:
        """Delete a message."""
        ...

    def clone(self) -> "Channel":
        """Return another hold on the place, for another thread."""
        ...

    def collectives(self, seal: Seal, generation: str, size: int) -> Store:
        """Return the store in which the process groups of a generation meet."""
        ...

    def close(self, is_last: bool) -> None:
        """Leave the place as rank 0; `is_last`: no process of the run will come back to it."""
        ...


class Folder:
    """A folder of this user that nobody else can enter. A message is a file."""

    def __init__(self, path: Path) -> None:
        """Make the folder, or open the one that is there.

        Raises:
            ConfigError: It belongs to another user, or others can enter it.
        """
        self._path = path
        try:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            status = os.fstat(self._folder)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}. {_REMEDY}") from None
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path}: belongs to another user, or is open to others. {_REMEDY}")

    def secret(self, writes: bool, patience: float) -> bytes:
        """Return the folder's secret. The rank that `writes` makes it where there is none; the others wait for it.

        Raises:
            ConfigError: It did not come in time.
        """
        if writes and self.get(_SECRET_FILE) is None:
            self.put(_SECRET_FILE, secrets.token_bytes(32))
        self.wait(_SECRET_FILE, patience)
        secret = self.get(_SECRET_FILE)
        if secret is None:
            raise ConfigError(
                f"{self._path}: rank 0 did not come within {patience:.0f} s. Check why it ended."
            )
        return secret

    def sweep(self, is_first: bool) -> None:
        """Delete what dead processes left; `is_first`: none of them belonged to this run, so that nothing outlives them."""
        for name in [path.name for path in self._path.iterdir()]:
            outlives = name.startswith(f"{MEETING}.") and not (
                is_first and name.startswith(f"{MEETING}.begun")
            )
            # A name with a dot in front is a message that another rank writes now.
            if outlives or name == _SECRET_FILE or name.startswith("."):
                continue
            with suppress(OSError):
                os.unlink(name, dir_fd=self._folder)

    def put(self, key: str, message: bytes) -> None:
        """See `Channel`."""
        new = f".{key}.{os.getpid()}.{time.monotonic_ns()}"
        try:
            self._write(new, message)
            os.replace(new, key, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            raise ChannelError(f"the store {self._path} is gone: {error.strerror}") from None

    def put_first(self, key: str, message: bytes) -> None:
        """See `Channel`."""
        try:
            with suppress(FileExistsError):
                self._write(key, message)
        except OSError as error:
            raise ChannelError(f"the store {self._path} is gone: {error.strerror}") from None

    def get(self, key: str) -> bytes | None:
        """See `Channel`."""
        try:
            descriptor = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:
            self._require_folder()
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MOST_BYTES)

    def wait(self, key: str, seconds: float) -> None:
        """See `Channel`."""
        until = time.monotonic() + seconds
        while self.get(key) is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def delete(self, key: str) -> None:
        """See `Channel`."""
        with suppress(OSError):
            os.unlink(key, dir_fd=self._folder)

    def clone(self) -> "Folder":
        """See `Channel`."""
        return self

    def collectives(self, seal: Seal, generation: str, size: int) -> Store:
        """See `Channel`. A file in the folder, where others cannot write, needs no signatures."""
        del seal
        # FileStore would wait five minutes for a folder, and the whole process with it.
        self._require_folder()
        return FileStore(str(self._path / f"{generation}.collectives"), size)

    def close(self, is_last: bool) -> None:
        """See `Channel`."""
        if is_last:
            shutil.rmtree(self._path, ignore_errors=True)

    def _require_folder(self) -> None:
        # A folder without links was removed while this process had it open.
        if not os.fstat(self._folder).st_nlink:
            raise ChannelError(f"the store {self._path} is gone")

    def _write(self, name: str, message: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=self._folder), "wb") as file:
            file.write(message)


_REMEDY = "Ranks of one machine meet in a folder of their user: name another with XDG_RUNTIME_DIR or TMPDIR."


class TcpStore:
    """The store that torchrun or rank 0 opens on a port: whoever reaches it can read and write it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, key: str, message: bytes) -> None:
        """See `Channel`."""
        self._store.set(key, message)  # type: ignore[arg-type]  # the stubs lack bytes

    def put_first(self, key: str, message: bytes) -> None:
        """See `Channel`."""
        self._store.compare_set(key, "", message)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes | None:
        """See `Channel`."""
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def wait(self, key: str, seconds: float) -> None:
        """See `Channel`."""
        with suppress(dist.DistStoreError):
            self._store.wait([key], timedelta(seconds=seconds))

    def delete(self, key: str) -> None:
        """See `Channel`."""
        self._store.delete_key(key)

    def clone(self) -> "TcpStore":
        """See `Channel`."""
        return TcpStore(self._store.clone())  # type: ignore[attr-defined]  # the stubs lack it

    def collectives(self, seal: Seal, generation: str, size: int) -> Store:
        """See `Channel`."""
        del size
        return _SignedStore(self._store, seal, generation)

    def close(self, is_last: bool) -> None:
        """See `Channel`. The store ends with its process."""


class _SignedStore(Store):
    """A store whose values are signed, so that no stranger can give the addresses at which process groups connect."""

    def __init__(self, store: Store, seal: Seal, generation: str) -> None:
        super().__init__()
        self._store, self._seal, self._generation = PrefixStore(generation, store), seal, generation

    def set(self, key: str, value: str | bytes) -> None:
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(key, bytes(self._seal.close(self._label(key), content)))  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        return bytes(self._seal.open(self._label(key), self._store.get(key)))

    # A counter cannot be signed; gloo uses none.
    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self._store.wait(keys)
        else:
            self._store.wait(keys, timeout)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def _label(self, key: str) -> Label:
        return Label(f"collectives {key}", self._generation, 0)


def open_channel(
    rank: Rank, secret: str | None, environ: Mapping[str, str], patience: float
) -> tuple[Channel, Seal]:
    """Open the place where the ranks of a run meet; returns it and what signs their messages.

    Args:
        rank: This process.
        secret: The run's secret; without one ranks on one machine meet in a folder, which has its own.
        environ: What torchrun says of the run.
        patience: Seconds to wait for the others.

    Raises:
        ConfigError: It cannot be opened or reached, or ranks on several machines have no secret.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    # Of a run on several machines (torchrun --nnodes MIN:MAX) one may be left, whose ranks must find what the store says.
    if secret is not None or not rank.on_one_machine:
        signer = Seal(checked_secret(secret), run)
        return TcpStore(PrefixStore("ramify", _tcp_store(rank, environ, patience))), signer
    folder = Folder(folder_path(environ))
    signer = Seal(folder.secret(writes=rank.number == 0, patience=patience), run)
    if rank.number == 0:
        folder.sweep(is_first=environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0")
    return folder, signer


def folder_path(environ: Mapping[str, str]) -> Path:
    """Return the folder of a run on one machine: the same for all ranks, another for each run that lives at the same time.

    Raises:
        ConfigError: Others may rename folders in the one for temporary files.
    """
    parents = (Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()), Path(tempfile.gettempdir()))
    parent = next(filter(_keeps_others_out, parents), None)
    if parent is None:
        raise ConfigError(f"{parents[1]}: other users may rename what is in it. {_REMEDY}")
    # A port belongs to one run at a time, of one machine or container.
    names = [socket.gethostname(), _network(), environ.get("TORCHELASTIC_RUN_ID", "")]
    names += [environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")]
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
    return parent / f"ramify-ranks-{os.geteuid()}-{digest}"


def _keeps_others_out(parent: Path) -> bool:
    """Return True if only the owner of a folder in this one can rename it."""
    try:
        status = parent.stat()
    except OSError:
        return False
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (0, os.geteuid()) and (not is_shared or bool(status.st_mode & stat.S_ISVTX))


def _network() -> str:
    try:
        return str(Path("/proc/self/ns/net").readlink())
    except OSError:
        return ""


def _tcp_store(rank: Rank, environ: Mapping[str, str], patience: float) -> Store:
    """Return the store at MASTER_ADDR:MASTER_PORT; torchrun has one there, else rank 0 opens it."""
    address = f"{environ.get('MASTER_ADDR')}:{environ.get('MASTER_PORT')}"
    store: Store
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if "EADDRINUSE" in text:
            raise ConfigError(
                f"MASTER_PORT: {address} is in use. Choose another port (torchrun --master-port)"
            ) from None
        if "clients joined" in text:
            raise ConfigError(
                f"not all of the {rank.size} ranks came to {address} within {patience:.0f} s. Start the others, or check why "
                "they ended"
            ) from None
        raise ConfigError(f"the processes cannot meet at {address}: {text:.200}") from None
    return store
