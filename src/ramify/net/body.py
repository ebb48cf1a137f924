"""Reading the body of a response, with a limit on its size before and after decompression."""

import zlib
from typing import Protocol

import httpx

from ramify.net.failures import FailureKind, RequestFailedError

ACCEPT_ENCODING = "gzip"
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class _Decoder(Protocol):
    """The type of what `zlib.decompressobj` returns."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


async def read_body(response: httpx.Response, where: str, max_bytes: int) -> bytes:
    """The whole body, decompressed. Holds at most `max_bytes` and one chunk from the network.

    Args:
        response: A response that was not read yet.
        where: Its address, for messages.
        max_bytes: Limit for the decompressed body.

    Raises:
        RequestFailedError: TOO_LARGE; MALFORMED if the encoding was not asked for, or the compressed data is broken or cut.
    """
    decoder = _decoder(response.headers.get("content-encoding", ""), where)
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += _decompress(decoder, chunk, max_bytes + 1 - len(body), where) if decoder else chunk
        if len(body) > max_bytes:
            raise RequestFailedError(FailureKind.TOO_LARGE, f"{where}: more than {max_bytes} bytes")
    if decoder and response.num_bytes_downloaded and not decoder.eof:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is cut")
    return bytes(body)


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
    try:
        return decoder.decompress(chunk, room)
    except zlib.error:
        raise RequestFailedError(FailureKind.MALFORMED, f"{where}: the compressed body is broken") from None
