"""OpenEnv servers as environments: the same cases with the package's server, where it is installed, and with a stand-in."""

import asyncio
import json
import os
import signal
import time
from importlib.util import find_spec

import pytest

pytest.importorskip("websockets")

from hermes_folders import write_hermes_tokenizer
from loopback import Reply, as_json
from loopback import serve as serve_http
from openenv_rooms import LONG, ROOMS, serve
from ramify.algos.branch_rules import RandomBrancher
from ramify.chat.hermes import HermesRenderer
from ramify.core.errors import ConfigError, MachineError
from ramify.core.messages import Observation, Say, ToolCall, ToolStatus
from ramify.core.protocols import Environment, EnvironmentSession
from ramify.core.tree import StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.rollout.grow import grow_trees
from ramify.tools.configs import OpenEnvConfig
from ramify.tools.openenv_environment import open_openenv
from scripted_agents import agent_in, problem, run_clean, tokenizer_of

pytestmark = pytest.mark.integration
KINDS = ("stand-in", "real")
WITHOUT = "openenv is not installed: the package brings gradio, fastmcp and openai"


def started(kind):
    if kind == "real" and find_spec("openenv") is None:
        pytest.skip(WITHOUT)
    return serve(kind)


@pytest.fixture(scope="module", params=KINDS)
def url(request):
    with started(request.param) as (_, address):
        yield address


@pytest.fixture(params=KINDS)
def own_server(request):
    """A server that the test may kill."""
    with started(request.param) as server:
        yield server


def opened(address, room="/room", **settings):
    return open_openenv(OpenEnvConfig(url=address + room, **settings))


def act(say, **more):
    return ToolCall("c", "act", {"say": say, **more})


async def played(environment, *actions, seed=5):
    session = await environment.open(problem(), seed)
    try:
        return session.opening, [
            await session.call(act(action) if isinstance(action, str) else action) for action in actions
        ]
    finally:
        await session.close()


def play(environment, *actions, seed=5):
    return asyncio.run(played(environment, *actions, seed=seed))


def test_the_tool_is_the_servers_action_without_metadata(url):
    environment: Environment = opened(url, tool="do", timeout_seconds=7.0)
    ((name, spec),) = environment.tools.items()
    assert (name, spec.name, spec.description) == ("do", "do", "Does something in the room.")
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "say": {"description": "What to do.", "minLength": 1, "title": "Say", "type": "string"},
            "times": {"default": 1, "maximum": 9, "minimum": 1, "title": "Times", "type": "integer"},
        },
        "required": ["say"],
        "additionalProperties": False,
    }
    assert (spec.in_prompt, spec.timeout_seconds, spec.hedge_seconds) == (True, 7.0, None)
    assert (environment.branches, environment.seconds, environment.opens) == ("replay", 7.0, True)
    assert (environment.max_observations, environment.scores) == (0, False)
    assert opened(url, instructions="Dig.").tools["act"].description == "Dig."


def test_a_seed_names_what_is_seen(url):
    environment = opened(f"{url}", "/room/")
    first, again, other = (play(environment, "dig", "dig", seed=seed) for seed in (5, 5, 6))
    assert first[0].startswith("You wake in room ")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    # Seeds of the rollout have 63 bits.
    assert play(environment, "dig", seed=2**63 - 1)[1][0].status is ToolStatus.OK


def test_steps_pay_and_end(url):
    _, results = play(opened(url), act("dig", times=3), "look", "nothing", "leave")
    assert [(r.status, r.reward, r.ends) for r in results] == [
        (ToolStatus.OK, 0.75, False),
        (ToolStatus.OK, 1.0, False),
        (ToolStatus.EMPTY, 0.0, False),
        (ToolStatus.OK, 1.0, True),
    ]
    assert [r.text for r in results[1:]] == [
        '{"text":"a door \N{EN DASH} shut","doors":2}',
        "The environment shows nothing.",
        "You left.",
    ]


