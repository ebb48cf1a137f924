"""The interface between a client and the HTTP library that opens its connections, so that one library can replace another.

A transport only sends a request and passes on what arrives. Deadlines, limits on bytes, decompression, retries and
redirects are the client's (`ramify.net.client`): a transport sets no time limit, decodes nothing and follows nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        method: In upper case.
        url: An http or https address.
        headers: Sent besides Host and Content-Length, which the transport adds.
        body: None sends no body.
        connect_to: The IP address to connect to; the Host header and the certificate stay those of `url`. None looks
            the host up.
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    connect_to: str | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The head of an answer, and its body as it comes in.

    Attributes:
        status: The final status; informational ones are skipped.
        headers: With names in lower case.
        chunks: The body as sent, still compressed. Raises as `Transport.send` does.
        close: Ends the exchange, whether or not the body was read; must be awaited.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]


class ConnectFailedError(RequestFailedError):
    """No connection was opened, so nothing was sent: another address of the host may be tried."""


class Transport(Protocol):
    """Opens connections and sends requests; all methods are called in one event loop."""

    async def send(self, request: Request) -> Response:
        """Send a request and wait for the head of its answer.

        Raises:
            ConnectFailedError: There is no connection.
            RequestFailedError: CONNECTION, CLIENT or FORBIDDEN.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def without_query(url: str) -> str:
    """Return scheme, host, port and path of an address, for messages; its query, user and password may be secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
        host = f"[{host}]" if ":" in host else host
        return redact(f"{parts.scheme}://{host}{port}{parts.path}")
    except ValueError:
        return "the address"


def check_sendable(url: str) -> None:
    """Check that an HTTP library can send a request to an address.

    Raises:
        RequestFailedError: CLIENT; FORBIDDEN for another scheme than http and https.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is out of range
        url.encode()
        readable = bool(parts.hostname) or not parts.scheme
    except ValueError:
        readable = False
    if not readable:
        raise RequestFailedError(FailureKind.CLIENT, f"{without_query(url)}: no address that can be asked")
    if parts.scheme not in ("http", "https"):
        raise RequestFailedError(
            FailureKind.FORBIDDEN, f"{without_query(url)}: expected an http or https address"
        )


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address. A key that belongs to one origin must not be sent to another."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default
