"""Reads the body of an answer within a limit on its bytes, before and after decompression.

Only one layer of gzip or deflate is read, as the client asks for no other encoding.
"""

import zlib
from collections.abc import AsyncGenerator
from typing import Protocol

from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.wire import Response

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_OVERHEAD = 4096
"""Bytes that compression may add to a body, besides a thousandth of its size."""


class _Decoder(Protocol):
    """The type of what `zlib.decompressobj` returns."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


async def read_body(response: Response, where: str, max_bytes: int) -> bytes:
    """Return the whole body, decompressed; raises as `body_chunks` does."""
    body = bytearray()
    async for chunk in body_chunks(response, where, max_bytes):
        body += chunk
    return bytes(body)


async def body_chunks(response: Response, where: str, max_bytes: int | None) -> AsyncGenerator[bytes]:
    """Yield the decompressed body. Buffers one chunk from the network and at most `max_bytes` of its decompressed content.

    Args:
        response: An unread response.
        where: Its address, for messages.
        max_bytes: Limit for the body, compressed and decompressed. None: no limit, for a stream without an end.

    Raises:
        RequestFailedError: TOO_LARGE; MALFORMED if the encoding was not requested, or the compressed data is broken or cut.
    """
    decoder = _decoder(response.headers.get("content-encoding", ""), where)
    if decoder is not None and max_bytes is None:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: a compressed stream, expected a plain one")
    raw = plain = 0
    async for chunk in response.chunks:
        raw += len(chunk)
        if max_bytes is not None and raw > max_bytes + max_bytes // 1000 + _OVERHEAD:
            raise _too_large(where, max_bytes)
        if decoder is not None and max_bytes is not None:
            chunk = _decompress(decoder, chunk, max_bytes + 1 - plain, where)
        plain += len(chunk)
        if max_bytes is not None and plain > max_bytes:
            raise _too_large(where, max_bytes)
        yield chunk
    if decoder and raw and not decoder.eof:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is cut")


def _too_large(where: str, max_bytes: int) -> RequestFailedError:
    return RequestFailedError(FailureKind.TOO_LARGE, f"{where}: more than {max_bytes} bytes")


def _decoder(encoding: str, where: str) -> _Decoder | None:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return zlib.decompressobj(_GZIP_OR_ZLIB)
        case _:
            raise RequestFailedError(
                FailureKind.MALFORMED, f"{where}: a content encoding that was not asked for; expected gzip"
            )


def _decompress(decoder: _Decoder, chunk: bytes, room: int, where: str) -> bytes:
    # zlib would buffer whatever follows the end of the compressed data, without limit.
    if decoder.eof and chunk:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: more data follows the compressed body")
    try:
        return decoder.decompress(chunk, room)
    except zlib.error:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is broken") from None
