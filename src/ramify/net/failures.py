"""The failure of a request to a service."""

from collections.abc import Mapping
from enum import StrEnum

from ramify.core.protocols import Json

_NOT_THERE = (502, 503, 504)
"""Of HTTP's 5xx those of a gateway without its service, and of a service that starts or has too much to do."""


class FailureKind(StrEnum):
    """Kinds of failed requests."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TOO_MANY = "too_many"
    """HTTP 429."""
    SERVER = "server"
    """HTTP 5xx."""
    REFUSED = "refused"
    """HTTP 401 or 403: the key is missing or wrong; 402: the account has no credit left."""
    CLIENT = "client"
    """Another HTTP 4xx: the request is wrong."""
    MALFORMED = "malformed"
    """The answer breaks the service's documentation."""
    TOO_LARGE = "too_large"
    REDIRECTS = "redirects"
    """Too many, or one that leads nowhere."""
    CUT = "cut"
    """A model's answer was cut at max_tokens."""
    FORBIDDEN = "forbidden"
    """The address must not be fetched (private, link-local, not http)."""

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed a second time."""
        return self in (FailureKind.TIMEOUT, FailureKind.CONNECTION, FailureKind.TOO_MANY, FailureKind.SERVER)

    @property
    def is_services(self) -> bool:
        """True if the service itself has a problem; the other failures concern one request or one page."""
        return self.retriable or self is FailureKind.MALFORMED


class RequestFailedError(Exception):
    """One request failed for good; a tool turns this into a typed result. The message contains no key or other secret.

    Attributes:
        kind: Kind of the failure.
        detail: One line for the user.
        status: The HTTP status, if there was one.
        retry_after: Seconds after which the service allows another request, if it names them.
        code: The service's own name of the error (its header X-Error-Code), "" if it has none.
    """

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        status: int | None = None,
        retry_after: float | None = None,
        code: str = "",
    ) -> None:
        self.kind, self.detail, self.status, self.retry_after = kind, detail, status, retry_after
        self.code = code
        super().__init__(f"{kind.value}: {detail}")

    @property
    def is_outage(self) -> bool:
        """True if the service is away or busy: it did not look at the request, so another time it may answer otherwise."""
        away = (FailureKind.TIMEOUT, FailureKind.CONNECTION, FailureKind.TOO_MANY)
        return self.kind in away or self.status in _NOT_THERE

    def as_json(self) -> Json:
        """Return the form that a cassette records."""
        return {"kind": self.kind.value, "detail": self.detail, "status": self.status}

    @classmethod
    def from_json(cls, record: Json) -> "RequestFailedError":
        """Read an error that `as_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: The record has another form.
        """
        if not isinstance(record, Mapping):
            raise TypeError("expected an object")
        status = record["status"]
        return cls(
            FailureKind(str(record["kind"])),
            str(record["detail"]),
            status if isinstance(status, int) else None,
        )
