"""The wire format between the sandbox and its zygote, in both directions, and its buffers. Standard library only.

A frame is: the lengths of head and body, four bytes each; the head, a JSON object; the body, any bytes. Programs and
their output are always in bodies, never in heads. A zygote reads only heads, and moves bodies between sealed buffers.
"""

import json
import mmap
import os
import struct
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WIPE_ON_FORK, _KEEP_ON_FORK = 18, 19


class SealedBuffer:
    """A buffer of `size` bytes, of which the first `num_bytes` are in use; it is empty in forked children.

    A child is a copy of the zygote, with everything in its heap, freed or not, and a program can search its own memory.
    So no program and no output may ever reach that heap. They are moved between descriptors and sealed buffers, and only
    numbers become Python objects.

    Raises:
        OSError: The kernel cannot wipe memory in children (Linux can since 4.14).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_bytes = 0
        self._memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._advise(_WIPE_ON_FORK)

    @property
    def is_full(self) -> bool:
        """True if nothing more fits."""
        return self.num_bytes == self.size

    @property
    def used(self) -> memoryview:
        """A view of the used part; nothing is copied."""
        return self._view[: self.num_bytes]

    def read_from(self, descriptor: int) -> int:
        """Read once and append; returns the number of bytes, 0 at the end of the file.

        Raises:
            BlockingIOError: There is nothing to read yet.
        """
        with self._view[self.num_bytes : self.size] as room:
            count = os.readv(descriptor, [room])
        self.num_bytes += count
        return count

    def add(self, data: memoryview) -> None:
        """Add a copy of `data`, which must fit."""
        self._view[self.num_bytes : self.num_bytes + len(data)] = data
        self.num_bytes += len(data)

    def drop(self, count: int) -> None:
        """Remove the first `count` bytes."""
        self.num_bytes -= count
        if count and self.num_bytes:
            self._memory.move(0, count, self.num_bytes)

    def clear(self) -> None:
        """Mark the buffer as empty."""
        self.num_bytes = 0

    def show_to_next_child(self) -> None:
        """Let the next fork copy this buffer."""
        self._advise(_KEEP_ON_FORK)

    def free(self) -> None:
        """Free the memory."""
        self._view.release()
        self._memory.close()

    def _advise(self, advice: int) -> None:
        if sys.platform == "linux":
            self._memory.madvise(advice)


_LENGTHS = struct.Struct("!II")
PREFIX_BYTES = _LENGTHS.size
_CODE_LENGTH_BYTES = 4
_INBOX_BYTES = 1 << 18
"""Larger than any head."""


def encode_head(head: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the start of a frame, up to its body."""
    text = json.dumps(head).encode("ascii")
    return _LENGTHS.pack(len(text), body_bytes) + text


def encode(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return one frame."""
    return encode_head(head, len(body)) + body


def lengths(prefix: bytes) -> tuple[int, int]:
    """Return the lengths of head and body."""
    head, body = _LENGTHS.unpack(prefix)
    return head, body


def decode(head: bytes) -> dict[str, Any]:
    """Return the JSON object of a head."""
    read: dict[str, Any] = json.loads(head)
    return read


def request(
    identifier: int, code: str, timeout_seconds: float, cells: Sequence[str] = (), mark: str = ""
) -> bytes:
    """Return the frame that requests a run of a program; `mark` counts the cells that ran (see `snippet`)."""
    head = {"id": identifier, "timeout": timeout_seconds, "num_cells": len(cells), "mark": mark}
    text = code.encode("utf-8", "surrogatepass")
    others = json.dumps(cells).encode("ascii") if cells else b""
    return encode(head, len(text).to_bytes(_CODE_LENGTH_BYTES, "big") + text + others)


def programs(body: memoryview) -> tuple[str, tuple[str, ...]]:
    """Return the program and the cells in a request's body. Fast without cells, since every child does this."""
    end = _CODE_LENGTH_BYTES + int.from_bytes(body[:_CODE_LENGTH_BYTES], "big")
    code = str(body[_CODE_LENGTH_BYTES:end], "utf-8", "surrogatepass")
    return code, tuple(json.loads(bytes(body[end:]))) if end < len(body) else ()


def read_head(descriptor: int) -> dict[str, Any] | None:
    """Wait for a frame without a body, and read no byte beyond it; None at the end of the input."""
    prefix = _read_exactly(descriptor, PREFIX_BYTES)
    text = _read_exactly(descriptor, lengths(prefix)[0]) if prefix else None
    return decode(text) if text else None


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = os.read(descriptor, count - len(data))
        if not more:
            return None
        data += more
    return data


class Inbox:
    """Receives frames. Each body goes to a sealed buffer of its own, which the caller frees."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = SealedBuffer(_INBOX_BYTES)
        self._head: dict[str, Any] | None = None
        self._body = SealedBuffer(0)

    def read(self) -> bool:
        """Read once; False at the end of the input."""
        return self._buffer.read_from(self._descriptor) > 0

    def take(self) -> Iterator[tuple[dict[str, Any], SealedBuffer]]:
        """Yield the complete frames so far, in order."""
        while self._take_head() and self._take_body():
            assert self._head is not None
            head, self._head = self._head, None
            yield head, self._body

    def _take_head(self) -> bool:
        if self._head is not None:
            return True
        with self._buffer.used as used:
            if len(used) < PREFIX_BYTES:
                return False
            head_bytes, body_bytes = lengths(bytes(used[:PREFIX_BYTES]))
            end = PREFIX_BYTES + head_bytes
            if len(used) < end:
                return False
            self._head = decode(bytes(used[PREFIX_BYTES:end]))
        self._buffer.drop(end)
        self._body = SealedBuffer(body_bytes)
        return True

    def _take_body(self) -> bool:
        count = min(self._body.size - self._body.num_bytes, self._buffer.num_bytes)
        with self._buffer.used as used, used[:count] as part:
            self._body.add(part)
        self._buffer.drop(count)
        return self._body.is_full


class Outbox:
    """Sends frames as fast as the reader takes them. `spare` collects the buffers of written bodies, emptied for reuse."""

    def __init__(self, descriptor: int) -> None:
        self.spare: list[SealedBuffer] = []
        self._descriptor = descriptor
        self._parts: deque[tuple[memoryview, SealedBuffer | None]] = deque()

    def add(self, head: Mapping[str, Any], *bodies: SealedBuffer) -> None:
        """Queue a frame."""
        size = sum(body.num_bytes for body in bodies)
        self._parts.append((memoryview(encode_head(head, size)), None))
        self._parts.extend((body.used, body) for body in bodies)

    @property
    def is_empty(self) -> bool:
        """True if everything is written."""
        return not self._parts

    def write(self) -> None:
        """Write as much as the reader takes now.

        Raises:
            BrokenPipeError: The reader is gone.
        """
        try:
            while self._parts:
                part, owner = self._parts[0]
                count = os.write(self._descriptor, part)
                if count < len(part):
                    self._parts[0] = (part[count:], owner)
                    part.release()
                    continue
                self._parts.popleft()
                part.release()
                if owner is not None:
                    owner.clear()
                    self.spare.append(owner)
        except BlockingIOError:
            pass
