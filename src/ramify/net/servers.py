"""The servers of one service: which of several equal ones gets a request, and which of them do not answer.

A server that fails is left out. After a pause, which doubles with each further failure, one request tries it again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.wire import without_query

if TYPE_CHECKING:
    from ramify.net.exchange import Answer

Fetch: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable["Answer"]]
"""Sends one GET request to an address, with these headers."""
ServerCheck: TypeAlias = Callable[[str, Fetch], Awaitable[None]]
"""Looks at the server at an address; raises RequestFailedError if it does not answer, and a UserError to refuse it."""

FIRST_PAUSE_SECONDS: Final = 2.0
LONGEST_PAUSE_SECONDS: Final = 60.0
_KEPT_PREFIX: Final = 4
"""A request goes to the server that has its beginning in a cache, unless that has so many more in flight than another."""


@dataclass(slots=True)
class Server:
    """One server.

    Attributes:
        url: Its address, without a path of a request.
        in_flight: Requests that it is answering.
        failures: Failed requests in a row; it is left out if there are any.
        free_at: Time of the next trial of a server that is left out.
        is_checked: It was looked at since it last failed.
    """

    url: str
    in_flight: int = 0
    failures: int = 0
    free_at: float = 0.0
    is_checked: bool = False
    _checking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def check(self, check: ServerCheck | None, fetch: Fetch) -> None:
        """Look at it, once; raises as `check` does."""
        async with self._checking:
            if check is not None and not self.is_checked:
                await check(self.url, fetch)
                self.is_checked = True


class Servers:
    """Equal servers of one service."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        check: ServerCheck | None = None,
        note: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet.

        Args:
            urls: Their addresses, at least one.
            check: Looks at a server before its first request, and again before the first one after a failure.
            note: Receives a line when a server is left out and when it is back, if there are several.
            clock: A monotonic clock, in seconds.
        """
        addresses = (urls,) if isinstance(urls, str) else urls
        self.all = tuple(Server(url.rstrip("/")) for url in addresses)
        self.check = check
        self._note, self._clock = note, clock

    @property
    def any_up(self) -> bool:
        """True if a server is not left out."""
        return any(not server.failures for server in self.all)

    @contextmanager
    def chosen(self, preferred: int | None) -> Iterator[Server]:
        """Choose the server of a request, which is in flight there until the block ends.

        Args:
            preferred: Equal numbers prefer equal servers; None: no server is preferred.
        """
        server = self._choose(preferred)
        server.in_flight += 1
        try:
            yield server
        finally:
            server.in_flight -= 1

    def _choose(self, preferred: int | None) -> Server:
        now = self._clock()
        returning = [server for server in self.all if server.failures and server.free_at <= now]
        if returning:
            trial = min(returning, key=lambda server: server.free_at)
            trial.free_at = now + _pause(trial.failures)
            return trial
        up = [server for server in self.all if not server.failures]
        if not up:
            return min(self.all, key=lambda server: server.free_at)
        home = None if preferred is None else self.all[preferred % len(self.all)]
        return min(up, key=lambda server: server.in_flight - (_KEPT_PREFIX if server is home else 0))

    def failed(self, server: Server, error: RequestFailedError, failures: int) -> None:
        """Leave a server out for a while.

        Args:
            server: The server.
            error: Why the request failed.
            failures: Those of the server when the request began: of requests that were pending together one counts.
        """
        if failures != server.failures:
            return
        server.failures += 1
        # A busy server has not started again with another model.
        server.is_checked = server.is_checked and error.kind is FailureKind.TOO_MANY
        server.free_at = self._clock() + max(_pause(server.failures), error.retry_after or 0.0)
        if server.failures == 1 and len(self.all) > 1:
            where = without_query(server.url)
            self._note(
                f"{where} does not answer ({error}). It is tried again; its requests go to the others."
            )

    def succeeded(self, server: Server) -> None:
        """Take a server in again."""
        if server.failures and len(self.all) > 1:
            self._note(f"{without_query(server.url)} answers again")
        server.failures = 0


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS)
