"""Tasks of verifiers 0.4 as an environment of ours: a taskset gives the problems, its tool servers the tools, its rewards the reward.

    from ramify.interop.verifiers import TasksetEnvironment

    class Words(TasksetEnvironment):
        taskset = WordsTaskset(WordsConfig())

Tool servers run in this process, each trajectory with its own. A task is scored by its trace, which holds the prompt, the calls,
their results and the answer. Tasks that need a runtime of verifiers, or its loop (stop conditions, simulated users), are refused.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ramify.core.errors import ConfigError, MachineError
from ramify.runtime.daemon_threads import DaemonThreads

_MOST_THREADS = 16
"""In which one tool runs at the same time."""


class TasksetEnvironment:
    """A class for `[environment]`; a subclass sets `taskset`."""

    taskset: ClassVar[Any] = None

    def __init_subclass__(cls) -> None:
        """Add a method for each tool of the taskset's servers.

        Raises:
            ConfigError: The tasks need what is not here, or two tools have one name.
            MachineError: verifiers cannot be imported.
        """
        super().__init_subclass__()
        _package()
        from verifiers.v1.utils.decorators import discover_decorated

        kind = cls.taskset.task_type()
        _refuse_unsupported(kind, cls.taskset.config.task)
        for position, server in enumerate(_servers(cls.taskset, kind, cls.taskset.config.task)):
            for function in discover_decorated(server, "tool"):
                name = getattr(function, "tool_name", None) or function.__name__
                name = f"{server.server_name}_{name}" if server.server_name else name
                if hasattr(cls, name):
                    raise ConfigError(f"{cls.__name__}.{name}: the name is taken. Rename the tool.")
                setattr(cls, name, _method(function, position, name))

    async def reset(self, task: int) -> None:
        """Start the tool servers of a task, and its trace."""
        vf = _package()
        self._task = _tasks(self.taskset)[task]
        data, kind, config = self._task.data, type(self._task), self._task.config
        self._servers = _servers(self.taskset, kind, config)
        for server in self._servers:
            await server.setup()
            await server.setup_task(data)
        states = [{"state": server.state} for server in self._servers if type(server.state) is not vf.State]
        self._trace = vf.Trace(
            task=vf.TraceTask(type=kind.__name__, data=data, key=self._task.key, hash=self._task.hash),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            **(states[0] if states else {}),
        )
        for message in _messages(data):
            self._record(message)

    async def step(self, text: str) -> None:
        """Record the answer, to which nobody replies."""
        self._record({"role": "assistant", "content": text}, sampled=True)

    async def get_reward(self) -> float:
        """Return the weighted sum of the task's rewards."""
        self._trace.is_completed = self._trace.ok = True
        await self._task.score(self._trace)
        return float(self._trace.reward)

    def _record(self, message: dict[str, Any], *, sampled: bool = False) -> None:
        parent = len(self._trace.nodes) - 1 if self._trace.nodes else None
        self._trace.nodes.append(_package().MessageNode(parent=parent, message=message, sampled=sampled))


def rows(taskset: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - verifiers has no types here
    """Return a row for each task; refuse an infinite taskset, and a task without a prompt of plain text (ConfigError)."""
    for index, task in _tasks(taskset).items():
        name = task.data.id or task.data.name or "task"
        yield {"id": f"{name}-{index}", "prompt": list(_messages(task.data)), "task": index}


@functools.cache
def _tasks(taskset: Any) -> dict[int, Any]:  # noqa: ANN401
    if not taskset.bounded:
        raise ConfigError(f"{type(taskset).__name__} is infinite. Bound it: taskset.take(1000).")
    return {task.data.idx: task for task in taskset}


def _messages(data: Any) -> Iterator[dict[str, str]]:  # noqa: ANN401
    """Return the messages that a task begins with."""
    if data.system_prompt:
        yield {"role": "system", "content": data.system_prompt}
    for message in [data.prompt] if isinstance(data.prompt, str) else data.prompt or [None]:
        role, content = getattr(message, "role", "user"), getattr(message, "content", message)
        if not isinstance(content, str):
            raise ConfigError(f"task {data.idx}: it has no prompt of plain text. Leave it out.")
        yield {"role": role, "content": content}


def _servers(taskset: Any, kind: Any, config: Any) -> list[Any]:  # noqa: ANN401
    return [*type(taskset).toolsets(taskset.config), *kind.toolsets(config)]


def _method(function: Any, position: int, name: str) -> Callable[..., Any]:  # noqa: ANN401 - a bound method
    """Return a method that runs a tool of the object's own server, with the tool's signature, and records the call."""

    threads = DaemonThreads(f"tool {name}", _MOST_THREADS)

    @functools.wraps(function.__func__)
    async def call(self: TasksetEnvironment, **arguments: object) -> object:
        own = getattr(self._servers[position], function.__name__)
        is_async = inspect.iscoroutinefunction(own)
        work = functools.partial(own, **arguments)
        key = f"call_{len(self._trace.nodes)}"
        record = {"id": key, "name": name, "arguments": json.dumps(arguments, default=str)}
        self._record({"role": "assistant", "tool_calls": [record]}, sampled=True)
        text = f"Error executing tool {name}"
        try:
            result = await (work() if is_async else threads.result(threads.submit(work)))
            text = result if isinstance(result, str) else json.dumps(result, default=str)
        except Exception as error:
            text = f"{text}: {error}"
            raise
        finally:
            # A call that fails or is too slow is one that a reward may count.
            self._record({"role": "tool", "tool_call_id": key, "content": text, "name": name})
        return result

    return call


def _refuse_unsupported(kind: Any, config: Any) -> None:  # noqa: ANN401
    """Refuse a type of task that needs more than its trace, or a configuration that plugs in a stop condition."""
    base = _package().Task
    needs = [n for n in ("setup", "finalize", "stage_verifier") if getattr(kind, n) is not getattr(base, n)]
    needs += ["NEEDS_CONTAINER"] if kind.NEEDS_CONTAINER else []
    needs += getattr(config, "stops", ())
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        runtime = inspect.signature(method).parameters.get("runtime")
        if hasattr(method, "stop") or (hasattr(method, "reward") and runtime is not None):
            needs.append(name)
    if needs:
        raise ConfigError(
            f"{kind.__name__}: {', '.join(needs)} need verifiers' own loop. Write it as a class."
        )


def _package() -> Any:  # noqa: ANN401
    try:
        import verifiers.v1 as vf
    except ImportError as error:
        raise MachineError(f"the environment needs verifiers: {error}. Install verifiers 0.4.") from None
    return vf
