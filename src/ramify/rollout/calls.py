"""Tool calls: under deadlines, with hedging, and checked; and awaiting what may never end."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ramify.core.errors import ContentError, RamifyError, SignalInterrupt
from ramify.core.json_text import cut_to, parse_json
from ramify.core.messages import ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import EnvironmentSession, Event
from ramify.core.tree import TreeKey
from ramify.net.secrets import redact
from ramify.rollout.settings import AgentParts
from ramify.runtime.agent_loop import abandon, seconds_held_up
from ramify.runtime.call_clock import CallClock, set_clock

Value = TypeVar("Value")

_MOST_NAMED = 16
"""Tools that the result of an unknown one lists."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call gave no value: its time was up (`raised` is None), or it raised."""

    raised: BaseException | None

    @property
    def reason(self) -> str:
        """In words, for the policy."""
        if self.raised is None:
            return "it did not answer in time"
        if isinstance(self.raised, ContentError):
            return str(self.raised)
        name = type(self.raised).__name__
        try:
            return f"{name}: {self.raised}"
        except Exception:  # noqa: BLE001 - its message is code that is not ours either
            return name


@dataclass(frozen=True, slots=True)
class PendingCall(Generic[Value]):
    """A call in progress. The task returns a value or a failure; only errors of the run are raised."""

    task: "asyncio.Task[Value | Failure]"
    clock: CallClock


def issue(ask: Callable[[], Awaitable[Value]]) -> PendingCall[Value]:
    """Start a call, and a clock that measures the call's own time."""
    clock = CallClock(asyncio.get_running_loop().time, seconds_held_up)
    return PendingCall(asyncio.ensure_future(_caught(ask, clock)), clock)


async def first_good(issued: "tuple[PendingCall[Value], ...]", seconds: float) -> Value | Failure:
    """Return the first value, or the last failure once all calls have failed; calls that still run are abandoned.

    Once the first call has taken `seconds` of its own time, the result is a failure without an exception.
    """
    clock = issued[0].clock
    pending = {call.task for call in issued}
    failure = Failure(None)
    try:
        while pending:
            if not await clock.wait(pending, seconds):
                return Failure(None)
            done = [call.task for call in issued if call.task in pending and call.task.done()]
            pending.difference_update(done)
            for answer in (task.result() for task in done):
                if not isinstance(answer, Failure):
                    return answer
                failure = answer
        return failure
    finally:
        for call in issued:
            abandon(call.task)


async def within(seconds: float, ask: Callable[[], Awaitable[Value]]) -> Value | Failure:
    """Return the value of a call that may take `seconds` of its own time, or why it gave none."""
    return await first_good((issue(ask),), seconds)


