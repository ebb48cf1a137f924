"""The canonical spelling of keys and answers, and single flight: one call for identical requests that are pending."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from ramify.core.protocols import CacheKey, Json

_decoder: Final = json.JSONDecoder()
_quoted: Final = json.encoder.encode_basestring_ascii
_MOST_PARAMETERS: Final = 256
_parameters: Final[dict[str, str]] = {}
"""Most keys have the same parameters, so their canonical JSON is memoised."""


def encode(value: Json) -> str:
    """One line of JSON that preserves any text, lone surrogates included.

    Raises:
        TypeError: A value has no JSON form.
        ValueError: A number is NaN or infinite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text


def decode(text: str) -> Json:
    """What `encode` wrote."""
    value: Json = _decoder.raw_decode(text)[0]
    return value


def canonical(key: CacheKey) -> str:
    """One spelling of a key: ASCII JSON with sorted names."""
    spelled = repr(key.parameters)
    parameters = _parameters.get(spelled)
    if parameters is None:
        parameters = json.dumps(key.parameters, sort_keys=True, allow_nan=False, separators=(",", ":"))
        if len(_parameters) >= _MOST_PARAMETERS:
            _parameters.clear()
        _parameters[spelled] = parameters
    return f"[{_quoted(key.tool)},{_quoted(key.provider)},{parameters},{_quoted(key.request)}]"


def digest(key: CacheKey) -> bytes:
    """SHA-256 of the canonical key (32 bytes); answers are looked up by it."""
    return hashlib.sha256(canonical(key).encode("ascii")).digest()


def place(key_digest: bytes) -> int:
    """The row number and the byte of the claim of a key: the digest's first 62 bits, since a lock must end below 2**63."""
    return int.from_bytes(key_digest[:8], "big") >> 2


def is_empty(value: Json) -> bool:
    """Whether an answer says that nothing was found: None, "", [] or {}."""
    return value is None or value == "" or value == [] or value == {}


def named(key: CacheKey) -> str:
    """A key as messages show it; a long request is cut."""
    request = key.request if len(key.request) <= 80 else key.request[:77] + "..."
    return f"{key.tool} of {key.provider} for {request!r}"


class Flights:
    """Pending calls, by what they ask for.

    Each call is a task of its own. It goes on when its waiters are cancelled, since its answer may be paid for.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Json]] = {}

    async def join(self, name: Hashable, start: Callable[[], Awaitable[Json]]) -> Json:
        """The answer of the pending call `name`; if there is none, of `start`. Its error reaches all who wait."""
        task = self._tasks.get(name)
        if task is None or task.get_loop().is_closed():  # a task of a closed loop would never end
            task = asyncio.ensure_future(_run(start))
            self._tasks[name] = task
            task.add_done_callback(lambda done: self._landed(name, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel all pending calls."""
        tasks = [task for task in self._tasks.values() if not task.get_loop().is_closed()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, name: Hashable, task: asyncio.Task[Json]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled():
            task.exception()  # Marks it as retrieved: asyncio does not log it if all waiters are gone.


async def _run(start: Callable[[], Awaitable[Json]]) -> Json:
    return await start()
