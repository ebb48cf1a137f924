"""The transports of MCP servers, against the real package: whatever a server does, calls end and nothing is left running."""

import asyncio
import gc
import os
import signal
import time
import zlib

import pytest

from loopback import Reply, serve
from mcp_servers import SHOP, STUBBORN, call, running, served, write_server
from peak_memory import grows_below
from ramify.core.errors import MachineError
from ramify.core.messages import ToolStatus
from ramify.runtime.agent_loop import agent_loop
from ramify.tools import mcp_environment
from ramify.tools.configs import McpConfig
from ramify.tools.mcp_environment import McpEnvironment, open_mcp
from scripted_agents import problem, run_clean

pytest.importorskip("mcp")
pytestmark = pytest.mark.integration

ERROR = ToolStatus.ERROR
SAYS_KEY = """
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("keys")

@server.tool()
def key() -> str:
    return os.environ.get("A_KEY", "none")

server.run()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    return write_server(tmp_path_factory.mktemp("shop"), SHOP)


@pytest.fixture(scope="module")
def program(command):
    return McpEnvironment(McpConfig(command=command), {})


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with served(write_server(tmp_path_factory.mktemp("service"), SHOP)) as (url, _):
        yield McpEnvironment(McpConfig(url=url), {})


@pytest.fixture(autouse=True)
def nothing_is_left(command):
    yield
    assert running(command) == []


@pytest.fixture
def stubborn(tmp_path, monkeypatch):
    monkeypatch.setattr(mcp_environment, "PATIENCE_SECONDS", 0.3)
    command = write_server(tmp_path, STUBBORN)
    yield command
    assert running(command) == []


@pytest.mark.parametrize("kind", ["program", "service"])
def test_megabytes_of_text_arrive(request, kind):
    shop = request.getfixturevalue(kind)

    async def main():
        session = await shop.open(problem(), 0)
        began = time.monotonic()
        result = await session.call(call("long", n=8_000_000))
        seconds = time.monotonic() - began
        await session.close()
        return len(result.text), seconds

    length, seconds = run_clean(main())
    assert length == 8_000_000
    assert seconds < 60


@pytest.mark.parametrize("helper", [False, True], ids=["alone", "its child holds its output"])
def test_a_server_that_is_killed_fails_its_own_calls_at_once(program, helper):
    async def main():
        killed, other = [await program.open(problem(), 0) for _ in range(2)]
        if helper:
            await killed.call(call("start_helper"))
        pid = int((await killed.call(call("pid"))).text)
        waiting = asyncio.create_task(killed.call(call("wait")))
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        results = [await waiting, await killed.call(call("pid"))]
        seconds = time.monotonic() - began
        others = await other.call(call("add", n=1))
        await asyncio.gather(killed.close(), other.close())
        return results, seconds, others

    results, seconds, others = run_clean(main())
    assert [result.status for result in results] == [ERROR, ERROR]
    assert results[0].text == "The call to wait failed: the server has closed the connection."
    assert seconds < 20
    assert others.text == "sum 1"


def test_a_service_that_is_killed_fails_calls_at_once(tmp_path):
    async def main():
        session = await environment.open(problem(), 0)
        waiting = asyncio.create_task(session.call(call("wait")))
        await asyncio.sleep(0.5)
        process.kill()
        began = time.monotonic()
        results = [await waiting, await session.call(call("pid"))]
        await session.close()
        seconds = time.monotonic() - began
        with pytest.raises(ConnectionError, match="no connection"):
            await environment.open(problem(), 0)
        return results, seconds

    with served(write_server(tmp_path, SHOP)) as (url, process):
        environment = open_mcp(McpConfig(url=url))
        results, seconds = run_clean(main())
    assert [result.status for result in results] == [ERROR, ERROR]
    assert seconds < 20


def test_half_a_character_arrives_as_a_question_mark(stubborn):
    async def main():
        session = await McpEnvironment(McpConfig(command=stubborn), {}).open(problem(), 0)
        result = await session.call(call("tool2"))
        await session.close()
        return result.text

    assert run_clean(main()) == "half of ?"


def test_a_service_that_hangs_is_left(tmp_path):
    async def main():
        session = await environment.open(problem(), 0)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await session.call(call("pid"))
        began = time.monotonic()
        await session.close()
        return time.monotonic() - began

    with served(write_server(tmp_path, SHOP)) as (url, process):
        environment = open_mcp(McpConfig(url=url))
        assert 1.9 < run_clean(main()) < 20


def test_a_program_that_ignores_everything_is_killed(stubborn):
    async def main():
        session = await McpEnvironment(McpConfig(command=stubborn), {}).open(problem(), 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await session.call(call("tool"))
        began = time.monotonic()
        await session.close()
        return time.monotonic() - began

    assert 0.6 <= run_clean(main()) < 20


@pytest.mark.parametrize("loop", [asyncio.run, None], ids=["asyncio", "agent loop"])
@pytest.mark.parametrize("moment", ["opening", "open", "closing"])
def test_the_end_of_the_event_loop_leaves_no_program(stubborn, loop, moment, caplog):
    silent = McpConfig(command=(*stubborn, "silent") if moment == "opening" else stubborn)

    async def main():
        opening = asyncio.create_task(McpEnvironment(silent, {}).open(problem(), 0))
        _, pending = await asyncio.wait([opening], timeout=0.5 if moment == "opening" else 60)
        assert bool(pending) == (moment == "opening")
        if moment == "closing":
            tasks.append(asyncio.create_task((await opening).close()))
            await asyncio.sleep(0.1)
        tasks.append(opening)

    tasks = []
    if loop is None:
        with agent_loop() as thread:
            thread.run(main())
    else:
        loop(main())
    tasks.clear()
    gc.collect()
    assert caplog.messages == []


def test_opening_that_is_cancelled_frees_what_it_began(stubborn):
    async def main():
        opening = asyncio.create_task(
            McpEnvironment(McpConfig(command=(*stubborn, "silent")), {}).open(problem(), 0)
        )
        await asyncio.sleep(0.3)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run_clean(main())


def test_an_answer_of_a_service_is_limited_after_decompression():
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(512)) + packer.flush()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    with serve(lambda _: Reply(200, bomb, headers)) as loopback, grows_below(250 * 2**20):
        with pytest.raises(MachineError, match=r"more than \d+ bytes\. Expected the address") as caught:
            open_mcp(McpConfig(url=loopback.url))
        assert "\n" not in str(caught.value)


def test_keys_reach_the_server_alone(monkeypatch, tmp_path):
    command = write_server(tmp_path, SAYS_KEY)

    async def main(config):
        session = await McpEnvironment(config, {}).open(problem(), 0)
        reply = await session.call(call("key"))
        await session.close()
        return reply.text

    monkeypatch.setenv("A_KEY", "sesame")
    assert run_clean(main(McpConfig(command=command))) == "none"
    assert run_clean(main(McpConfig(command=command, variables=("A_KEY",)))) == "sesame"
    with serve(lambda _: Reply(401)) as loopback, pytest.raises(MachineError):
        open_mcp(McpConfig(url=loopback.url, key_variable="A_KEY"))
    assert loopback.requests[0].headers["authorization"] == "Bearer sesame"
    monkeypatch.delenv("A_KEY")
    with pytest.raises(MachineError, match="A_KEY is not set"):
        open_mcp(McpConfig(command=command, variables=("A_KEY",)))
