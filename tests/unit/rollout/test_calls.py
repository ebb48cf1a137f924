"""Tool calls: deadlines, hedges, and tools that keep no promise."""

import asyncio
from dataclasses import replace
from functools import reduce
from types import MappingProxyType

import pytest

from ramify.core.errors import MachineError
from ramify.core.messages import ToolResult, ToolStatus
from ramify.core.tree import StopReason
from ramify.net.secrets import read_key
from scripted_agents import ANSWER, FLAT, SEARCH, SlowTool, agent, assert_traced, grow, plays

ONCE = plays(SEARCH, ANSWER)


class BehavingTool(SlowTool):
    """A tool whose call number i does `behaviors[i]` (the last one from then on)."""

    def __init__(self, *behaviors, timeout_seconds=20.0, hedge_seconds=None):
        super().__init__("search", "query")
        self.spec = replace(self.spec, timeout_seconds=timeout_seconds, hedge_seconds=hedge_seconds)
        self.behaviors = behaviors
        self.count = 0

    async def open(self, problem):
        session = await super().open(problem)
        session.call = self.do
        return session

    def do(self, call):
        self.count += 1
        return self.behaviors[min(self.count, len(self.behaviors)) - 1](call)


def after(seconds, text="fine"):
    async def answer(call):
        await asyncio.sleep(seconds)
        return ToolResult(call.id, ToolStatus.OK, text)

    return answer


def failing_after(seconds, error):
    async def fail(call):
        await asyncio.sleep(seconds)
        raise error

    return fail


def giving(value):
    async def give(call):
        return value

    return give


async def hang(call):
    await asyncio.Event().wait()


async def ignore_cancellation(call):
    try:
        await asyncio.sleep(1e6)
    except asyncio.CancelledError:
        await asyncio.sleep(1e6)


async def cancel_itself(call):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


def not_a_coroutine(call):
    return ToolResult(call.id, ToolStatus.OK, "at once")


def ask(folder, tool, left_tasks=0, **options):
    """The result of one call, when the trajectory ended, and the event."""
    parts = agent(folder, FLAT, ONCE, n=1, tools={"search": tool}, **options)
    parts.engine.generate = parts.engine.inner.generate
    (tree,), seconds = grow(parts, left_tasks=left_tasks)
    (trajectory,) = tree.trajectories
    assert trajectory.stop is StopReason.ANSWERED
    ((call, result),) = trajectory.exchanges
    assert result.call_id == call.id == "0:0"
    (event,) = [event for event in parts.events.events if event.kind == "tool/search"]
    assert (event.node, event.fields["status"]) == ("0", result.status)
    return tree, result, seconds, event


@pytest.mark.parametrize(("behavior", "left"), [(hang, 0), (ignore_cancellation, 1)])
def test_a_call_that_does_not_come_back_is_a_timeout(tokenizer_folder, behavior, left):
    _, result, seconds, event = ask(tokenizer_folder, BehavingTool(behavior), left)
    assert result.status is ToolStatus.TIMEOUT
    assert result.text == "The call to search was stopped after 20 seconds."
    assert seconds == pytest.approx(20.0, abs=0.2)
    assert event.seconds == pytest.approx(20.0)
    assert event.fields["issued"] == 1


def nested(depth):
    return reduce(lambda inner, _: [inner], range(depth), [])


class Panic(BaseException):
    """As a library written in another language raises."""


class Mute(Exception):
    def __str__(self):
        raise ValueError("no message")


@pytest.mark.parametrize(
    ("behavior", "reason"),
    [
        (failing_after(1.0, ValueError("no such city")), "ValueError: no such city"),
        (failing_after(1.0, TimeoutError("upstream")), "TimeoutError: upstream"),
        (failing_after(1.0, Mute()), "Mute"),
        (failing_after(0.0, asyncio.CancelledError()), "CancelledError"),
        (cancel_itself, "CancelledError"),
        (failing_after(1.0, SystemExit(3)), "SystemExit: 3"),
        (failing_after(1.0, Panic("index out of range")), "Panic: index out of range"),
        (failing_after(1.0, BaseExceptionGroup("two", [Panic()])), "BaseExceptionGroup"),
        (giving(None), "it answered with NoneType, not with a ToolResult"),
        (giving("text"), "it answered with str"),
        (giving(ToolResult), "it answered with type"),
        (not_a_coroutine, "TypeError"),
        (giving(ToolResult("x", ToolStatus.OK, b"bytes")), "its answer has no text or no status"),
        (giving(ToolResult("x", ToolStatus.OK, None)), "its answer has no text or no status"),
        (giving(ToolResult("x", "splendid", "text")), "its answer has no text or no status"),
        (giving(ToolResult("x", ToolStatus.OK, "text", {"at": object()})), "would not come back from JSON"),
        (giving(ToolResult("x", ToolStatus.OK, "text", {"at": (1, 2)})), "would not come back from JSON"),
        (giving(ToolResult("x", ToolStatus.OK, "text", {"at": float("nan")})), "would not come back"),
        (giving(ToolResult("x", ToolStatus.OK, "text", [1])), "would not come back from JSON"),
        (giving(ToolResult("x", ToolStatus.OK, "text", {3: 4})), "would not come back from JSON"),
        (
            giving(ToolResult("x", ToolStatus.OK, "text", {"at": nested(300)})),
            "would not come back from JSON",
        ),
        (giving(ToolResult("x", ToolStatus.OK, "text", ends=1)), "`ambiguous` is not a bool"),
        (giving(ToolResult("x", ToolStatus.OK, "text", ambiguous=1)), "`ambiguous` is not a bool"),
    ],
)
def test_a_tool_that_breaks_its_promise_is_an_error_that_the_policy_reads(
    tokenizer_folder, behavior, reason, tmp_path
):
    tree, result, seconds, _ = ask(tokenizer_folder, BehavingTool(behavior))
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith("The call to search failed: ")
    assert reason in result.text
    assert seconds < 2
    assert_traced(tree, tmp_path)


