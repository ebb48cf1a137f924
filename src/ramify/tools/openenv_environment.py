"""An OpenEnv server as an environment, over its WebSocket `/ws`; the policy acts through one tool.

A connection has a state of its own on the server, so each trajectory has one. A server cannot copy its state; a branch
opens a new connection with the same seed and makes the path's calls again. The wire format is that of openenv 0.10.

Needs the package websockets (`ramify-rl[openenv]`).
"""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ramify.core.errors import ConfigError, MachineError
from ramify.core.messages import Observation, ParsedTurn, Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession
from ramify.core.tree import Trajectory
from ramify.net.secrets import shown
from ramify.tools.configs import OpenEnvConfig
from ramify.user_files import one_line

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_MAX_BYTES = 16 << 20
"""Size of the largest message that is read."""
_GOODBYE_SECONDS = 2.0
_SEEDS = 1 << 31
"""Servers take seeds below this."""
_NOT_SHOWN = frozenset({"metadata", "done", "reward"})


@dataclass(frozen=True, slots=True)
class OpenEnvEnvironment:
    """Implements `core.protocols.Environment` with the action that a server described when `open_openenv` asked it."""

    config: OpenEnvConfig
    tools: Mapping[str, ToolSpec]
    branches: Literal["replay"] = field(default="replay", init=False)
    max_observations: int = field(default=0, init=False)
    scores: bool = field(default=False, init=False)
    opens: bool = field(default=True, init=False)

    @property
    def seconds(self) -> float:
        """Deadline of opening and closing a session."""
        return self.config.timeout_seconds

    async def open(self, problem: Problem, seed: int) -> EnvironmentSession:  # noqa: ARG002 - a server is told no problem
        """Connect for one trajectory, and reset the server's environment with the tree's seed.

        Raises:
            ConnectionError: The server cannot be reached, has no room for another session, or cannot reset.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        address = self.config.url.rstrip("/").replace("http", "ws", 1) + "/ws"
        try:
            socket = await connect(
                address, max_size=_MAX_BYTES, open_timeout=None, close_timeout=_GOODBYE_SECONDS
            )
        except (OSError, WebSocketException) as error:
            raise ConnectionError(f"{shown(address)}: {one_line(error)}") from error
        session = OpenEnvSession(self.tools, socket)
        try:
            answer = await session.ask({"type": "reset", "data": {"seed": seed % _SEEDS}})
            session.opening = f"\n\n{text}" if (text := _text(answer)) else ""
        except BaseException:
            await session.close()
            raise
        return session


def open_openenv(config: OpenEnvConfig) -> OpenEnvEnvironment:
    """The environment, after the server has described its actions.

    Raises:
        ConfigError: The address is no OpenEnv server's.
        MachineError: The package websockets is missing, or the server does not answer.
    """
    import httpx

    try:
        import websockets  # noqa: F401 - the first use is in a session
    except ImportError:
        raise MachineError(
            "an OpenEnv server needs the package websockets: pip install 'ramify-rl[openenv]'"
        ) from None
    place = f"openenv: {shown(config.url)}"
    try:
        answer = httpx.get(f"{config.url.rstrip('/')}/schema", timeout=config.timeout_seconds)
    except httpx.HTTPError as error:
        raise MachineError(f"{place}: {one_line(error)}; is the server running?") from None
    try:
        schema = answer.raise_for_status().json()["action"]
        properties = {name: part for name, part in schema["properties"].items() if name not in _NOT_SHOWN}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{place}: expected the address of an OpenEnv server, but its /schema describes no action"
        ) from None
    if not properties:
        raise ConfigError(
            f"{place}: its action has no fields, so there is nothing that a policy could choose"
        )
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [name for name in schema.get("required", ()) if name in properties],
        **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
    }
    about = str(schema.get("description") or "Acts in the environment, and says what it is like then.")
    spec = ToolSpec(
        config.tool, " ".join(about.split()), parameters, True, config.timeout_seconds, in_prompt=True
    )
    return OpenEnvEnvironment(config, {config.tool: spec})


@dataclass(slots=True)
class OpenEnvSession:
    """A trajectory's connection; `broken` says why it can be used no more."""

    tools: Mapping[str, ToolSpec]
    socket: "ClientConnection"
    opening: str = ""
    broken: str = ""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of the server's answer.

        Raises:
            ConnectionError: The connection has ended, or the answer is none of OpenEnv's.
            RefusedError: The server answered with an error; the connection goes on.
        """
        from websockets.exceptions import WebSocketException

        async with self._asking:
            if self.broken:
                raise ConnectionError(self.broken)
            try:
                await self.socket.send(json.dumps(message, allow_nan=False))
                answer = json.loads(await self.socket.recv())
                kind, data = answer["type"], dict(answer["data"])
            except asyncio.CancelledError:
                # Its answer may still come, and would be taken for that of the next call.
                self.broken = "a call before this one got no answer in time"
                raise
            except (OSError, WebSocketException, ValueError, KeyError, TypeError) as error:
                self.broken = f"the session has ended: {one_line(error)}"
                raise ConnectionError(self.broken) from error
        if kind != "observation":
            raise RefusedError(_refusal(data))
        return data

    async def call(self, call: ToolCall) -> ToolResult:
        """Take one step. A server that has ended is an error at once, for this call and all later ones."""
        try:
            data = await self.ask({"type": "step", "data": dict(call.arguments)})
        except (ConnectionError, RefusedError) as error:
            return ToolResult(call.id, ToolStatus.ERROR, f"{call.name} failed: {error}")
        paid, text = data.get("reward") or 0.0, _text(data)
        if not isinstance(paid, int | float) or not math.isfinite(paid):
            return ToolResult(call.id, ToolStatus.ERROR, f"{call.name} failed: its reward is {paid!r:.60}")
        status = ToolStatus.OK if text else ToolStatus.EMPTY
        return ToolResult(
            call.id,
            status,
            text or f"{call.name} returned nothing.",
            reward=float(paid),
            ends=bool(data.get("done")),
        )

    async def step(self, turn: ParsedTurn) -> Observation:  # noqa: ARG002 - nobody is there
        """Nothing."""
        return Observation()

    async def fork(self, seed: int) -> EnvironmentSession:
        """Never asked.

        Raises:
            NotImplementedError: Always; a branch makes the calls again.
        """
        raise NotImplementedError("a server's state cannot be copied")

    async def score(self, trajectory: Trajectory) -> float:  # noqa: ARG002 - each step was paid
        """Nothing."""
        return 0.0

    async def close(self) -> None:
        """End the connection; the server then drops its environment."""
        self.broken = self.broken or "the session was closed"
        await self.socket.close()


class RefusedError(Exception):
    """The server answered a request with an error."""


def _refusal(data: Mapping[str, Any]) -> str:
    """An error of the server, with the first fields that were wrong."""
    told = [
        f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}"
        for each in data.get("errors", ())[:3]
    ]
    return "; ".join([str(data.get("message", "error")), *told])


def _text(data: Mapping[str, Any]) -> str:
    """An observation as text: its only field if that is a text, else compact JSON."""
    seen = data.get("observation")
    if isinstance(seen, Mapping):
        seen = {name: value for name, value in seen.items() if name not in _NOT_SHOWN}
        if len(seen) == 1 and isinstance(only := next(iter(seen.values())), str):
            return only
    return json.dumps(seen, ensure_ascii=False, separators=(",", ":")) if seen else ""
