"""The wire format between the sandbox and its zygote: JSON objects, each behind its length in four bytes."""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_LENGTH = struct.Struct("!I")
LENGTH_BYTES = _LENGTH.size


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message).encode("ascii")
    return _LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """The number of bytes that follow a length prefix."""
    length: int = _LENGTH.unpack(prefix)[0]
    return length


def decode(body: bytes | bytearray) -> dict[str, Any]:
    """The message of one frame's body."""
    message: dict[str, Any] = json.loads(body)
    return message


def take(buffer: bytearray) -> Iterator[dict[str, Any]]:
    """Remove whole frames from the front of `buffer` and yield them."""
    while len(buffer) >= LENGTH_BYTES:
        end = LENGTH_BYTES + body_length(bytes(buffer[:LENGTH_BYTES]))
        if len(buffer) < end:
            return
        message = decode(buffer[LENGTH_BYTES:end])
        del buffer[:end]
        yield message
