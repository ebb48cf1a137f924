"""A stand-in for an OpenEnv server, which dies once: `KILLED_ONCE=FILE python openenv_server.py PORT`.

It speaks the wire format of openenv 0.10: `/schema`, and `/ws` with reset, step and close.
"""

import json
import os
import signal
import sys
from pathlib import Path

import uvicorn


class World:
    """Counts to a target that comes from the seed; 907 ends the process the first time."""

    def reset(self, seed=None):
        self.count, self.target = 0, 4 + (seed or 0) % 5
        return {"text": f"reach {self.target}"}, None, False

    def step(self, amount):
        if amount == 907 and not (once := Path(os.environ["KILLED_ONCE"])).exists():
            once.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
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
    observation, reward, done = (
        world.reset(data.get("seed")) if message["type"] == "reset" else world.step(data["amount"])
    )
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def stand_in():
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocketDisconnect

    async def session(socket):
        await socket.accept()
        world = World()
        try:
            while True:
                message = json.loads(await socket.receive_text())
                if message["type"] == "close":
                    return
                await socket.send_text(json.dumps(answered(world, message)))
        except WebSocketDisconnect:
            pass

    async def schema(request):
        return JSONResponse({"action": SCHEMA, "observation": {}, "state": {}})

    return Starlette(routes=[Route("/schema", schema), WebSocketRoute("/ws", session)])


if __name__ == "__main__":
    uvicorn.run(stand_in(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