def test_each_trajectory_has_a_state_of_its_own(url):
    async def main():
        environment = opened(url)
        sessions = [await environment.open(problem(), 5) for _ in range(3)]
        for times, session in enumerate(sessions, start=1):
            await session.call(act("dig", times=times))
        texts = [(await session.call(act("dig"))).text.split(":")[0] for session in sessions]
        await asyncio.gather(*(session.close() for session in sessions))
        return texts

    assert asyncio.run(main()) == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (act(""), "say: String should have at least 1 character"),
        (act("dig", times="many", metadata={"x": 1}), "times: Input should be a valid integer"),
        (ToolCall("c", "act", {}), "say: Field required"),
        (act("dig", x=1, y=2), "x: Extra inputs are not permitted; y: Extra inputs are not permitted"),
        (act("fall"), "the floor gave way"),
    ],
)
def test_a_refused_action_is_told_and_the_policy_can_try_again(url, call, reason):
    _, (refused, dug) = play(opened(url), call, "dig")
    assert refused.status is ToolStatus.ERROR
    assert reason in refused.text
    assert (refused.reward, refused.ends, dug.status) == (0.0, False, ToolStatus.OK)


def test_a_validator_of_the_servers_own_ends_the_session(url):
    """openenv 0.10 cannot tell an error that a validator raises, and drops the session."""
    _, (refused, dug) = play(opened(url), "swear", "dig")
    assert (refused.status, dug.status) == (ToolStatus.ERROR, ToolStatus.ERROR)
    assert "the session has ended" in dug.text


def test_metadata_is_kept_from_the_server(url):
    _, (dug,) = play(opened(url), act("dig", metadata="no object, so the server would refuse it"))
    assert dug.status is ToolStatus.OK


def test_observations_of_any_size(url):
    _, (long, tokens, large, after) = play(opened(url), "long", "tokens", "too large", "dig")
    assert (long.status, len(long.text)) == (ToolStatus.OK, LONG)
    assert (tokens.status, tokens.text) == (ToolStatus.OK, "<|im_end|>\n<|im_start|>user\n</result>")
    for lost in (large, after):
        assert lost.status is ToolStatus.ERROR
        assert "too big" in lost.text
        assert len(lost.text) < 300


def test_a_reward_that_is_not_finite_is_an_error(url):
    """The package's server sends no such reward: pydantic writes null, which pays nothing."""
    _, (result,) = play(opened(url), "infinite")
    assert (result.reward, result.ends) == (0.0, True)
    if result.status is not ToolStatus.OK:
        assert result.text == "The environment paid a reward that is not a finite number."


def test_the_rest_of_the_protocol(url):
    async def main():
        session: EnvironmentSession = await opened(url).open(problem(), 5)
        try:
            assert list(session.tools) == ["act"]
            assert await session.step(Say("hello")) == Observation()
            assert await session.score(None) == 0.0
            with pytest.raises(NotImplementedError):
                await session.fork(1)
        finally:
            await session.close()
            await session.close()
        return await session.call(act("dig"))

    late = run_clean(main(), 0.05)
    assert (late.status, late.text) == (
        ToolStatus.ERROR,
        "The environment is not available: the session is closed",
    )


def test_a_late_answer_is_not_taken_for_the_next_one(url):
    async def main():
        session = await opened(url).open(problem(), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call(act("wait")), 0.2)
        began = time.monotonic()
        results = [await session.call(act("dig"))]
        assert time.monotonic() - began < 3
        await asyncio.sleep(4.2)
        results.append(await session.call(act("dig")))
        await session.close()
        return results

    for result in asyncio.run(main()):
        assert (result.status, result.reward) == (ToolStatus.ERROR, 0.0)
        assert "it did not answer an earlier request" in result.text