def test_what_survives_json_is_kept_as_it_is(tokenizer_folder, tmp_path):
    info = MappingProxyType({"ids": ["a", 1, None, 0.5], "where": {"level": 2}})
    tree, result, *_ = ask(
        tokenizer_folder, BehavingTool(giving(ToolResult("other", ToolStatus.EMPTY, "\ud800", info)))
    )
    assert result == ToolResult("0:0", ToolStatus.EMPTY, "\ud800", info)
    assert_traced(tree, tmp_path)


@pytest.mark.parametrize(
    "behavior",
    [
        failing_after(1.0, OSError("GET https://host/?key=s3cr3t-of-mine refused")),
        giving(ToolResult("x", ToolStatus.OK, "asked with s3cr3t-of-mine")),
    ],
)
def test_no_key_reaches_the_model_or_a_trace(tokenizer_folder, behavior, monkeypatch):
    monkeypatch.setenv("OWN_SERVICE_KEY", "s3cr3t-of-mine")
    read_key("OWN_SERVICE_KEY")
    tree, result, *_ = ask(tokenizer_folder, BehavingTool(behavior))
    assert "[key OWN_SERVICE_KEY]" in result.text
    assert "s3cr3t" not in repr(tree)


def test_a_long_result_is_cut_and_says_so(tokenizer_folder):
    tool = BehavingTool(giving(ToolResult("x", ToolStatus.OK, "a" * 5_000_000, {"page": 1})))
    _, result, *_ = ask(tokenizer_folder, tool, max_tokens=30_000)
    assert result.text == "a" * 20_000 + "\n[cut: 4980000 more characters]"
    assert result.info == {"page": 1, "cut_chars": 4_980_000}


def test_an_error_of_ours_stops_the_run(tokenizer_folder):
    parts = agent(
        tokenizer_folder,
        FLAT,
        ONCE,
        n=2,
        tools={"search": BehavingTool(failing_after(1.0, MachineError("no sandbox")))},
    )
    with pytest.raises(MachineError, match="no sandbox"):
        grow(parts)
    assert parts.environment.members["search"].open_sessions == 0


@pytest.mark.parametrize(
    ("behaviors", "hedge", "status", "text", "seconds", "issued"),
    [
        ((after(3, "first"), after(1, "second")), 5.0, "ok", "first", 3, 1),
        ((after(9, "first"), after(1, "second")), 5.0, "ok", "second", 6, 2),
        ((after(7, "first"), after(9, "second")), 5.0, "ok", "first", 7, 2),
        ((hang, after(1, "second")), 5.0, "ok", "second", 6, 2),
        ((failing_after(6, OSError("a")), after(4, "second")), 5.0, "ok", "second", 9, 2),
        ((after(9, "first"), failing_after(1, OSError("b"))), 5.0, "ok", "first", 9, 2),
        ((failing_after(7, OSError("a")), failing_after(1, OSError("b"))), 5.0, "error", "OSError: a", 7, 2),
        ((failing_after(6, OSError("a")), failing_after(1, OSError("b"))), 5.0, "error", "OSError: b", 6, 2),
        ((failing_after(3, OSError("a")), after(1, "second")), 5.0, "error", "OSError: a", 3, 1),
        ((failing_after(6, OSError("a")), hang), 5.0, "timeout", "after 20 seconds", 20, 2),
        ((hang, hang), 5.0, "timeout", "after 20 seconds", 20, 2),
        ((after(9, "first"), after(1, "second")), None, "ok", "first", 9, 1),
        ((hang, after(1, "second")), None, "timeout", "after 20 seconds", 20, 1),
        ((hang, after(1, "second")), 20.0, "timeout", "after 20 seconds", 20, 1),
        ((after(9, "first"), giving(None)), 5.0, "ok", "first", 9, 2),
    ],
)
def test_a_slow_call_is_issued_once_more_and_the_first_good_answer_counts(
    tokenizer_folder, behaviors, hedge, status, text, seconds, issued
):
    tool = BehavingTool(*behaviors, hedge_seconds=hedge)
    _, result, took, event = ask(tokenizer_folder, tool)
    assert (result.status, tool.count, event.fields["issued"]) == (status, issued, issued)
    assert text in result.text
    assert event.seconds == pytest.approx(seconds)
    assert took == pytest.approx(seconds, abs=0.2)


@pytest.mark.parametrize("reached", [2.0, 7.0])
def test_a_trajectory_that_is_cut_takes_both_issues_of_its_call_along(tokenizer_folder, reached):
    tool = BehavingTool(hang, hedge_seconds=5.0)
    parts = agent(
        tokenizer_folder, FLAT, ONCE, n=1, tools={"search": tool}, limits={"trajectory_seconds": reached}
    )
    parts.engine.generate = parts.engine.inner.generate
    (tree,), seconds = grow(parts)
    assert seconds == pytest.approx(reached, abs=1e-6)
    assert tree.trajectories[0].stop is StopReason.DEADLINE
    assert tool.count == (2 if reached > 5 else 1)


def test_malformed_calls_are_observations(tokenizer_folder):
    parts = agent(tokenizer_folder, FLAT, plays("<search>  </search>", ANSWER), n=1)
    (tree,), _ = grow(parts)
    (trajectory,) = tree.trajectories
    assert [result.status for _, result in trajectory.exchanges] == [ToolStatus.MALFORMED]
    assert trajectory.stop is StopReason.ANSWERED
    assert not parts.environment.members["search"].issued
