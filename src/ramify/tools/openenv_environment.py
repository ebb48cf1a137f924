"""An OpenEnv server as an environment: the policy acts through one tool, whose arguments are the server's action.

The server keeps the state of an episode for each connection to its WebSocket `/ws`, so each trajectory has a connection
of its own. A server cannot copy a state: a branch reconnects, resets with the same seed and makes the path's calls
again. The messages are those of OpenEnv 0.10.

A server has room for few connections (`max_concurrent_envs`, 1 if its author says nothing). It needs one for each
trajectory of the trees that grow at the same time, and a few for branches whose replay fails and for actions that it
still runs after their deadline. A connection that it refuses fails its trajectory with the server's reason.

Needs websockets (`pip install 'ramify-rl[openenv]'`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from ramify.core.errors import ConfigError, MachineError
from ramify.core.json_text import parse_object
from ramify.core.messages import Problem, ToolSpec
from ramify.core.protocols import EnvironmentSession
from ramify.core.tool_schema import plain_schema
from ramify.tools.configs import OpenEnvConfig
from ramify.tools.server_tools import server_tool

if TYPE_CHECKING:
    from ramify.net.client import Answer

_SCHEMA_BYTES = 4 * 2**20
"""Most bytes of a server's description of itself."""


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
        from ramify.tools.openenv_session import open_session

        return await open_session(self.config.url, self.tools, seed)


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