async def detached(who: str, coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Return or raise what `coroutine` does; but when the caller is cancelled, do not wait for its end.

    Raises:
        RuntimeError: `coroutine` cancelled itself; passing that on would lose the trajectory silently.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait((task,))
    finally:
        abandon(task)
    if task.cancelled():
        raise RuntimeError(f"{who} cancelled its own call")
    return task.result()


async def _caught(ask: Callable[[], Awaitable[Value]], clock: CallClock) -> Value | Failure:
    set_clock(clock)
    try:
        return await ask()
    except ContentError as error:
        return Failure(error)
    except (RamifyError, SignalInterrupt):
        raise
    # Also SystemExit and KeyboardInterrupt, which no signal raises here, a library's panic, or a call that cancels itself: the
    # policy reads it and the run goes on.
    except BaseException as error:  # noqa: BLE001
        return Failure(error)


async def run_calls(
    parts: AgentParts,
    key: TreeKey,
    node: str,
    calls: tuple[ToolCall, ...],
    session: EnvironmentSession,
) -> tuple[ToolResult, ...]:
    """Run the calls of one turn in order; whatever happens to a call, it gives a typed result.

    Calls after one whose result ends the trajectory are not run. `node` is the id of the policy node with the calls.
    """
    results: list[ToolResult] = []
    for call in calls:
        if any(result.ends for result in results):
            result = not_run(call)
        else:
            result = await _run_call(parts, key, node, call, session)
        # A user's own tool may fail with an address that holds a key, which no model or trace should see. A name may be long too.
        result = replace(result, text=redact(result.text))
        results.append(_shortened(result, parts.limits.max_result_chars))
    return tuple(results)


def not_run(call: ToolCall) -> ToolResult:
    """Return the result of a call after one that ended the trajectory."""
    text = f"The call to {call.name} was not run: the environment had ended the trajectory."
    return ToolResult(call.id, ToolStatus.ERROR, text)


async def _run_call(
    parts: AgentParts, key: TreeKey, node: str, call: ToolCall, session: EnvironmentSession
) -> ToolResult:
    if call.malformed is not None:
        text = f"The call to {call.name} was not run: {call.malformed}."
        return ToolResult(call.id, ToolStatus.MALFORMED, text)
    spec = session.tools.get(call.name)
    if spec is None:
        names = list(session.tools)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        tools = ", ".join(names[:_MOST_NAMED]) + more
        text = f"There is no tool named {call.name}." + (f" The tools are: {tools}." if tools else "")
        return ToolResult(call.id, ToolStatus.UNKNOWN_TOOL, text)
    with parts.waits.on(call.name):
        answer, issued = await _ask(session, call, spec)
    result = _typed(answer, call, spec)
    clock = issued[0].clock
    services = service_outcomes(result.info)
    for call_issue in issued:
        services.update(call_issue.clock.counts)
    fields = {
        "status": result.status,
        "issued": len(issued),
        "queued_seconds": clock.queued,
        "held_up_seconds": clock.held_up,
        **({"debugger": result.info["debugger"]} if "debugger" in result.info else {}),
        **({"services": dict(services)} if services else {}),
    }
    parts.events.emit(Event(f"tool/{call.name}", (key.step, key.slot), node, clock.own, fields, clock.began))
    return result


def service_outcomes(info: Mapping[str, Any]) -> Counter[str]:
    """Return the outcomes of pages and summaries that the info of a result names, "pages/ok" and so on; empty for other tools."""
    pages, summary = info.get("pages"), info.get("summary")
    if not isinstance(pages, list):
        return Counter()
    outcomes = [page.get("read") for page in pages if isinstance(page, Mapping)]
    # A hit without an address has no page.
    counts = Counter(f"pages/{each}" for each in outcomes if isinstance(each, str) and each != "no address")
    if isinstance(summary, str):
        counts[f"summaries/{summary}"] += 1
    return counts


async def _ask(
    session: EnvironmentSession, call: ToolCall, spec: ToolSpec
) -> tuple[ToolResult | Failure, tuple[PendingCall[ToolResult], ...]]:
    """Return the answer, and every issue of the call: a slow call that may run twice is issued a second time."""
    first = issue(partial(checked_result, session, call))
    if spec.hedge_seconds is None or spec.hedge_seconds >= spec.timeout_seconds:
        return await first_good((first,), spec.timeout_seconds), (first,)
    try:
        is_done = await first.clock.wait((first.task,), spec.hedge_seconds)
    except asyncio.CancelledError:
        abandon(first.task)
        raise
    both = (first,) if is_done else (first, issue(partial(checked_result, session, call)))
    return await first_good(both, spec.timeout_seconds), both


async def checked_result(session: EnvironmentSession, call: ToolCall) -> ToolResult:
    """Return the answer of a tool, checked: it must be possible to show it, record it and read it back.

    Raises:
        TypeError: It is not.
    """
    answer: object = await session.call(call)
    if not isinstance(answer, ToolResult):
        raise TypeError(f"it answered with {type(answer).__name__}, not with a ToolResult")
    if not isinstance(answer.text, str) or not isinstance(answer.status, ToolStatus):
        raise TypeError("its answer has no text or no status")
    if not isinstance(answer.info, Mapping) or (answer.info and not _keeps(answer.info)):
        raise TypeError("the info of its answer would not come back from JSON as it was")
    if not is_paid(answer.reward) or not all(
        isinstance(mark, bool) for mark in (answer.ends, answer.ambiguous)
    ):
        raise TypeError(
            "the reward of its answer is not a finite number, or `ends` or `ambiguous` is not a bool"
        )
    return replace(answer, call_id=call.id)


def is_paid(reward: object) -> bool:
    """Return True if an environment can pay `reward`: a finite number."""
    return isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)


def _keeps(info: Mapping[str, Any]) -> bool:
    """Return True if `info` survives a round trip through JSON unchanged, and is not too deep for a trace."""
    try:
        return bool(parse_json(json.dumps(info, allow_nan=False, default=dict)) == info)
    except (TypeError, ValueError, RecursionError):
        return False


def _typed(answer: ToolResult | Failure, call: ToolCall, spec: ToolSpec) -> ToolResult:
    if isinstance(answer, ToolResult):
        return answer
    if answer.raised is None:
        text = f"The call to {call.name} was stopped after {spec.timeout_seconds:g} seconds."
        return ToolResult(call.id, ToolStatus.TIMEOUT, text)
    text = f"The call to {call.name} failed: {answer.reason}"
    return ToolResult(call.id, ToolStatus.ERROR, text, {"raised": type(answer.raised).__name__})


def _shortened(result: ToolResult, limit: int) -> ToolResult:
    left_out = len(result.text) - limit
    if left_out <= 0:
        return result
    return replace(result, text=cut_to(limit, result.text), info={**result.info, "cut_chars": left_out})
