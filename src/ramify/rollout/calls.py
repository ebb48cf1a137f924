"""Tool calls under a deadline: whatever a tool does, the loop gets a typed answer in time."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ramify.core.errors import RamifyError
from ramify.core.messages import ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import Event, ToolSession
from ramify.core.tree import TreeKey
from ramify.rollout.settings import AgentParts

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing came of asking a tool: its deadline fired (`raised` is None) or it raised."""

    raised: Exception | None

    @property
    def reason(self) -> str:
        """In words, for the policy."""
        if self.raised is None:
            return "it did not answer in time"
        return f"{type(self.raised).__name__}: {self.raised}"


async def run_calls(
    parts: AgentParts,
    key: TreeKey,
    node: str,
    calls: tuple[ToolCall, ...],
    sessions: Mapping[str, ToolSession],
) -> tuple[ToolResult, ...]:
    """Run the calls of one turn in order. Whatever happens to one is a typed result.

    `node` is the id of the policy node that called.
    """
    return tuple([await _run_call(parts, key, node, call, sessions) for call in calls])


async def within(seconds: float, asked: Coroutine[Any, Any, Value]) -> Value | Failure:
    """What `asked` returns, or why it did not; one that ignores its cancellation is left behind."""
    return await _first_good((asyncio.ensure_future(asked),), seconds)


async def _run_call(
    parts: AgentParts, key: TreeKey, node: str, call: ToolCall, sessions: Mapping[str, ToolSession]
) -> ToolResult:
    if call.name not in sessions:
        return ToolResult(call.id, ToolStatus.UNKNOWN_TOOL, f"There is no tool named {call.name}.")
    if call.malformed is not None:
        text = f"The call to {call.name} was not run: {call.malformed}."
        return ToolResult(call.id, ToolStatus.MALFORMED, text)
    spec = parts.tools[call.name].spec
    loop = asyncio.get_running_loop()
    started = loop.time()
    with parts.waits.on(call.name):
        answer, issued = await _ask(sessions[call.name], call, spec)
    result = _shortened(_typed(answer, call, spec), parts.limits.max_result_chars)
    seconds = loop.time() - started
    fields = {"status": result.status, "issued": issued}
    parts.events.emit(Event(f"tool/{call.name}", (key.step, key.slot), node, seconds, fields))
    return result


async def _ask(session: ToolSession, call: ToolCall, spec: ToolSpec) -> tuple[ToolResult | Failure, int]:
    """The answer, and how often the call was issued: a slow call that may run twice is issued once more."""
    first = asyncio.ensure_future(session.call(call))
    left = spec.timeout_seconds
    if spec.hedge_seconds is None or spec.hedge_seconds >= left:
        return await _first_good((first,), left), 1
    try:
        done, _ = await asyncio.wait((first,), timeout=spec.hedge_seconds)
    except asyncio.CancelledError:
        _abandon(first)
        raise
    if done:
        return await _first_good((first,), 0.0), 1
    second = asyncio.ensure_future(session.call(call))
    return await _first_good((first, second), left - spec.hedge_seconds), 2


async def _first_good(tasks: tuple["asyncio.Task[Value]", ...], seconds: float) -> Value | Failure:
    """The first value; when there is none in time, the last failure."""
    ends = asyncio.get_running_loop().time() + seconds
    pending, failure = set(tasks), Failure(None)
    try:
        while pending:
            left = max(0.0, ends - asyncio.get_running_loop().time())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return Failure(None)
            for task in done:
                try:
                    return task.result()
                except RamifyError:
                    raise
                except asyncio.CancelledError:
                    failure = Failure(RuntimeError("it was cancelled"))
                except Exception as error:  # noqa: BLE001 - a tool may raise anything; the policy is told
                    failure = Failure(error)
        return failure
    finally:
        for task in pending:
            _abandon(task)


def _abandon(task: "asyncio.Task[Any]") -> None:
    """Cancel without waiting: a task that goes on all the same must not hold up the trajectory."""
    task.cancel()
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _typed(answer: ToolResult | Failure, call: ToolCall, spec: ToolSpec) -> ToolResult:
    if isinstance(answer, ToolResult):
        return answer
    if not isinstance(answer, Failure):
        answer = Failure(TypeError(f"it answered with {type(answer).__name__}, not with a ToolResult"))
    if answer.raised is None:
        text = f"The call to {call.name} was stopped after {spec.timeout_seconds:g} seconds."
        return ToolResult(call.id, ToolStatus.TIMEOUT, text)
    text = f"The call to {call.name} failed: {answer.reason}"
    return ToolResult(call.id, ToolStatus.ERROR, text, {"raised": type(answer.raised).__name__})


def _shortened(result: ToolResult, limit: int) -> ToolResult:
    left_out = len(result.text) - limit
    if left_out <= 0:
        return result
    text = f"{result.text[:limit]}\n[cut: {left_out} more characters]"
    return replace(result, text=text, info={**result.info, "cut_chars": left_out})
