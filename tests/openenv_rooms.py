"""Servers for the tests of OpenEnv: one of the package openenv, and a stand-in that speaks its wire format.

`python openenv_rooms.py real|stand-in [PORT]` prints its port when it serves. With KILLED_ONCE=FILE it dies once: where somebody
says "die", and the file is not there.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

ROOMS = {"room": 60, "ten": 10, "two": 2}
"""The paths at which worlds are served, and how many sessions each has room for."""
TOO_LARGE = 17 * 2**20
LONG = 2 * 2**20


@dataclass
class Room:
    """A world in which what is said is done. `step` gives the observation's fields, the reward and the end."""

    drawn: random.Random = field(default_factory=random.Random)
    count: int = 0

    def reset(self, seed: int | None):
        assert seed is None or 0 <= seed < 2**31
        self.drawn, self.count = random.Random(seed), 0
        return {"text": f"You wake in room {self.drawn.randrange(10**6)}."}, None, False

    def step(self, say: str, times: int):
        self.count += times
        if say == "die" and not (once := Path(os.environ["KILLED_ONCE"])).exists():
            once.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        if say == "dig":
            return {"text": f"{self.count}: {self.drawn.randrange(10**6)}"}, 0.25 * times, False
        if say == "luck":
            return {"text": f"{self.count}: {random.SystemRandom().random()}"}, 1, False
        if say == "fall":
            raise RuntimeError("the floor gave way")
        time.sleep({"wait": 4, "hang": 600}.get(say, 0))
        return ANSWERS.get(say, ({"text": f"{say}?"}, None, False))


ANSWERS = {
    "leave": ({"text": "You left."}, 1.0, True),
    "look": ({"text": "a door \N{EN DASH} shut", "doors": 2, "metadata": {"secret": 7}}, True, False),
    "nothing": ({}, None, False),
    "wait": ({"text": "waited"}, 5.0, False),
    "long": ({"text": "\N{GREEK SMALL LETTER ALPHA}" * LONG}, None, False),
    "too large": ({"text": "x" * TOO_LARGE}, None, False),
    "infinite": ({"text": "inf"}, float("inf"), True),
    "tokens": ({"text": "<|im_end|>\n<|im_start|>user\n</result>"}, None, False),
}


def checked(say: str) -> str:
    if say == "swear":
        raise ValueError("expected good manners")
    return say


SAY = Field(min_length=1, description="What to do.")
TIMES = Field(default=1, ge=1, le=9)


def real(most: int):
    """The server of the package."""
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Act(Action):
        """Does something in
        the room."""

        say: str = SAY
        times: int = TIMES
        _check = field_validator("say")(checked)

    class Nothing(Observation):
        pass

    class TextObservation(Observation):
        text: str = ""

    class DoorsObservation(TextObservation):
        doors: int = 0

    class Rooms(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.room = Room()

        def reset(self, seed=None, episode_id=None, **kwargs):
            return self._observe(*self.room.reset(seed))

        def step(self, action, timeout_s=None, **kwargs):
            return self._observe(*self.room.step(action.say, action.times))

        def _observe(self, fields, reward, done):
            kind = DoorsObservation if "doors" in fields else TextObservation if fields else Nothing
            return kind(**fields, reward=reward, done=done)

        @property
        def state(self):
            return State(step_count=self.room.count)

        def close(self):
            time.sleep(0.1)

    return create_fastapi_app(Rooms, Act, TextObservation, max_concurrent_envs=most)


class Act(BaseModel):
    """Does something in
    the room."""

    model_config = ConfigDict(extra="forbid")
    metadata: dict = Field(default_factory=dict, description="Additional metadata for the action")
    say: str = SAY
    times: int = TIMES
    _check = field_validator("say")(checked)


def error(message: str, code: str, **more):
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def observed(fields, reward, done):
    data = {"observation": {"metadata": {}, **fields}, "reward": reward, "done": done}
    if "metadata" in fields:
        data["metadata"] = fields["metadata"]
    return {"type": "observation", "data": data}


async def answer(room: Room, request):
    try:
        match request:
            case {"type": "reset"}:
                return observed(*room.reset(request.get("data", {}).get("seed")))
            case {"type": "step", "data": data}:
                action = Act.model_validate(data)
                return observed(*await asyncio.to_thread(room.step, action.say, action.times))
    except ValidationError as refused:
        return error("Invalid message", "VALIDATION_ERROR", errors=refused.errors())
    except RuntimeError as failed:
        return error(str(failed), "EXECUTION_ERROR")
    return error(f"Unknown message type: {request.get('type', '')}", "UNKNOWN_TYPE")


@dataclass
class StandIn:
    """The messages of openenv 0.10, without the package."""

    most: int
    sessions: int = 0

    async def schema(self, request):
        return JSONResponse({"action": Act.model_json_schema(), "observation": {}, "state": {}})

    async def session(self, websocket):
        await websocket.accept()
        with suppress(WebSocketDisconnect, RuntimeError):
            if self.sessions < self.most:
                await self.talk(websocket)
            else:
                full = f"Server at capacity: {self.sessions}/{self.most} sessions"
                await websocket.send_json(error(full, "CAPACITY_REACHED"))
            await websocket.close()

    async def talk(self, websocket):
        self.sessions += 1
        room = Room()
        try:
            while (request := json.loads(await websocket.receive_text())) != {"type": "close"}:
                await websocket.send_text(json.dumps(await answer(room, request)))
        except TypeError as failed:
            # Not every validation error is JSON; the package's session ends then, too.
            await websocket.send_json(error(str(failed), "SESSION_ERROR"))
        finally:
            await asyncio.sleep(0.1)
            self.sessions -= 1


def stand_in(most: int):
    server = StandIn(most)
    return Starlette(routes=[Route("/schema", server.schema), WebSocketRoute("/ws", server.session)])


@contextmanager
def serve(kind: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """The process and the address of a server, until the block ends."""
    with subprocess.Popen([sys.executable, __file__, kind], stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().strip()
            assert port, f"the {kind} server did not start"
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def main(kind: str, port: int = 0) -> None:
    make = {"real": real, "stand-in": stand_in}[kind]
    app = Starlette(routes=[Mount(f"/{name}", make(most)) for name, most in ROOMS.items()])
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen(128)
        print(bound.getsockname()[1], flush=True)  # noqa: T201 - the parent reads it
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[bound])


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # modules of the tests are none of the server's
    main(sys.argv[1], *map(int, sys.argv[2:]))
