"""Limits of a client: its request rate, and a circuit breaker. Clocks are arguments, so tests need not wait."""

import asyncio
from collections.abc import Awaitable, Callable

from ramify.core.errors import ServiceDownError


class Pace:
    """Spaces requests evenly, in the order in which they ask."""

    def __init__(
        self,
        per_second: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Args:
        per_second: Requests per second; None: no limit.
        clock: A monotonic clock, in seconds.
        sleep: Waits for a number of seconds.
        """
        self._gap = None if per_second is None else 1.0 / per_second
        self._clock, self._sleep = clock, sleep
        self._free_at = clock()
        self._first = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the next free time slot. Only the first in the queue takes one, so a cancelled task delays no other."""
        if self._gap is None:
            return
        async with self._first:
            now = self._clock()
            start = max(now, self._free_at)
            if start > now:
                await self._sleep(start - now)
            self._free_at = start + self._gap


class Breaker:
    """A circuit breaker. It opens after a number of failed requests in a row.

    While it is open, it lets one trial request through per `trial_seconds`; a success closes it. Requests that were
    pending together count as one failure, since one short outage fails them all: a failure counts only if its request
    began after the last counted failure.
    """

    def __init__(
        self, name: str, failures_to_open: int | None, trial_seconds: float, clock: Callable[[], float]
    ) -> None:
        """Args:
        name: Name of the service.
        failures_to_open: Failures in a row that open the breaker; None: it never opens.
        trial_seconds: Time from opening, or from the last trial, to the next trial.
        clock: A monotonic clock, in seconds.
        """
        self._name, self._limit, self._clock = name, failures_to_open, clock
        self._trial_seconds = trial_seconds
        self._failures = 0
        self._last = ""
        self._next_trial = 0.0
        self._wave = 0

    @property
    def is_open(self) -> bool:
        """True while the service counts as down."""
        return self._limit is not None and self._failures >= self._limit

    def admit(self) -> int:
        """Let a request through; returns its wave number, which `failed` needs.

        Raises:
            ServiceDownError: The service is down; names it and the last failure.
        """
        if self.is_open:
            if self._clock() < self._next_trial:
                raise ServiceDownError(
                    f"{self._name} is down: {self._failures} requests in a row failed, the last with {self._last}"
                )
            self._next_trial = self._clock() + self._trial_seconds
        return self._wave

    def failed(self, wave: int, message: str) -> None:
        """Count a request that failed for good.

        Args:
            wave: The number that `admit` returned for it.
            message: The reason.
        """
        self._last = message
        if wave != self._wave:
            return
        self._wave += 1
        self._failures += 1
        if self._failures == self._limit:
            self._next_trial = self._clock() + self._trial_seconds

    def succeeded(self) -> int:
        """Reset the count of failures; returns the old count."""
        old_count, self._failures = self._failures, 0
        return old_count

    def retract_success(self, old_count: int, wave: int, message: str) -> None:
        """Turn a request that counted as a success into a failure; `old_count` is what `succeeded` returned for it."""
        self._failures = max(self._failures, old_count)
        self.failed(wave, message)
