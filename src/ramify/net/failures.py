"""Why a request to a service came to nothing."""

from collections.abc import Mapping
from enum import StrEnum

from ramify.core.protocols import Json


class FailureKind(StrEnum):
    """What went wrong; `retriable` of it may go well a second time."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TOO_MANY = "too_many"
    """HTTP 429."""
    SERVER = "server"
    """HTTP 5xx."""
    REFUSED = "refused"
    """HTTP 401 or 403: the key is missing or wrong; 402: there is nothing left to pay with."""
    CLIENT = "client"
    """Another HTTP 4xx: the request is wrong."""
    MALFORMED = "malformed"
    """The answer is not what the service's documentation promises."""
    TOO_LARGE = "too_large"
    REDIRECTS = "redirects"
    """Too many, or one that leads nowhere."""
    FORBIDDEN = "forbidden"
    """An address that may not be asked (private, link-local, no http)."""

    @property
    def retriable(self) -> bool:
        """Whether the same request may go well a second time."""
        return self in (FailureKind.TIMEOUT, FailureKind.CONNECTION, FailureKind.TOO_MANY, FailureKind.SERVER)

    @property
    def is_services(self) -> bool:
        """Whether it says that the service is not well; the others are about one request, or one page."""
        return self.retriable or self is FailureKind.MALFORMED


class RequestFailedError(Exception):
    """One request failed for good; a tool turns it into a typed result. The message holds no key and no address' secrets.

    Attributes:
        status: The HTTP status, where there was one.
        retry_after: Seconds after which the service wants to be asked again, where it said so.
    """

    def __init__(
        self, kind: FailureKind, detail: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        self.kind, self.detail, self.status, self.retry_after = kind, detail, status, retry_after
        super().__init__(f"{kind.value}: {detail}")

    def as_json(self) -> Json:
        """What a cassette writes down."""
        return {"kind": self.kind.value, "detail": self.detail, "status": self.status}

    @classmethod
    def from_json(cls, record: Json) -> "RequestFailedError":
        """What `as_json` gave.

        Raises:
            ValueError, TypeError, KeyError: It is something else.
        """
        if not isinstance(record, Mapping):
            raise TypeError("expected an object")
        status = record["status"]
        return cls(
            FailureKind(str(record["kind"])),
            str(record["detail"]),
            status if isinstance(status, int) else None,
        )
