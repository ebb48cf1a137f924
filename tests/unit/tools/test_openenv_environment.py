"""OpenEnv servers as environments: a stand-in that speaks the wire format, and the package's own server where it is installed."""

import asyncio
import importlib.util
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.chat.renderer import TagRenderer
from ramify.core.draws import uniform
from ramify.core.errors import ConfigError, MachineError
from ramify.core.messages import Message, Problem, ToolCall, ToolStatus
from ramify.core.tree import StopReason
from ramify.engines.scripted import ScriptedEngine, ScriptedTurn
from ramify.rollout.grow import grow_trees
from ramify.tools.configs import OpenEnvConfig
from ramify.tools.openenv_environment import open_openenv
from scripted_agents import agent, tokenizer_of

pytestmark = pytest.mark.integration
pytest.importorskip("websockets")

SERVER = Path(__file__).parents[2] / "openenv_server.py"
PROBLEM = Problem("p", (Message.of("user", "count"),), ())
RULE = ThresholdBrancher(m=2, min_entropy_delta=-100.0, children=1, probe_tokens=2)
KINDS = ["stand-in", "real"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def running(kind):
    """The process and the address of a server."""
    if kind == "real" and importlib.util.find_spec("openenv") is None:
        pytest.skip("the package openenv is not installed")
    port = free_port()
    process = subprocess.Popen([sys.executable, SERVER, str(port), kind])
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                httpx.get(f"{url}/schema", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None
                time.sleep(0.1)
        yield process, url
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=KINDS)
def url(request):
    with running(request.param) as (_, url):
        yield url


def opened(url, seconds=10.0):
    return open_openenv(OpenEnvConfig(url=url, timeout_seconds=seconds))


def call(amount, identifier="1"):
    return ToolCall(identifier, "act", {"amount": amount})


async def results(environment, *amounts, seed=7):
    session = await environment.open(PROBLEM, seed)
    try:
        return session.opening, [await session.call(call(amount)) for amount in amounts]
    finally:
        await session.close()
        await session.close()


def test_the_schema_becomes_a_tool(url):
    (spec,) = opened(url).tools.values()
    assert (spec.name, spec.description) == ("act", "Adds to the count.")
    assert spec.parameters["required"] == ["amount"]
    assert list(spec.parameters["properties"]) == ["amount"]
    assert spec.parameters["properties"]["amount"]["type"] == "integer"


def test_a_session_has_a_state_is_paid_and_ends(url):
    opening, (first, second, third) = asyncio.run(results(opened(url), 2, 3, 1))
    assert opening == "\n\nreach 6"
    assert (first.text, first.reward, first.ends) == ("count 2", 0.0, False)
    assert (second.text, second.reward, second.ends) == ("count 5", 0.0, False)
    assert (third.text, third.reward, third.ends) == ("count 6", 1.0, True)


def test_each_trajectory_has_its_own_state(url):
    async def both():
        return await asyncio.gather(*(results(opened(url), amount, amount) for amount in (1, 2, 3)))

    texts = [[answer.text for answer in answers] for _, answers in asyncio.run(both())]
    assert texts == [["count 1", "count 2"], ["count 2", "count 4"], ["count 3", "count 6"]]


@pytest.mark.parametrize(
    ("amount", "told"),
    [("many", "Invalid message; amount: Input should be a valid integer"), (903, "the world is gone")],
)
def test_what_the_server_refuses_is_told_and_the_session_goes_on(url, amount, told):
    _, (wrong, right) = asyncio.run(results(opened(url), amount, 2))
    assert wrong.status is ToolStatus.ERROR
    assert told in wrong.text
    assert (right.status, right.text) == (ToolStatus.OK, "count 2")


def test_an_empty_observation_and_one_that_is_too_large(url):
    _, (empty, large, after) = asyncio.run(results(opened(url), 906, 904, 2))
    assert empty.status is ToolStatus.EMPTY
    assert large.status is ToolStatus.ERROR
    assert "the session has ended" in large.text
    assert after.status is ToolStatus.ERROR


def test_a_call_that_was_given_up_breaks_the_session_and_it_closes_soon(url):
    async def run():
        session = await opened(url).open(PROBLEM, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call(call(902)), 0.3)
        after = await session.call(call(2))
        began = time.monotonic()
        await session.close()
        return after, time.monotonic() - began

    after, took = asyncio.run(run())
    assert after.status is ToolStatus.ERROR
    assert "a call before this one got no answer in time" in after.text
    assert took < 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_killed_in_mid_call_is_an_error_at_once(kind):
    with running(kind) as (process, url):
        environment = opened(url)

        async def run():
            one, other = await environment.open(PROBLEM, 1), await environment.open(PROBLEM, 2)
            began = time.monotonic()
            told = [await one.call(call(901)), await one.call(call(2)), await other.call(call(2))]
            took = time.monotonic() - began
            with pytest.raises(ConnectionError):
                await environment.open(PROBLEM, 3)
            await one.close()
            await other.close()
            return told, took

        told, took = asyncio.run(run())
        assert all(result.status is ToolStatus.ERROR for result in told)
        assert all("the session has ended" in result.text for result in told)
        assert took < 2
        assert process.wait() == -signal.SIGKILL


def adds(context, seed):
    return ScriptedTurn(
        f'<think> so </think><act> {{"amount": {1 + int(3 * uniform(seed, 0))}}} </act>', (1.0,)
    )


def draws(context, seed):
    return ScriptedTurn('<think> so </think><act> {"amount": 905} </act>', (1.0,))


def grown(folder, url, play, n=8):
    environment = opened(url)
    tokenizer = tokenizer_of(folder)
    parts = replace(
        agent(folder, RULE, n=n, max_calls=6, max_tokens=2000),
        engine=ScriptedEngine(tokenizer, play),
        renderer=TagRenderer(tokenizer, list(environment.tools.values())),
        environment=environment,
    )
    (tree,) = asyncio.run(grow_trees(parts, [PROBLEM], 0))
    return parts, tree


def test_trees_branch_by_replay_and_end_with_what_was_paid(tokenizer_folder, url):
    parts, tree = grown(tokenizer_folder, url, adds)
    assert len(tree.trajectories) == 8
    assert sum(decision.taken for decision in tree.decisions) > 0
    assert not [event for event in parts.events.events if "reason" in event.fields]
    target = int(tree.problem.messages[0].text.rpartition("reach ")[2])
    for trajectory in tree.trajectories:
        assert trajectory.stop is StopReason.ENDED
        counts = [int(result.text.removeprefix("count ")) for _, result in trajectory.exchanges]
        assert counts[-1] >= target > max([0, *counts[:-1]])
        assert trajectory.paid == float(counts[-1] == target)


def test_a_server_that_draws_without_its_seed_loses_its_branches_only(tokenizer_folder, url):
    parts, tree = grown(tokenizer_folder, url, draws, n=6)
    assert len(tree.trajectories) == len(tree.roots) == 6
    told = [event.fields["reason"] for event in parts.events.events if event.kind == "environment/branch"]
    assert told
    assert all("the replayed reply differs" in reason for reason in told)


def test_a_server_without_room_fails_the_trajectory_with_its_reason(url):
    async def run():
        environment = opened(url)
        sessions, failures = [], []
        for seed in range(60):
            try:
                sessions.append(await environment.open(PROBLEM, seed))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is read below
                failures.append(str(error))
        await asyncio.gather(*(session.close() for session in sessions))
        return len(sessions), failures

    count, failures = asyncio.run(run())
    assert 1 <= count <= 40
    assert failures
    assert all(failures)


def test_mistakes_are_one_line():
    with pytest.raises(MachineError, match="is the server running"):
        opened(f"http://127.0.0.1:{free_port()}")
    import http.server
    import threading

    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever, daemon=True)
        thread.start()
        with pytest.raises(ConfigError, match="its /schema describes no action"):
            opened(f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
