"""The canonical spelling of keys and answers, and single flight: identical requests at one time are one call.

`Flights` does so among the tasks of a process, `Claims` among all threads and processes that share a cache.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Coroutine, Hashable
from pathlib import Path
from typing import Any, Final

from ramify.core.protocols import CacheKey, Json
from ramify.runtime.call_clock import CallClock, current_clock, on_clock

_quoted: Final = json.encoder.encode_basestring_ascii
_MOST_PARAMETERS: Final = 256
_parameters: Final[dict[str, str]] = {}
"""Most keys have the same parameters, so their canonical JSON is memoised."""


def encode(value: Json) -> str:
    """Return one line of JSON that preserves any text, lone surrogates included.

    Raises:
        TypeError: A value has no JSON form.
        ValueError: A number is NaN or infinite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that cannot be written again")
    return number


_decoder: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def decode(text: str) -> Json:
    """Read what `encode` wrote; refuse NaN and infinities, which are not JSON."""
    value: Json = _decoder.raw_decode(text)[0]
    return value


def canonical(key: CacheKey) -> str:
    """Return the one spelling of a key: ASCII JSON with sorted names."""
    spelled = repr(key.parameters)
    parameters = _parameters.get(spelled)
    if parameters is None:
        parameters = json.dumps(key.parameters, sort_keys=True, allow_nan=False, separators=(",", ":"))
        if len(_parameters) >= _MOST_PARAMETERS:
            _parameters.clear()
        _parameters[spelled] = parameters
    return f"[{_quoted(key.tool)},{_quoted(key.provider)},{parameters},{_quoted(key.request)}]"


def digest(key: CacheKey) -> bytes:
    """Return the SHA-256 of the canonical key (32 bytes); answers are looked up by it."""
    return hashlib.sha256(canonical(key).encode("ascii")).digest()


def row_number_of(key_digest: bytes) -> int:
    """Return the row number of a key and the byte of its claim.

    The digest's first 62 bits, since a lock must end below 2**63.
    """
    return int.from_bytes(key_digest[:8], "big") >> 2


class Flights:
    """Pending calls, by what they ask for.

    Each call is a task of its own. It continues when its waiters are cancelled, since its answer may be paid for. It has a
    clock of its own too, which all its waiters follow: time in our queues counts for none of them.
    """

    def __init__(self) -> None:
        self._calls: dict[Hashable, tuple[asyncio.Task[Json], CallClock]] = {}

    async def join(self, name: Hashable, start: Callable[[], Coroutine[Any, Any, Json]]) -> Json:
        """Wait for the pending call `name`, else for `start`. Its error reaches all who wait."""
        task, clock = self._calls.get(name, (None, None))
        if task is None or clock is None or task.get_loop().is_closed():  # its task would never end
            clock = CallClock(asyncio.get_running_loop().time)
            task = asyncio.create_task(on_clock(clock, start))
            self._calls[name] = task, clock
            task.add_done_callback(lambda done: self._end(name, done))
        with clock.followed_by(current_clock()):
            return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel all pending calls."""
        tasks = [task for task, _ in self._calls.values() if not task.get_loop().is_closed()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, name: Hashable, task: asyncio.Task[Json]) -> None:
        if self._calls.get(name, (None,))[0] is task:
            del self._calls[name]
        if not task.cancelled():
            task.exception()  # Marks it as retrieved: asyncio does not log it if all waiters are gone.


_SET_LOCK: Final = getattr(fcntl, "F_OFD_SETLK", None)
"""Linux's open file description locks. They belong to an open file, not to a process, so threads exclude each other too."""
_FLOCK: Final = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class Claims:
    """Claims on keys: only the owner of a key's claim calls the service. Without such locks, every claim succeeds.

    A claim is a lock on one byte of a file beside the cache; the key determines which byte. The operating system
    releases the lock when its owner ends, however it ends, so no claim is left behind and none needs a heartbeat. Lock
    files, one a key, would take an open file for each pending request, and could not be removed without a race.
    """

    def __init__(self, path: Path, *, alone: bool) -> None:
        """Open or create the file.

        Args:
            path: The file beside the cache.
            alone: Lock the whole file too, against all others that open it with `alone`.

        Raises:
            BlockingIOError: Another process has it with `alone`.
            OSError: The file cannot be written.
        """
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if alone:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.close()
                raise

    def take(self, key_digest: bytes) -> bool:
        """Try to claim a key; False if another owner has the claim."""
        try:
            self._lock(fcntl.F_WRLCK, key_digest)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # the file system has no such locks
            pass
        return True

    def release(self, key_digest: bytes) -> None:
        """Release a claim."""
        with contextlib.suppress(OSError):
            self._lock(fcntl.F_UNLCK, key_digest)

    def close(self) -> None:
        """Release all claims; closing twice is allowed."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _lock(self, kind: int, key_digest: bytes) -> None:
        if self._file is not None and _SET_LOCK is not None:
            lock = struct.pack(_FLOCK, kind, os.SEEK_SET, row_number_of(key_digest), 1, 0)
            fcntl.fcntl(self._file, _SET_LOCK, lock)
