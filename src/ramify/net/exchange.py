"""One request and its answer over a transport, within a deadline and a number of bytes."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Final, Protocol, TypeAlias
from urllib.parse import urlencode

from ramify.core.json_text import parse_json
from ramify.core.protocols import Json
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.limits import body_chunks, read_body
from ramify.net.secrets import redact
from ramify.net.wire import Request, Response, Transport, check_sendable, without_query

Params: TypeAlias = Mapping[str, str | int]
_HEADERS: Final = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "ramify"}
PART_BYTES: Final = 2**20
"""Bytes of a download that have to arrive within one deadline."""
_SHOWN = 160
"""Most characters of a service's own error text that a message quotes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a service, with a status below 400 and a complete body.

    Attributes:
        status: 2xx or 3xx; the client never follows redirects.
        url: The requested address. It may contain a key, so messages show `where`.
        content_type: In lower case, with its parameters; "" if the service sent none.
        body: The decompressed body.
        location: The Location header of a 3xx, verbatim; else "".
    """

    status: int
    url: str = field(repr=False)
    content_type: str
    body: bytes = field(repr=False)
    location: str = field(default="", repr=False)
    # An answer that no client received has no breaker to inform.
    _count_as_failed: Callable[[RequestFailedError], None] = field(
        default=lambda _error: None, repr=False, compare=False
    )

    @property
    def where(self) -> str:
        """The address without its query, for messages."""
        return without_query(self.url)

    def json(self) -> Json:
        """Return the body as JSON.

        Raises:
            RequestFailedError: MALFORMED; REDIRECTS for a 3xx.
        """
        if self.status >= 300:
            detail = redact(f"{self.where} leads elsewhere (HTTP {self.status})")
            raise RequestFailedError(FailureKind.REDIRECTS, detail, self.status)
        try:
            read: Json = parse_json(self.body)
        except ValueError:
            kind = self.content_type or "no content type"
            raise self.malformed(
                f"expected JSON, found {'broken JSON' if 'json' in kind else kind}"
            ) from None
        return read

    def malformed(self, detail: str) -> RequestFailedError:
        """Return the error to raise when the answer breaks the service's documentation; the request then counts as failed."""
        error = RequestFailedError(FailureKind.MALFORMED, redact(f"{self.where}: {detail}"), self.status)
        self._count_as_failed(error)
        return error


class Sink(Protocol):
    """Receives a body that is too large for memory. Its methods run in the network thread."""

    max_bytes: int
    """Limit for the body of one attempt."""

    def headers(self) -> Mapping[str, str]:
        """Return further headers of the next attempt, such as the range of bytes that is still missing."""
        ...

    def begin(self, status: int) -> None:
        """Prepare for the body of an answer with this status, 2xx; bytes of an earlier attempt may be here."""
        ...

    def write(self, chunk: bytes) -> None:
        """Take the next bytes."""
        ...


def build_request(
    method: str, url: str, params: Params | None, headers: Mapping[str, str] | None, body: bytes | None
) -> Request:
    """Return a request for gzip or plain bodies; `params` are added to the query of `url`.

    Raises:
        RequestFailedError: CLIENT or FORBIDDEN, if no such address can be asked.
    """
    check_sendable(url)
    if params:  # appended, since re-encoding the whole query breaks other encodings and signatures
        url, mark, fragment = url.partition("#")
        url = f"{url}{'&' if '?' in url else '?'}{urlencode(params)}{mark}{fragment}"
    typed = {"content-type": "application/json"} if body else {}
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    return Request(method=method, url=url, headers={**_HEADERS, **typed, **sent}, body=body)


async def exchange(
    transport: Transport, request: Request, *, seconds: float, max_bytes: int, sink: Sink | None = None
) -> Answer:
    """Send a request and read its answer.

    Args:
        transport: Sends it.
        request: The request.
        seconds: Deadline, from opening a connection to the last byte; with a sink each `PART_BYTES` extend it.
        max_bytes: Limit for a decompressed body.
        sink: Receives the body of a 2xx; None: it becomes the answer's body.

    Raises:
        RequestFailedError: There is no whole answer with a status below 400 within the limits.
    """
    where = without_query(request.url)
    if sink is not None:
        request = replace(request, headers={**request.headers, **sink.headers()})
    try:
        async with asyncio.timeout(seconds) as deadline:
            response = await transport.send(request)
            try:
                if response.status >= 400:
                    raise _failure(response, where, await _error_text(response, where))
                if sink is not None and response.status < 300:
                    body = b""
                    await _fill(sink, response, where, deadline, seconds)
                else:
                    body = await read_body(response, where, max_bytes)
            finally:
                await response.close()
    except TimeoutError:
        detail = "no whole answer" if sink is None else "nothing more"
    else:
        return Answer(
            response.status,
            request.url,
            response.headers.get("content-type", "").lower(),
            body,
            response.headers.get("location", "") if response.status >= 300 else "",
        )
    raise RequestFailedError(FailureKind.TIMEOUT, f"{where}: {detail} within {seconds:g} s")


async def _fill(
    sink: Sink, response: Response, where: str, deadline: asyncio.Timeout, seconds: float
) -> None:
    """Write the body to `sink`; each part that arrives extends the deadline."""
    sink.begin(response.status)
    part = 0
    async for chunk in body_chunks(response, where, sink.max_bytes):
        sink.write(chunk)
        part += len(chunk)
        if part >= PART_BYTES:
            part = 0
            deadline.reschedule(asyncio.get_running_loop().time() + seconds)


def _failure(response: Response, where: str, text: str) -> RequestFailedError:
    status = response.status
    if status in (401, 402, 403):
        kind = FailureKind.REFUSED
    elif status == 429:
        kind = FailureKind.TOO_MANY
    else:
        kind = FailureKind.SERVER if status >= 500 else FailureKind.CLIENT
    detail = f": {text}" if text else ""
    code = response.headers.get("x-error-code", "")
    return RequestFailedError(
        kind, f"HTTP {status} from {where}{detail}", status, _retry_after(response), code
    )


async def _error_text(response: Response, where: str) -> str:
    """Return the beginning of the service's error text; "" for an HTML page."""
    if "html" in response.headers.get("content-type", "").lower():
        return ""
    try:
        body = await read_body(response, where, 20 * _SHOWN)
    except RequestFailedError:
        return ""
    # Redacted before it is cut: half a key would not be recognised.
    return " ".join(redact(body.decode(errors="replace")).split())[:_SHOWN]


def _retry_after(response: Response) -> float | None:
    """Return the Retry-After header (RFC 9110, 10.2.3) in seconds from now; None if it is neither a number nor an HTTP date."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
