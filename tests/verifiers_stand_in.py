"""What ramify reads of verifiers 0.4, as its `verifiers.v1` has it: for tests without the package."""

import inspect
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


def _mark(kind):
    def mark(function=None, weight=1.0):
        if function is None:
            return lambda function: mark(function, weight)
        setattr(function, kind, True)
        function._vf_weight = weight
        return function

    return mark


def discover_decorated(obj, kind):
    methods = [method for _, method in inspect.getmembers(obj, inspect.ismethod) if hasattr(method, kind)]
    return sorted(methods, key=lambda method: method.__name__)


@dataclass
class TaskData:
    prompt: Any = None
    system_prompt: str | None = None
    idx: int | None = None
    id: str | None = None
    name: str | None = None
    answer: str = ""


class State:
    pass


@dataclass
class MessageNode:
    message: Any
    parent: int | None = None
    sampled: bool = False

    def __post_init__(self):
        calls = [SimpleNamespace(**call) for call in self.message.get("tool_calls", ())]
        self.message = SimpleNamespace(**{"content": None, **self.message, "tool_calls": calls})


@dataclass
class Trace:
    task: Any
    agent: Any
    state: Any = None
    nodes: list = field(default_factory=list)
    rewards: dict = field(default_factory=dict)

    @property
    def reward(self):
        return sum(score * weight for score, weight in self.rewards.values())

    @property
    def last_reply(self):
        texts = [node.message.content for node in self.nodes if node.sampled]
        return (texts[-1] or "").strip() if texts else ""


class Task:
    NEEDS_CONTAINER = False
    key = hash = None

    def __init__(self, data, config=None):
        self.data, self.config = data, config

    @classmethod
    def toolsets(cls, config):
        return []

    async def setup(self, trace, runtime):
        pass

    async def finalize(self, trace, runtime):
        pass

    async def stage_verifier(self, trace, runtime):
        pass

    async def score(self, trace, runtime=None):
        for method in discover_decorated(self, "reward"):
            trace.rewards[method.__name__] = (await method(trace), method._vf_weight)


class Taskset:
    INFINITE = False

    def __init__(self, config):
        self.config = config

    def __class_getitem__(cls, kind):
        return type("Taskset", (cls,), {"task_type": classmethod(lambda _: kind)})

    @property
    def bounded(self):
        return not self.INFINITE

    def __iter__(self):
        for index, task in enumerate(self.load()):
            task.data.idx = index
            yield task

    @classmethod
    def toolsets(cls, config):
        return []


class Toolset:
    TOOL_PREFIX = ""

    def __class_getitem__(cls, kinds):
        return cls

    def __init__(self, config):
        self.config, self.state = config, State()

    @property
    def server_name(self):
        return type(self).__name__.lower() if self.TOOL_PREFIX == "" else self.TOOL_PREFIX or ""

    async def setup(self):
        pass

    async def setup_task(self, task):
        pass


def modules():
    """The modules by name."""
    vf = types.ModuleType("verifiers.v1")
    vf.__dict__.update({name: value for name, value in globals().items() if name[0].isupper()})
    vf.tool, vf.reward = _mark("tool"), _mark("reward")
    vf.TraceTask = vf.AgentInfo = vf.AgentConfig = vf.ToolsetConfig = SimpleNamespace
    vf.TasksetConfig = lambda: SimpleNamespace(task=None)
    decorators = types.ModuleType("verifiers.v1.utils.decorators")
    decorators.discover_decorated = discover_decorated
    package, utils = types.ModuleType("verifiers"), types.ModuleType("verifiers.v1.utils")
    package.v1, vf.utils, utils.decorators = vf, utils, decorators
    package.__path__ = vf.__path__ = utils.__path__ = []
    return {module.__name__: module for module in (package, vf, utils, decorators)}


def install(monkeypatch):
    """Put the stand-in where the package would be."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