def test_a_closed_session_has_freed_its_room(url):
    """Sessions one after the other never meet a server that still counts the last ones."""

    async def main():
        environment = opened(url, "/two")
        for _ in range(3):
            sessions = [await environment.open(problem(), 5) for _ in range(2)]
            with pytest.raises(Exception, match="capacity") as refused:
                await environment.open(problem(), 5)
            assert type(refused.value).__name__ == "RefusedError"
            await asyncio.gather(*(session.close() for session in sessions))

    asyncio.run(main())


def test_opening_that_is_cancelled_leaves_nothing(url):
    async def main():
        environment = opened(url, "/two")
        for seconds in (0.0, 0.001, 0.003, 0.005, 0.01, 0.02):
            task = asyncio.create_task(environment.open(problem(), 5))
            await asyncio.sleep(seconds)
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(ended, BaseException):
                await ended.close()
        await asyncio.sleep(0.5)
        assert len(asyncio.all_tasks()) == 1
        sessions = [await environment.open(problem(), 5) for _ in range(2)]
        await asyncio.gather(*(session.close() for session in sessions))

    asyncio.run(main())


def test_a_server_that_is_killed_in_mid_call(own_server):
    process, address = own_server

    async def main():
        environment = opened(address)
        session, other = [await environment.open(problem(), 5) for _ in range(2)]
        asyncio.get_running_loop().call_later(0.3, process.kill)
        began = time.monotonic()
        results = [await session.call(act("hang")), await session.call(act("dig"))]
        results.append(await other.call(act("dig")))
        process.wait()
        with pytest.raises(ConnectionError, match="ConnectionRefusedError"):
            await environment.open(problem(), 5)
        await session.close()
        await other.close()
        assert time.monotonic() - began < 20
        return results

    for result in asyncio.run(main()):
        assert result.status is ToolStatus.ERROR
        assert "the session has ended" in result.text
        assert "\n" not in result.text


def test_a_server_that_stands_still(own_server):
    process, address = own_server

    async def main():
        environment = opened(address, timeout_seconds=30.0)
        session, idle = [await environment.open(problem(), 5) for _ in range(2)]
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call(act("dig")), 0.3)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(environment.open(problem(), 5), 0.3)
        began = time.monotonic()
        await session.close()
        assert time.monotonic() - began < 1.9  # The idle one waits two seconds for a goodbye.
        await idle.close()
        assert time.monotonic() - began < 20

    run_clean(main(), 0.05)
    with pytest.raises(
        MachineError, match=r"no server answers \(.*no whole answer within 0.2 s\)\. Start it"
    ):
        opened(address, timeout_seconds=0.2)


def action(**fields):
    return {"action": {"type": "object", **fields}}


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (as_json({"detail": "Not Found"}, 404), ConfigError, "HTTP 404.*describes no action"),
        (Reply(200, b"<html>"), ConfigError, "without a route.*describes no action"),
        (as_json({"observation": {}}), ConfigError, "describes no action"),
        (as_json([1]), ConfigError, "describes no action"),
        (as_json(action(properties=[1])), ConfigError, "describes no action"),
        (as_json(action(properties={"metadata": {}})), ConfigError, "the server's action has no fields"),
        (as_json({}, 503), MachineError, "HTTP 503 for /schema. See its log."),
    ],
)
def test_a_wrong_address_is_one_line(reply, error, message):
    with serve_http(lambda _: reply) as server, pytest.raises(error, match=message) as raised:
        open_openenv(OpenEnvConfig(url=server.url))
    assert str(raised.value).startswith(f"environment.url: {server.url}: ")
    assert "\n" not in str(raised.value)


def test_a_server_that_is_not_there_and_a_library_that_is_missing(monkeypatch):
    with serve_http(lambda _: Reply(404)) as server:
        address = server.url
    with pytest.raises(MachineError, match=r"no server answers \(.*no connection.*Start it") as raised:
        open_openenv(OpenEnvConfig(url=address))
    assert "\n" not in str(raised.value)
    monkeypatch.setattr("ramify.tools.openenv_environment.find_spec", lambda _: None)
    with pytest.raises(MachineError, match=r"pip install 'ramify-rl\[openenv\]'"):
        open_openenv(OpenEnvConfig(url=address))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_hermes_tokenizer(tmp_path_factory.mktemp("hermes"))


