"""A server with OpenEnv's routes: `python openenv_server.py PORT [real]`, with the package openenv or a stand-in.

The stand-in speaks the wire format of openenv 0.10: `/schema`, and `/ws` with reset, step and close.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import uvicorn

MOST_SESSIONS = 40


class World:
    """Counts to a target that comes from the seed; odd numbers do something else."""

    def reset(self, seed=None):
        self.count, self.target = 0, 4 + (seed or 0) % 5
        return {"text": f"reach {self.target}"}, None, False

    def step(self, amount):
        match amount:
            case 901:
                os.kill(os.getpid(), signal.SIGKILL)
            case 902:
                time.sleep(3)
            case 903:
                raise RuntimeError("the world is gone")
            case 904:
                return {"text": "z" * (17 << 20)}, None, False
            case 905:
                return {"text": f"drawn {random.random()}"}, None, False
            case 907 if not (once := Path(os.environ["KILLED_ONCE"])).exists():
                once.write_text("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            case 906:
                return {"text": ""}, None, False
        self.count += amount
        done = self.count >= self.target
        return {"text": f"count {self.count}"}, float(self.count == self.target) if done else None, done


SCHEMA = {
    "description": "Adds to the count.",
    "properties": {
        "metadata": {"type": "object", "default": {}},
        "amount": {"type": "integer", "description": "How much."},
    },
    "required": ["amount"],
}


def answered(world, message):
    data = message["data"]
    try:
        if message["type"] == "reset":
            seen, reward, done = world.reset(data.get("seed"))
        elif not isinstance(data.get("amount"), int):
            wrong = [{"loc": ["amount"], "msg": "Input should be a valid integer"}]
            return {
                "type": "error",
                "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": wrong},
            }
        else:
            seen, reward, done = world.step(data["amount"])
    except RuntimeError as error:
        return {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}
    return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": done}}


def stand_in():
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocketDisconnect

    open_sessions = 0

    async def session(socket):
        nonlocal open_sessions
        await socket.accept()
        if open_sessions >= MOST_SESSIONS:
            await socket.send_json(
                {"type": "error", "data": {"message": "no room", "code": "CAPACITY_REACHED"}}
            )
            await socket.close()
            return
        open_sessions += 1
        world = World()
        try:
            while True:
                message = json.loads(await socket.receive_text())
                if message["type"] == "close":
                    return
                await socket.send_text(json.dumps(answered(world, message)))
        except WebSocketDisconnect:
            pass
        finally:
            open_sessions -= 1

    async def schema(request):
        return JSONResponse({"action": SCHEMA, "observation": {}, "state": {}})

    return Starlette(routes=[Route("/schema", schema), WebSocketRoute("/ws", session)])


def real():
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    from pydantic import Field

    class Add(Action):
        """Adds to the count."""

        amount: int = Field(description="How much.")

    class Seen(Observation):
        text: str = ""

    class Counting(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.world = World()

        def reset(self, seed=None, episode_id=None, **kwargs):
            seen, reward, done = self.world.reset(seed)
            return Seen(**seen, reward=reward, done=done)

        def step(self, action, timeout_s=None, **kwargs):
            seen, reward, done = self.world.step(action.amount)
            return Seen(**seen, reward=reward, done=done)

        @property
        def state(self):
            return State()

    return create_app(Counting, Add, Seen, env_name="counting", max_concurrent_envs=MOST_SESSIONS)


if __name__ == "__main__":
    app = real() if "real" in sys.argv else stand_in()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
