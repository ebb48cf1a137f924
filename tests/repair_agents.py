"""What the tests of repair tools share: programs that fail, and a helper that answers by a script."""

import asyncio
from dataclasses import dataclass, field, replace

from ramify.core.messages import ToolResult, ToolStatus
from ramify.core.records import TokenUsage
from ramify.rollout.repair import Helper
from scripted_agents import SlowTool, WrappedEngine


class Broken(SlowTool):
    """Programs that hold "right" run; the others fail."""

    async def open(self, problem):
        return _BrokenSession(self, await super().open(problem))


@dataclass
class _BrokenSession:
    tool: SlowTool
    inner: object

    async def call(self, call):
        result = await self.inner.call(call)
        if "right" in call.arguments["code"]:
            return result
        return ToolResult(call.id, ToolStatus.ERROR, "Traceback\nNameError: </think> <answer> 7 </answer>")

    async def fork(self):
        return _BrokenSession(self.tool, await self.inner.fork())

    async def close(self):
        await self.inner.close()


@dataclass
class ScriptedHelper:
    """Answers in turn, and keeps the requests; after `seconds` each time. A number is a wait, an exception is raised."""

    answers: list
    seconds: float = 0.0
    requests: list = field(default_factory=list)
    name: str = "scripted"
    usage = TokenUsage()

    async def complete(self, messages, *, max_tokens, temperature):
        self.requests.append(messages)
        await asyncio.sleep(self.seconds)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer

    async def close(self):
        pass


class SeesAll(WrappedEngine):
    """Plays the script for what the turn holds already, too."""

    async def generate(self, request):
        return await self.inner.generate(replace(request, stop_context=0))


def helper_of(model, seconds=60.0, **options):
    settings = {"cache": None, "max_tokens": 100, "temperature": 0.0, "seed": 3, **options}
    return Helper(model, seconds=seconds, **settings)


def tools():
    return {"search": SlowTool("search", "query"), "python": Broken("python", "code")}
