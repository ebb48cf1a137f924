"""MCP servers as environments, against the real package: what a call gives, and that nothing is left running."""

import asyncio
import sys
import time

import pytest

from loopback import Reply, serve
from mcp_servers import SHOP, STUBBORN, call, running, served, write_server
from ramify.algos.branch_rules import RandomBrancher
from ramify.core.errors import ConfigError, MachineError
from ramify.core.messages import ToolStatus
from ramify.core.tree import StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.rollout.grow import grow_trees
from ramify.tools.configs import McpConfig
from ramify.tools.mcp_environment import McpEnvironment, open_mcp
from scripted_agents import agent_in, problem, run_clean

pytest.importorskip("mcp")
pytestmark = pytest.mark.integration

OK, EMPTY, ERROR = ToolStatus.OK, ToolStatus.EMPTY, ToolStatus.ERROR


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    return write_server(tmp_path_factory.mktemp("shop"), SHOP)


@pytest.fixture(scope="module")
def program(command):
    return open_mcp(McpConfig(command=command))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with served(write_server(tmp_path_factory.mktemp("service"), SHOP)) as (url, _):
        yield open_mcp(McpConfig(url=url))


@pytest.fixture(params=["program", "service"])
def shop(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left(command):
    yield
    assert running(command) == []


def test_the_tools_are_those_that_the_server_lists(shop):
    add = shop.tools["add"]
    assert add.description == "Add n to the sum.\n\n    Whole numbers only."
    assert add.parameters["properties"]["n"]["type"] == "integer"
    assert add.parameters["required"] == ["n"]
    assert (add.in_prompt, add.forks, add.hedge_seconds, add.timeout_seconds) == (True, True, None, 60.0)
    assert (shop.branches, shop.seconds, shop.max_observations) == ("replay", 60.0, 0)
    assert not shop.scores
    assert not shop.opens


def test_a_list_has_pages(tmp_path):
    command = write_server(tmp_path, STUBBORN)
    assert list(open_mcp(McpConfig(command=command)).tools) == ["tool", "tool2"]
    assert running(command) == []


def test_an_event_loop_may_run_while_the_tools_are_learned(program):
    async def within():
        return open_mcp(program.config)

    assert run_clean(within()).tools == program.tools


def test_what_a_call_gives(shop):
    async def main():
        session = await shop.open(problem(), 0)
        try:
            return [
                await session.call(request)
                for request in (
                    call("search", query="tea"),
                    call("data"),
                    call("parts"),
                    call("nothing"),
                    call("fail"),
                    call("add", n="x"),
                    call("lookup"),
                    call("add", n=float("nan")),
                    call("add", n="\ud800"),
                )
            ]
        finally:
            await session.close()

    texts = {result.text: result.status for result in run_clean(main())}
    looked, data, parts, nothing, *errors = texts
    assert looked.startswith("tea: lookup ")
    assert data == '{"price": 3, "name": "é"}'
    assert (
        parts
        == "look:\n[image, image/png, not shown]\na note\n[link to the resource price list: file:///prices]"
    )
    assert nothing == "nothing returned nothing."
    assert list(texts.values()) == [OK, OK, OK, EMPTY, *[ERROR] * 5]
    reasons = (
        "executing tool fail",
        "valid integer",
        "Unknown tool: lookup",
        "cannot be sent: Out of",
        "surrogates",
    )
    assert all(part in text for part, text in zip(reasons, errors, strict=True))


def test_each_trajectory_has_its_own_state(program):
    async def main():
        first, other = [await program.open(problem(), 0) for _ in range(2)]
        texts = [(await first.call(call("add", n=n))).text for n in (3, 4)]
        texts.append((await other.call(call("add", n=1))).text)
        await asyncio.gather(first.close(), other.close(), first.close())
        await first.close()
        return texts, (await first.call(call("add", n=1)))

    texts, after = run_clean(main())
    assert texts == ["sum 3", "sum 7", "sum 1"]
    assert (after.status, "closed the connection" in after.text) == (ERROR, True)


def test_a_list_that_changes_is_in_force_after_the_call(shop):
    async def main():
        session = await shop.open(problem(), 0)
        before = set(session.tools)
        await session.call(call("learn"))
        # A service tells it on a stream of its own, which may be later.
        for _ in range(200 if shop.config.url else 0):
            if "learned" in session.tools:
                break
            await asyncio.sleep(0.05)
        after = set(session.tools)
        reply = await session.call(call("learned"))
        await session.close()
        other = await shop.open(problem(), 0)
        await other.close()
        return before, after, reply.text, set(other.tools)

    before, after, reply, others = run_clean(main())
    assert (after - before, before - after, reply) == ({"learned"}, {"block"}, "new")
    assert others == (before if shop.config.command else after)


@pytest.mark.parametrize("what", ["wait", "block"])
def test_a_call_that_is_cancelled_harms_no_other(shop, what):
    async def main():
        session = await shop.open(problem(), 0)
        hanging = asyncio.create_task(session.call(call(what)))
        await asyncio.sleep(0.3)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        reply = await session.call(call("search", query="tea"))
        began = time.monotonic()
        await session.close()
        return reply.status, time.monotonic() - began

    if what == "block" and shop.config.url:
        pytest.skip("the one service would stay blocked")
    status, seconds = run_clean(main())
    assert status is OK
    assert seconds < 20


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            ["no-such-program"],
            ConfigError,
            "command: expected a program that can be run, got 'no-such-program'",
        ),
        (["/"], ConfigError, "Permission denied"),
        (
            [sys.executable, "-c", "import nowhere"],
            MachineError,
            "its last line: ModuleNotFoundError: No module named",
        ),
        (["true"], MachineError, "true: the server has closed the connection. Run it by hand to see why."),
        (["sleep", "100"], MachineError, "sleep 100: no answer within timeout_seconds = 3. Run it by hand"),
    ],
)
def test_a_program_that_cannot_be_used(arguments, kind, message):
    # Only the one that never answers is waited for; Python takes its time to begin on a busy machine.
    seconds = 3.0 if arguments[0] == "sleep" else 60.0
    with pytest.raises(kind) as caught:
        open_mcp(McpConfig(command=tuple(arguments), timeout_seconds=seconds))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_service_that_cannot_be_used():
    with serve(lambda _: Reply(404)) as loopback:
        with pytest.raises(
            MachineError, match=r"Not Found\. Expected the address of an MCP server"
        ) as caught:
            open_mcp(McpConfig(url=loopback.url))
        assert "\n" not in str(caught.value)
    with pytest.raises(MachineError, match=r"no connection .*\. Expected the address"):
        open_mcp(McpConfig(url=loopback.url))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected one of command"),
        ({"command": ("a",), "url": "http://a/mcp"}, "expected one of command"),
        ({"command": ("a\0",)}, "null"),
        ({"command": ("a",), "key_variable": "A_KEY"}, "key_variable: has no effect without url. Remove it."),
        (
            {"url": "http://a/mcp", "variables": ("A_KEY",)},
            "variables: has no effect without command. Remove it.",
        ),
    ],
)
def test_settings_that_exclude_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        McpConfig(**settings)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    with pytest.raises(MachineError, match=r"pip install 'ramify-rl\[mcp\]'"):
        open_mcp(McpConfig(command=("true",)))


