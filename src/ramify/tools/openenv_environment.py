"""An OpenEnv server as an environment: the policy acts through one tool, whose arguments are the server's action.

The server keeps the state of an episode for each connection to its WebSocket `/ws`, so each trajectory has a connection
of its own. A server cannot copy a state: a branch reconnects, resets with the same seed and makes the path's calls
again. The messages are those of OpenEnv 0.10.

A server has room for few connections (`max_concurrent_envs`, 1 if its author says nothing). It needs one for each
trajectory of the trees that grow at the same time, and a few for branches whose replay fails and for actions that it
still runs after their deadline. A connection that it refuses fails its trajectory with the server's reason.

Needs websockets (`pip install 'ramify-rl[openenv]'`).
"""

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from ramify.core.errors import ConfigError, MachineError
from ramify.core.json_text import parse_object
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession
from ramify.core.tool_schema import plain_schema
from ramify.tools.configs import OpenEnvConfig
from ramify.tools.server_tools import ServerSession, server_tool

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from ramify.net.exchange import Answer

_SCHEMA_BYTES = 4 * 2**20
"""Most bytes of a server's description of itself."""
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


@dataclass(frozen=True, slots=True)
class OpenEnvEnvironment:
    """Implements `core.protocols.Environment`; `open_openenv` creates it."""

    config: OpenEnvConfig
    spec: ToolSpec
    branches: Literal["replay"] = field(default="replay", init=False)
    max_observations: int = field(default=0, init=False)
    scores: bool = field(default=False, init=False)
    opens: bool = field(default=True, init=False)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The one tool."""
        return {self.spec.name: self.spec}

    @property
    def seconds(self) -> float:
        """Deadline of opening a session, which includes the server's reset, and of closing it."""
        return self.config.timeout_seconds

    async def open(self, problem: Problem, seed: int) -> EnvironmentSession:  # noqa: ARG002 - it knows no problems
        """Connect, and reset the new state with `seed`.

        Raises:
            ConnectionError: The server cannot be reached.
            RefusedError: The server has no room for another session, or cannot reset.
        """
        return await _open_session(self.config.url, self.tools, seed)


def open_openenv(config: OpenEnvConfig) -> OpenEnvEnvironment:
    """Return the environment of a running server, with the tool that the server's action describes.

    Raises:
        ConfigError: At the address is no OpenEnv server, or one whose action has no fields.
        MachineError: Nothing answers at the address, or websockets is not installed.
    """
    if find_spec("websockets") is None:
        raise MachineError(
            "an OpenEnv server needs websockets, which is not installed: pip install 'ramify-rl[openenv]'"
        )
    where = f"environment.url: {config.url}"
    action = _action_schema(config, where)
    properties = {name: part for name, part in action["properties"].items() if name != "metadata"}
    if not properties:
        raise ConfigError(f"{where}: the server's action has no fields, so a policy has nothing to choose")
    parameters = {
        **{name: part for name, part in action.items() if name not in ("title", "description")},
        "type": "object",
        "properties": properties,
        "required": [name for name in action.get("required", ()) if name in properties],
    }
    described = config.instructions or action.get("description") or "Takes an action in the environment."
    spec = server_tool(config.tool, " ".join(described.split()), parameters, config.timeout_seconds)
    return OpenEnvEnvironment(config, spec)


def _action_schema(config: OpenEnvConfig, where: str) -> Mapping[str, Any]:
    """Return the JSON schema of the server's action; it has properties."""
    answer = _schema_answer(config, where)
    try:
        action = parse_object(answer.body)["action"]
    except (ValueError, KeyError):
        action = None
    if answer.status < 300 and "properties" in (schema := plain_schema(action)):
        return schema
    raise _no_openenv(where, answer.status)


def _schema_answer(config: OpenEnvConfig, where: str) -> "Answer":
    """Ask the server to describe itself, with one deadline for the whole answer.

    Raises:
        ConfigError, MachineError: As `open_openenv`.
    """
    from ramify.net.client import HttpSettings, get_once
    from ramify.net.failures import FailureKind, RequestFailedError

    limits = HttpSettings(timeout_seconds=config.timeout_seconds, attempts=1, max_bytes=_SCHEMA_BYTES)
    try:
        return get_once("openenv", limits, f"{config.url.rstrip('/')}/schema")
    except RequestFailedError as error:
        failure = error
    if failure.kind in (FailureKind.TIMEOUT, FailureKind.CONNECTION):
        raise MachineError(f"{where}: no server answers ({failure.detail}). Start it or fix the address.")
    if failure.kind is FailureKind.SERVER:
        raise MachineError(f"{where}: the server answered HTTP {failure.status} for /schema. See its log.")
    raise _no_openenv(where, failure.status or 200, f" ({failure.detail})")


def _no_openenv(where: str, status: int, reason: str = "") -> ConfigError:
    return ConfigError(
        f"{where}: expected the address of an OpenEnv server, without a route; its /schema (HTTP {status}) "
        f"describes no action{reason}"
    )


class RefusedError(Exception):
    """The server answered a request with an error; the connection may continue."""


async def _open_session(url: str, tools: Mapping[str, ToolSpec], seed: int) -> "OpenEnvSession":
    """Connect to the server at `url`, and reset the new state with `seed`.

    Raises:
        ConnectionError: The server cannot be reached.
        RefusedError: The server has no room for another session, or cannot reset.
    """
    from ramify.net.websocket import open_websocket

    session = OpenEnvSession(tools, await open_websocket(f"{url.rstrip('/')}/ws", _MAX_BYTES))
    try:
        await session.reset(seed % _SEEDS)
    except BaseException:
        await session.close()
        raise
    return session


@dataclass(slots=True)
class OpenEnvSession(ServerSession):
    """One connection: an episode on the server.

    A cancelled call makes the connection useless: its answer may still come, and would be taken for that of the next
    call.
    """

    tools: Mapping[str, ToolSpec]
    connection: "ClientConnection"
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
        self.opening = _text(outcome)

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

    async def close(self) -> None:
        """Have the server free the state; afterwards it has room for another session. A server that hangs is left alone."""
        from websockets.exceptions import ConnectionClosed

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
        from websockets.exceptions import ConnectionClosed

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
    """Return the dotted name of the field that an error is about; "action" if the server names none."""
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
