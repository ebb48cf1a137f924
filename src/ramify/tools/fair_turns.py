"""A semaphore that clients use in turn, so that nobody waits for all requests of somebody else."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairTurns:
    """A semaphore with `limit` places, handed out round-robin over clients, and over each client's requests.

    So a client with one question waits for one question of each other client, not for all of them. Tasks of one event
    loop may share it.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        # Clients, and each client's requests, in the order of their turns.
        self._waiting: dict[Hashable, dict[Hashable, deque[asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def place(self, client: Hashable, request: Hashable) -> AsyncIterator[None]:
        """Wait for a place and hold it while the block runs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, {}).setdefault(request, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got its place just before it was cancelled
                self._give_back()
            raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            turn = self._next()
            if not turn.done():  # else the waiter was cancelled
                self._free -= 1
                turn.set_result(None)

    def _next(self) -> "asyncio.Future[None]":
        """The next in turn; its client and its request move to the end of their queues, or leave them when empty."""
        client, requests = next(iter(self._waiting.items()))
        request, turns = next(iter(requests.items()))
        turn = turns.popleft()
        del requests[request], self._waiting[client]
        if turns:
            requests[request] = turns
        if requests:
            self._waiting[client] = requests
        return turn
