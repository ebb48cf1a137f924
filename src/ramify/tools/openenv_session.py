"""One episode on an OpenEnv server: a connection to its WebSocket `/ws`, with the messages of OpenEnv 0.10."""

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from ramify.core.json_text import parse_object
from ramify.core.messages import Observation, ParsedTurn, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession
from ramify.core.tree import Trajectory
from ramify.net.websocket import open_websocket

_MAX_BYTES = 16 * 2**20
"""Size of the largest message of a server; a larger one ends the connection."""
_CLOSE_SECONDS = 2.0
"""Time that a server has to free a state."""
_SEEDS = 2**31
"""Seeds are below this: environments pass them on to libraries that take 32 bits, some of them signed."""
_METADATA = "metadata"
"""Removed from observations at every depth: it may hold the answer."""
_COPIED = ("reward", "done")
"""Fields that an observation may repeat from the message around it."""


class RefusedError(Exception):
    """The server answered a request with an error; the connection may continue."""


async def open_session(url: str, tools: Mapping[str, ToolSpec], seed: int) -> "OpenEnvSession":
    """Connect to the server at `url`, and reset the new state with `seed`.

    Raises:
        ConnectionError: The server cannot be reached.
        RefusedError: The server has no room for another session, or cannot reset.
    """
    session = OpenEnvSession(tools, await open_websocket(f"{url.rstrip('/')}/ws", _MAX_BYTES))
    try:
        await session.reset(seed % _SEEDS)
    except BaseException:
        await session.close()
        raise
    return session


@dataclass(slots=True)
class OpenEnvSession:
    """One connection: an episode on the server.

    A cancelled call makes the connection useless: its answer may still come, and would be taken for that of the next
    call.
    """

    tools: Mapping[str, ToolSpec]
    connection: ClientConnection
    opening: str = field(default="", init=False)
    _lost: str = field(default="", init=False)
    _is_closed: bool = field(default=False, init=False)

    async def reset(self, seed: int) -> None:
        """Begin the episode; its first observation is the opening. A reward is ignored, as no turn has earned it.

        Raises:
            ConnectionError: The connection is lost.
            RefusedError: The server did not reset, or the episode is over at once.
        """
        outcome = await self._request("reset", {"seed": seed})
        if outcome.get("done") is True:
            raise RefusedError("the episode is over as soon as it begins")
        text = _text(outcome)
        self.opening = f"\n\n{text}" if text else ""

    async def call(self, call: ToolCall) -> ToolResult:
        """Take the action that the arguments describe. A lost connection is reported at once, now and later."""
        # The tool's parameters leave the action's metadata out; a server may trust them.
        action = {name: value for name, value in call.arguments.items() if name != _METADATA}
        try:
            outcome = await self._request("step", action)
        except RefusedError as error:
            return ToolResult(call.id, ToolStatus.ERROR, f"The environment refused: {error}")
        except ConnectionError as error:
            return ToolResult(call.id, ToolStatus.ERROR, f"The environment is not available: {error}")
        is_over, reward, text = outcome.get("done") is True, _reward(outcome.get("reward")), _text(outcome)
        if reward is None:
            text = "The environment paid a reward that is not a finite number."
            return ToolResult(call.id, ToolStatus.ERROR, text, ends=is_over)
        status = ToolStatus.OK if text else ToolStatus.EMPTY
        text = text or "The environment shows nothing."
        return ToolResult(call.id, status, text, reward=reward, ends=is_over)

    async def step(self, turn: ParsedTurn) -> Observation:  # noqa: ARG002 - there is no user
        """Return an empty observation."""
        return Observation()

    async def fork(self, seed: int) -> EnvironmentSession:
        """Refuse: a server cannot copy a state.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("OpenEnv servers cannot copy a state; branches replay")

    async def score(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - each step was paid
        """Return 0."""
        return 0.0

    async def close(self) -> None:
        """Have the server free the state; afterwards it has room for another session. A server that hangs is left alone."""
        if self._is_closed:
            return
        self._is_closed, is_lost = True, bool(self._lost)
        self._lost = self._lost or "the session is closed"
        try:
            if not is_lost:
                # The server ends the connection once it has freed the state.
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self.connection.send('{"type": "close"}')
                    await self.connection.wait_closed()
        except (TimeoutError, ConnectionClosed):
            pass
        finally:
            self.connection.transport.abort()

    async def _request(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return the answer: observation, reward, done.

        Raises:
            ConnectionError: The connection is lost.
            RefusedError: The server answered with an error.
        """
        request = json.dumps({"type": kind, "data": data})
        if self._lost:
            raise ConnectionError(self._lost)
        self._lost = "it did not answer an earlier request"
        try:
            # A server that closes says why before: that can be read even if nothing can be sent any more.
            with suppress(ConnectionClosed):
                await self.connection.send(request)
            answer = parse_object(await self.connection.recv())
            answer_type, content = answer.get("type"), answer.get("data")
            if answer_type not in ("observation", "error") or not isinstance(content, dict):
                raise ValueError
        except ConnectionClosed as closed:
            self._lost = f"the session has ended ({' '.join(str(closed).split())})"
            raise ConnectionError(self._lost) from None
        except ValueError:
            self._lost = "it answered with something that is not a message of OpenEnv"
            raise ConnectionError(self._lost) from None
        self._lost = ""
        if answer_type == "error":
            raise RefusedError(_refusal(content))
        return content


def _refusal(error: Mapping[str, Any]) -> str:
    """Return the errors of an action, field by field; without them, the server's message."""
    errors = error.get("errors")
    if isinstance(errors, list) and errors and all(isinstance(each, Mapping) for each in errors):
        return "; ".join(f"{_field(each.get('loc'))}: {each.get('msg')}" for each in errors)
    return str(error.get("message") or "the server does not say why")


def _field(loc: object) -> str:
    """Return the field that an error is about: pydantic's path to it, or what another server sends instead."""
    path = loc if isinstance(loc, list) else [] if loc is None else [loc]
    return ".".join(map(str, path)) or "action"


def _reward(value: object) -> float | None:
    """Return the reward as a number; None if it is not a finite one."""
    if value is None:
        return 0.0
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _text(data: Mapping[str, Any]) -> str:
    """Return the observation as text: its only field if that is a text, else JSON; "" if there is nothing in it."""
    observation = _without_metadata(data.get("observation"))
    if isinstance(observation, dict):
        observation = {name: value for name, value in observation.items() if name not in _COPIED}
        if len(observation) == 1 and isinstance(only := next(iter(observation.values())), str):
            return only
    return json.dumps(observation, ensure_ascii=False, separators=(",", ":")) if observation else ""


def _without_metadata(value: object) -> object:
    """Leave out `metadata` at every depth: an observation may contain another."""
    if isinstance(value, dict):
        return {name: _without_metadata(inner) for name, inner in value.items() if name != _METADATA}
    return [*map(_without_metadata, value)] if isinstance(value, list) else value
