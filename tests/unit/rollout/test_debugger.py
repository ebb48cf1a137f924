"""The code debugger: what it runs, how often it asks, and what stands in a result's info."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kept_answers import KeptAnswers
from ramify.cache.sqlite import CacheMode, SqliteCache
from ramify.core.errors import ServiceDownError
from ramify.core.messages import ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.engines.virtual_clock import run_virtual
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.secrets import read_key
from ramify.rollout.repair import DebuggedEnvironment, UnhelpfulError, corrected
from ramify.rollout.tool_set import ToolSet
from ramify.runtime.call_clock import queued
from ramify.tools.class_environment import environment_from
from repair_agents import ScriptedHelper, helper_of
from scripted_agents import problem

SPECS = {"python": ToolSpec("python", "d", {}, True, 5.0), "search": ToolSpec("search", "d", {}, True, 1.0)}


@dataclass
class Runs:
    """A Python tool: programs with an error in `fails` fail with it."""

    spec: ToolSpec
    fails: dict = field(default_factory=dict)
    ran: list = field(default_factory=list)
    forks: int = 0

    async def open(self, problem):
        return self

    async def call(self, call):
        code = call.arguments.get("code", call.arguments.get("query"))
        self.ran.append(code)
        status, text, info = self.fails.get(code, (ToolStatus.OK, "42", {}))
        return ToolResult(call.id, status, text, info)

    async def fork(self):
        self.forks += 1
        return self

    async def close(self):
        pass


ERROR = (ToolStatus.ERROR, "NameError: name 'x' is not defined", {"sandbox_level": 2})


def debugged(model, fails, calls=1, most=100):
    python = Runs(SPECS["python"], fails)
    tools = ToolSet({"python": python, "search": Runs(SPECS["search"])}, {"python": most})
    return python, DebuggedEnvironment(tools, helper_of(model, 0.2), calls)


def run(environment, *codes):
    async def main():
        session = await environment.open(problem(), 0)
        return [
            await session.call(ToolCall(f"{i}", "python", {"code": code})) for i, code in enumerate(codes)
        ]

    return asyncio.run(main())


def test_a_program_that_failed_is_corrected_and_run_once_more():
    model = ScriptedHelper(["```python\nprint(42)\n```"])
    python, environment = debugged(model, {"print(x)": ERROR})
    (result,) = run(environment, "print(x)")
    assert python.ran == ["print(x)", "print(42)"]
    assert (result.status, result.text, result.call_id) == (ToolStatus.OK, "42", "0")
    assert result.info == {"debugger": "corrected", "program": "print(42)", "error": ERROR[1]}
    assert "print(x)" in model.requests[0][1].text
    assert "NameError" in model.requests[0][1].text


class BusyHelper(ScriptedHelper):
    """Answers after a minute in a queue of ours, and five seconds."""

    async def complete(self, messages, *, max_tokens, temperature):
        with queued():
            await asyncio.sleep(60)
        await asyncio.sleep(5)
        return await super().complete(messages, max_tokens=max_tokens, temperature=temperature)


@pytest.mark.parametrize("seconds", [6.0, 4.0])
def test_time_in_our_queues_makes_no_helper_late(seconds):
    correction = corrected(helper_of(BusyHelper(["print(42)"]), seconds), "print(x)", "error")
    if seconds > 5:
        assert run_virtual(correction) == ("print(42)", 65.0)
    else:
        with pytest.raises(UnhelpfulError, match="timeout"):
            run_virtual(correction)


def test_the_second_run_is_no_call_of_the_policys():
    """With the cap of one call the corrected program runs; with three the policy has three of its own."""
    for most in (1, 3):
        python, environment = debugged(ScriptedHelper(["print(42)"]), {"print(x)": ERROR}, most=most)
        results = run(environment, "print(x)", *["print(1)"] * most)
        assert [r.status for r in results] == [ToolStatus.OK] * most + [ToolStatus.OVER_LIMIT]
        assert results[0].info["debugger"] == "corrected"
        assert python.ran == ["print(x)", "print(42)", *["print(1)"] * (most - 1)]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6_000),
    st.sampled_from(["{}", "[{}]", "print({})", "f({})", "x = {}", "if {}: pass"]),
    st.sampled_from(
        [("1 + ", "x"), ("-", "1"), ("a.", "b"), ("(", "1" + ")" * 150), ("not ", "x"), ("1 if x else ", "2")]
    ),
)
@example(699, "{}", ("1 + ", "x"))
@example(2_000, "print({})", ("1 + ", "x"))
def test_a_program_of_any_depth_is_corrected(depth, line, repeated):
    piece, end = repeated
    program = line.format(piece * depth + end)
    helper = helper_of(ScriptedHelper([f"{program} # mended"]), max_tokens=10**6)
    # One that is too deep to be compared or parsed counts as another one, or as none.
    with suppress(UnhelpfulError):
        assert asyncio.run(corrected(helper, program, "error")) == f"{program} # mended"
    _, environment = debugged(ScriptedHelper(["print(42)"]), {program: ERROR})
    (result,) = run(environment, program)
    assert (result.status, result.text, result.info["debugger"]) == (ToolStatus.OK, "42", "corrected")


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        ((ToolStatus.OVER_LIMIT, "not run", {}), "the corrected program failed too"),
        ((ToolStatus.MALFORMED, "not run", {}), "the corrected program failed too"),
        ((ToolStatus.EMPTY, "no output", {}), "corrected"),
    ],
)
def test_only_a_second_program_that_ran_takes_the_place_of_the_first(second, outcome):
    _, environment = debugged(ScriptedHelper(["x = 1"]), {"print(x)": ERROR, "x = 1": second})
    (result,) = run(environment, "print(x)")
    assert (result.status, result.text) == (second if outcome == "corrected" else ERROR)[:2]
    assert result.info["debugger"] == outcome


class Machine:
    """A world in which each program costs something, and a loop breaks it."""

    def reset(self):
        self.reward, self.done = 0.0, False

    def python(self, code: str) -> str:
        """Runs a program."""
        self.reward -= 0.25
        self.done = "while" in code
        if "x" in code:
            raise ValueError(code)
        return "42"


@pytest.mark.parametrize(
    ("first", "second", "ran", "ends"),
    [
        ("print(x)", "print(42)", 2, False),
        ("print(x)", "print(x, x)", 2, False),
        ("print(x)", "while x: pass", 2, True),
        ("while x: pass", "print(42)", 1, True),
    ],
)
def test_both_programs_are_paid_and_either_may_end_the_world(first, second, ran, ends):
    helper = helper_of(ScriptedHelper([second]), 0.2)
    (result,) = run(DebuggedEnvironment(environment_from(Machine), helper, 1), first)
    assert (result.reward, result.ends) == (-0.25 * ran, ends)
    assert ("debugger" in result.info) == (ran == 2)


def test_no_key_reaches_the_helper_or_the_trace(monkeypatch):
    monkeypatch.setenv("RAMIFY_TEST_KEY", "key-0123456789abcdef")
    read_key("RAMIFY_TEST_KEY")
    failed = (ToolStatus.ERROR, "no answer of http://host/?key=key-0123456789abcdef", {})
    model = ScriptedHelper(["print(42)"])
    _, environment = debugged(model, {"print(x)": failed})
    (result,) = run(environment, "print(x)")
    assert "key-0123456789abcdef" not in model.requests[0][1].text + result.info["error"]
    assert "no answer of" in result.info["error"]


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_it_is_asked_at_most_its_budget_on_a_trajectory(budget):
    model = ScriptedHelper(["print(42)"])
    _python, environment = debugged(model, {"print(x)": ERROR}, budget)
    results = run(environment, *["print(x)"] * 5)
    assert len(model.requests) == budget
    assert [r.status for r in results] == [ToolStatus.OK] * budget + [ToolStatus.ERROR] * (5 - budget)
    # Another trajectory has a budget of its own.
    assert [r.status for r in run(environment, "print(x)")] == [ToolStatus.OK]


def test_a_branch_inherits_what_was_spent():
    async def main():
        model = ScriptedHelper(["print(42)"])
        _, environment = debugged(model, {"print(x)": ERROR})
        session = await environment.open(problem(), 0)
        before = await session.fork(1)
        call = ToolCall("0", "python", {"code": "print(x)"})
        first = await session.call(call)
        after = await session.fork(2)
        return first, await after.call(call), await before.call(call)

    statuses = [result.status for result in asyncio.run(main())]
    assert statuses == [ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OK]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I am sorry, there is no way to mend it.", "no program"),
        ("print( x )", "the same program"),
        ("print(y)" + " " * 100_000, "too long"),
        ("", "blank"),
        (30.0, "timeout"),
        (RequestFailedError(FailureKind.SERVER, "HTTP 500"), "server"),
        (RequestFailedError(FailureKind.CUT, "max_tokens"), "cut"),
        ("print(y)", "the corrected program failed too"),
    ],
)
def test_a_helper_that_does_not_help_leaves_the_result_and_says_why(answer, reason):
    python, environment = debugged(ScriptedHelper([answer]), {"print(x)": ERROR, "print(y)": ERROR})
    (result,) = run(environment, "print(x)")
    assert (result.status, result.text) == ERROR[:2]
    assert result.info["debugger"] == reason
    assert result.info["sandbox_level"] == 2
    assert python.ran == (["print(x)", "print(y)"] if reason.endswith("too") else ["print(x)"])


def test_a_service_that_is_down_ends_the_run():
    _, environment = debugged(ScriptedHelper([ServiceDownError("down")]), {"print(x)": ERROR})
    with pytest.raises(ServiceDownError):
        run(environment, "print(x)")


@pytest.mark.parametrize(
    "result",
    [
        (ToolStatus.OK, "1", {}),
        (ToolStatus.EMPTY, "", {}),
        (ToolStatus.MALFORMED, "no code", {}),
        (ToolStatus.ERROR, "the sandbox service failed", {"failure": "server"}),
    ],
)
def test_what_is_no_error_of_a_program_is_left_alone(result):
    model = ScriptedHelper(["print(42)"])
    _, environment = debugged(model, {"print(x)": result})
    (left_alone,) = run(environment, "print(x)")
    assert (left_alone.status, left_alone.text, left_alone.info) == result
    assert model.requests == []


def test_the_deadline_has_room_for_two_runs_and_the_answer():
    _, environment = debugged(ScriptedHelper([""]), {})
    assert environment.tools["python"].timeout_seconds == 5.0 + 5.0 + 0.2
    assert environment.tools["search"] == SPECS["search"]
    without = replace(environment.helper, seconds=None)
    assert replace(environment, helper=without).tools["python"].timeout_seconds == 5.0 + 5.0


def test_nothing_that_a_program_says_can_end_the_data_in_which_it_is_quoted():
    """The mark is a hash of the data and the seed, so data cannot hold it, and it is the same in every run."""
    requests = []
    for seed in (1, 1, 2):
        model = ScriptedHelper(["print(1)"])
        helper = helper_of(model, seed=seed)
        asyncio.run(corrected(helper, "print(x) # <|im_end|>", 'a" } \n0123456789abcdef'))
        requests += [[message.text for message in request] for request in model.requests]
    first, again, other = requests
    assert first == again
    mark = first[1].splitlines()[0]
    assert first[1].splitlines()[-1] == mark != other[1].splitlines()[0]
    assert first[1].count(mark) == 2
    assert mark in first[0]
    assert "<|im_end|>" not in first[1]


def test_answers_are_recorded_and_replayed(tmp_path):
    def ask(cache, model):
        async def main():
            try:
                return [
                    await corrected(helper_of(model, 0.2, cache=cache), f"print({name})", "E")
                    for name in "xy"
                ]
            finally:
                await cache.close()

        return asyncio.run(main())

    model = ScriptedHelper(["print(1)", "print(2)"])
    assert ask(SqliteCache(tmp_path / "c", mode=CacheMode.RECORD), model) == ["print(1)", "print(2)"]
    silent = ScriptedHelper([])
    again = SqliteCache(tmp_path / "c", mode=CacheMode.REPLAY_OR_FAIL)
    assert ask(again, silent) == ["print(1)", "print(2)"]
    assert silent.requests == []


def test_a_timeout_is_replayed_as_a_timeout(tmp_path):
    for mode, model in (
        (CacheMode.RECORD, ScriptedHelper([30.0])),
        (CacheMode.REPLAY_OR_FAIL, ScriptedHelper([])),
    ):
        cache = SqliteCache(tmp_path / "c", mode=mode)

        async def main(cache=cache, model=model):
            try:
                await corrected(helper_of(model, 0.2, cache=cache), "print(x)", "E")
            finally:
                await cache.close()

        with pytest.raises(UnhelpfulError, match="timeout"):
            asyncio.run(main())


def test_another_wording_of_the_request_is_another_entry():
    cache, model = KeptAnswers(), ScriptedHelper(["print(1)"])
    asyncio.run(corrected(helper_of(model, 0.2, cache=cache), "print(x)", "E"))
    asyncio.run(corrected(helper_of(model, 0.2, cache=cache), "print(x)", "F"))
    assert len(cache.answers) == 2
    assert {key.tool for key in cache.keys} == {"debugger"}
