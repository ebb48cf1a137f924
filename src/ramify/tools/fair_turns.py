"""Places that clients take in turns, so that nobody waits for all that somebody else has asked for."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairTurns:
    """At most `limit` places. The next free one goes to the client whose turn it is, and of that client to the request whose turn
    it is: who asks one question waits for one of each of the others, not for all of them.

    Tasks of one event loop may share it.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        # Both dictionaries are in the order of turns.
        self._waiting: dict[Hashable, dict[Hashable, deque[asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def place(self, client: Hashable, request: Hashable) -> AsyncIterator[None]:
        """Wait for a place and have it while the block runs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, {}).setdefault(request, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had been given the place in the same moment
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
            if not turn.done():  # else whoever waited has left
                self._free -= 1
                turn.set_result(None)

    def _next(self) -> "asyncio.Future[None]":
        """The one whose turn it is; its client and its request go to the ends of their rows, or out of them."""
        client, requests = next(iter(self._waiting.items()))
        request, turns = next(iter(requests.items()))
        turn = turns.popleft()
        del requests[request], self._waiting[client]
        if turns:
            requests[request] = turns
        if requests:
            self._waiting[client] = requests
        return turn