RULE = RandomBrancher(m=2, rate=1.0, children=1, probe_tokens=3)


def grown(folder, environment, tool, n=6, **settings):
    """A tree whose roots call `tool` twice and answer, and the events."""

    def play(context, seed):
        done = context.count("\n</result>")
        text = f"<{tool}> tea {done} </{tool}>" if done < 2 else "<answer> \\boxed{ 42 } </answer>"
        return ScriptedTurn(text, (0.5,))

    parts = agent_in(environment, folder, RULE, play, n=n, **settings)
    (tree,) = run_clean(grow_trees(parts, [problem()], 0))
    assert parts.live.value == 0
    return tree, parts.events.events


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_branches_make_the_calls_of_their_path_again(tokenizer_folder, program, branch_at):
    tree, events = grown(tokenizer_folder, program, "search", branch_at=branch_at)
    assert [trajectory.stop for trajectory in tree.trajectories] == [StopReason.ANSWERED] * 6
    assert sum(decision.taken for decision in tree.decisions) == 4
    for trajectory in tree.trajectories:
        # The second lookup is the second of its server, though another server had made the first one for this branch.
        assert [result.text for _, result in trajectory.exchanges] == ["tea 0: lookup 1", "tea 1: lookup 2"]
    assert [event.kind for event in events if event.kind.startswith("environment/")] == []


def test_a_server_that_answers_otherwise_each_time_drops_its_branches(tokenizer_folder, program):
    tree, events = grown(tokenizer_folder, program, "born", n=4)
    assert [trajectory.stop for trajectory in tree.trajectories] == [StopReason.ANSWERED] * 4
    assert sum(decision.taken for decision in tree.decisions) == 0
    reasons = [event.fields["reason"] for event in events if event.kind == "environment/branch"]
    assert len(reasons) == 2
    assert all("the replayed reply differs from the recorded one" in reason for reason in reasons)


def test_a_server_that_cannot_start_fails_its_trajectories(tokenizer_folder, program, tmp_path):
    broken = McpEnvironment(McpConfig(command=("true",)), program.tools)
    tree, events = grown(tokenizer_folder, broken, "search", n=2)
    assert [trajectory.stop for trajectory in tree.trajectories] == [StopReason.FAILED] * 2
    reasons = [event.fields["reason"] for event in events if event.kind == "environment/open"]
    assert reasons == ["ConnectionError: the server has closed the connection"] * 2


@pytest.mark.parametrize("seconds", [0.3, 2.0], ids=["opening", "calling"])
def test_a_step_that_is_cancelled_leaves_nothing_behind(tokenizer_folder, program, seconds):
    def play(context, seed):
        return ScriptedTurn("<search> tea </search>", (0.5,), seconds_per_token=0.1)

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await grow_trees(parts, [problem()], 0)
        assert running(program.config.command) == []

    parts = agent_in(program, tokenizer_folder, RULE, play, n=4)
    run_clean(main())
    assert parts.live.value == 0
