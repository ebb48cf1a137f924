"""Tool calls under a deadline: whatever a tool does, the loop gets a typed result in time."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ramify.core.messages import ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.protocols import Event, ToolSession
from ramify.core.tree import TreeKey
from ramify.net.secrets import redact
from ramify.rollout.asking import Failure, Issued, abandon, first_good, issue
from ramify.rollout.settings import AgentParts


async def run_calls(
    parts: AgentParts,
    key: TreeKey,
    node: str,
    calls: tuple[ToolCall, ...],
    sessions: Mapping[str, ToolSession],
) -> tuple[ToolResult, ...]:
    """Run the calls of one turn in order; whatever happens to a call, it gives a typed result.

    `node` is the id of the policy node with the calls.
    """
    return tuple([await _run_call(parts, key, node, call, sessions) for call in calls])


async def _run_call(
    parts: AgentParts, key: TreeKey, node: str, call: ToolCall, sessions: Mapping[str, ToolSession]
) -> ToolResult:
    if call.malformed is not None:
        text = f"The call to {call.name} was not run: {call.malformed}."
        return ToolResult(call.id, ToolStatus.MALFORMED, text)
    if call.name not in sessions:
        return ToolResult(call.id, ToolStatus.UNKNOWN_TOOL, f"There is no tool named {call.name}.")
    spec = parts.tools[call.name].spec
    with parts.waits.on(call.name):
        answer, issued = await _ask(sessions[call.name], call, spec)
    result = _shortened(_without_keys(_typed(answer, call, spec)), parts.limits.max_result_chars)
    clock = issued[0].clock
    fields = {
        "status": result.status,
        "issued": len(issued),
        "queued_seconds": clock.queued,
        "held_up_seconds": clock.held_up,
    }
    parts.events.emit(Event(f"tool/{call.name}", (key.step, key.slot), node, clock.own, fields))
    return result


async def _ask(
    session: ToolSession, call: ToolCall, spec: ToolSpec
) -> tuple[ToolResult | Failure, tuple[Issued[ToolResult], ...]]:
    """The answer, and every issue of the call: a slow call that may run twice is issued a second time."""
    first = issue(partial(_answer, session, call))
    if spec.hedge_seconds is None or spec.hedge_seconds >= spec.timeout_seconds:
        return await first_good((first,), spec.timeout_seconds), (first,)
    try:
        is_done = await first.clock.wait((first.task,), spec.hedge_seconds)
    except asyncio.CancelledError:
        abandon(first.task)
        raise
    both = (first,) if is_done else (first, issue(partial(_answer, session, call)))
    return await first_good(both, spec.timeout_seconds), both


async def _answer(session: ToolSession, call: ToolCall) -> ToolResult:
    """The answer of a tool, checked: it must be possible to show it, record it and read it back.

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
    return replace(answer, call_id=call.id)


def _keeps(info: Mapping[str, Any]) -> bool:
    """Whether `info` survives a round trip through JSON unchanged."""
    try:
        return bool(json.loads(json.dumps(info, allow_nan=False, default=dict)) == info)
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


def _without_keys(result: ToolResult) -> ToolResult:
    """Remove keys: a user's own tool may fail with an address that holds one, which no model or trace should see."""
    text = redact(result.text)
    return result if text == result.text else replace(result, text=text)


def _shortened(result: ToolResult, limit: int) -> ToolResult:
    left_out = len(result.text) - limit
    if left_out <= 0:
        return result
    text = f"{result.text[:limit]}\n[cut: {left_out} more characters]"
    return replace(result, text=text, info={**result.info, "cut_chars": left_out})
