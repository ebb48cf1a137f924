"""A scripted agent over a real renderer: what the rollout tests and the trainer tests play."""

import asyncio
from dataclasses import dataclass

from ramify.core.draws import stream, uniform
from ramify.core.messages import Message, Problem, ToolResult, ToolSpec, ToolStatus
from ramify.engines.scripted import ScriptedTurn


class SlowTool:
    """A tool whose answers depend on the call alone and whose latencies are drawn from `latency_seed`.

    Its state is the number of calls on the trajectory; a fork must copy it.
    """

    def __init__(self, name, argument, latency_seed=0, calls=None):
        self.spec = ToolSpec(
            name, "test tool", {"type": "object", "required": [argument]}, forks=True, timeout_seconds=1000.0
        )
        self.argument = argument
        self.latency_seed = latency_seed
        self.log = calls if calls is not None else []
        self.open_sessions = 0

    async def open(self, problem):
        self.open_sessions += 1
        return SlowSession(self, 0)


@dataclass
class SlowSession:
    tool: SlowTool
    calls: int
    closed: bool = False

    async def call(self, call):
        latency = uniform(stream(self.tool.latency_seed, call.id))
        await asyncio.sleep(100 * latency)
        self.calls += 1
        self.tool.log.append(call.id)
        return ToolResult(
            call.id, ToolStatus.OK, f"{call.arguments[self.tool.argument]} call {self.calls} answer 42"
        )

    async def fork(self):
        self.tool.open_sessions += 1
        return SlowSession(self.tool, self.calls)

    async def close(self):
        if not self.closed:
            self.closed = True
            self.tool.open_sessions -= 1


def script(context, seed):
    """Three turns at most; which tool, which entropy and when to answer come from the seed and the context."""
    done = context.count("\n</result>")
    first, second, third = (uniform(seed, index) for index in range(3))
    if done < 3 and first < 0.75:
        name = "search" if second < 0.5 else "python"
        text = f"<think> find {done} </think><{name}> print {int(third * 80)} </{name}>"
        return ScriptedTurn(text, (0.1 + second, 0.2 + third), seconds_per_token=0.01 + first)
    text = "<think> done </think><answer> \\boxed{ 42 } </answer>"
    return ScriptedTurn(text, (0.1 + second, 0.2 + third), seconds_per_token=0.5 * second)


def problem(identifier="p0", text="what is 12 plus 30 ?"):
    return Problem(identifier, (Message.of("user", text),), ("42",))
