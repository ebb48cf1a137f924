"""Settings of services, apart from their clients: checking a recipe need not import an HTTP library."""

from dataclasses import dataclass

from ramify.core.config import (
    Attempts,
    Config,
    Name,
    PositiveInt,
    Rate,
    Reserved,
    Seconds,
    ServiceUrls,
    Variable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(Config):
    """Limits of a service's client.

    Attributes:
        timeout_seconds: Limit for one attempt, from opening a connection to the last byte.
        attempts: Most attempts for one request; only failures that may be temporary are retried.
        requests_per_second: Rate limit; attempts are spaced evenly. None: no limit.
        in_flight: Most concurrent attempts.
        max_requests: Most attempts over a run, since each may be billed; None: no limit.
    """

    timeout_seconds: Seconds = 20.0
    attempts: Attempts = 3
    requests_per_second: Rate | None = None
    in_flight: Reserved = 16
    max_requests: PositiveInt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig(Config):
    """A model at an OpenAI-compatible endpoint; `key_variable` is the environment variable with its key, if any.

    `url` may be a list of equal servers: requests are spread over them, and one that does not answer is left out for a while.
    """

    url: ServiceUrls
    model: Name
    key_variable: Variable | None = None
    http: HttpConfig = HttpConfig(timeout_seconds=60.0)