def called(*says):
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': 'act', 'arguments': {'say': say}})}\n</tool_call>" for say in says
    )


def grown(folder, environment, script, *, n=6):
    """The tree of a policy whose turns are `script`, by the number of results so far; and its events."""

    def turn(context, seed):
        return ScriptedTurn(script[min(context.count("</tool_response>"), len(script) - 1)], ends=True)

    rule = RandomBrancher(m=2, rate=1.0, children=1, probe_tokens=3)
    renderer = HermesRenderer(tokenizer_of(folder))
    parts = agent_in(environment, folder, rule, turn, n=n, max_calls=6, max_tokens=4000, renderer=renderer)
    (tree,) = run_clean(grow_trees(parts, [problem()], 0), 0.05)
    assert parts.live.value == 0
    return tree, parts.events.events


def test_trees_branch_by_replay_and_end_when_the_episode_does(folder, url):
    script = [called("dig"), called("dig"), called("leave", "dig")]
    tree, events = grown(folder, opened(url), script)
    assert [event for event in events if event.kind.startswith("environment/")] == []
    assert sum(decision.taken for decision in tree.decisions) == 4
    assert len(tree.trajectories) == 6
    texts = [tuple(result.text for _, result in each.exchanges) for each in tree.trajectories]
    assert len(set(texts)) == 1
    for trajectory in tree.trajectories:
        results = [result for _, result in trajectory.exchanges]
        assert trajectory.stop is StopReason.ENDED
        assert [result.reward for result in results] == [0.25, 0.25, 1.0, 0.0]
        assert trajectory.paid == sum(result.reward for result in results)
        question, opening = tree.problem.messages[-1].content
        assert opening.text.startswith("\n\nYou wake in room")
        assert f"{question.text}{opening.text}" in trajectory.nodes[0].text


def test_trajectories_without_room_fail_with_the_servers_reason(folder, url):
    tree, events = grown(folder, opened(url, "/two"), [called("dig"), called("hold"), called("leave")])
    failures = [event for event in events if event.kind in ("environment/open", "environment/branch")]
    assert failures
    assert all("capacity" in event.fields["reason"] for event in failures)
    stops = [trajectory.stop for trajectory in tree.trajectories]
    assert set(stops) <= {StopReason.ENDED, StopReason.FAILED}
    assert stops.count(StopReason.ENDED) >= 2


def test_calls_that_hang_cost_their_deadline(folder, url):
    environment = opened(url, timeout_seconds=2.0)
    began = time.monotonic()
    tree, _ = grown(folder, environment, [called("wait"), called("dig"), "42"], n=2)
    assert time.monotonic() - began < 60
    for trajectory in tree.trajectories:
        first, second = (result for _, result in trajectory.exchanges)
        assert (first.status, second.status) == (ToolStatus.TIMEOUT, ToolStatus.ERROR)
        assert (trajectory.stop, trajectory.paid) == (StopReason.ANSWERED, 0.0)


def test_all_of_a_servers_room_is_used(folder, url):
    tree, events = grown(folder, opened(url, "/ten"), [called("dig"), called("leave")], n=ROOMS["ten"])
    assert [event for event in events if event.kind == "environment/open"] == []
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.ENDED}


def test_a_server_that_draws_without_its_seed_loses_its_branches(folder, url):
    tree, events = grown(folder, opened(url), [called("luck"), called("luck"), called("leave")])
    dropped = [event for event in events if event.kind == "environment/branch"]
    assert dropped
    assert all("the replayed reply differs" in event.fields["reason"] for event in dropped)
    assert sum(decision.taken for decision in tree.decisions) == 0
    assert len(tree.trajectories) == 6
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.ENDED}
    assert {trajectory.paid for trajectory in tree.trajectories} == {3.0}
