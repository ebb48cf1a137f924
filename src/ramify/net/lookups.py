"""DNS lookups in threads of their own, so that a slow name service blocks nothing else."""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

_AT_ONE_TIME: Final = 32


class Lookups:
    """Asks the machine's name service. Event loops can share one object.

    A lookup cannot be stopped and may take minutes. A few of them would use up the event loop's default threads, and
    the process would wait for those threads at its end. It does not wait for the daemon threads used here.
    """

    def __init__(self, at_one_time: int = _AT_ONE_TIME) -> None:
        """Args:
        at_one_time: Most concurrent threads; a thread ends when no lookup is waiting.
        """
        self._most = at_one_time
        self._threads = 0
        self._waiting: deque[tuple[Future[Sequence[str]], str, int]] = deque()
        self._lock = threading.Lock()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of `host`. A lookup that is cancelled before it began is skipped.

        Raises:
            OSError, UnicodeError: The host has no address.
        """
        found: Future[Sequence[str]] = Future()
        with self._lock:
            self._waiting.append((found, host, port))
            needs_thread = self._threads < self._most
            self._threads += needs_thread
        if needs_thread:
            threading.Thread(target=self._work, name="name lookup", daemon=True).start()
        return await asyncio.wrap_future(found)

    def _work(self) -> None:
        while (task := self._next()) is not None:
            found, host, port = task
            if not found.set_running_or_notify_cancel():
                continue
            try:
                entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:  # noqa: BLE001 - passed on to the caller
                found.set_exception(error)
            else:
                found.set_result(tuple(dict.fromkeys(str(entry[4][0]) for entry in entries)))

    def _next(self) -> tuple[Future[Sequence[str]], str, int] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
