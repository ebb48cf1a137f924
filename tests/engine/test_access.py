"""Who can reach a real server: every route asks for the key, and a launched one has no port."""

import asyncio
import os
import time
from pathlib import Path

import httpx
import pytest
from real_servers import CONTEXT, FLAGS, engine_of, launched_by, play

from other_user import refuses_another_user
from ramify.engines.vllm.process import Command, ServerProcess
from ramify.engines.vllm.server import VllmServer
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.connections import HttpTransport

pytestmark = pytest.mark.timeout(900)


def test_every_route_of_a_server_with_the_middleware_asks_for_the_key(taught, server):
    play(engine_of(taught, server), lambda e: e.score(range(20, 30)))
    routes = server.ask("GET", "/openapi.json").json()["paths"]
    listed = [(method.upper(), path) for path, methods in routes.items() for method in methods]
    # Those that vLLM's own key leaves open, and that load code or weights.
    dev = {("POST", "/collective_rpc"), ("POST", "/sleep"), ("POST", "/pause"), ("POST", "/update_weights")}
    assert dev <= set(listed)
    more = [
        ("GET", path) for path in ("/metrics", "/docs", "/openapi.json", "/nowhere", "/../health", "//health")
    ]
    for method, path in (*listed, *more, ("OPTIONS", "/sleep"), ("HEAD", "/health"), ("TRACE", "/health")):
        for key in (None, "wrong", "a-key-of-the-engine-tests2"):
            assert server.ask(method, path, key).status_code == 401, (method, path)
    assert server.ask("GET", "/health").status_code == 200
    for path in ("/v1/realtime", "/health"):
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        headers = {**upgrade, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert httpx.get(server.url + path, headers=headers, trust_env=False).status_code in (401, 403)


@pytest.fixture(scope="module")
def launched(taught, vllm_python, tmp_path_factory):
    log = tmp_path_factory.mktemp("logs") / "server-0.log"
    process = ServerProcess(Command(launched_by(vllm_python, *FLAGS), taught, CONTEXT), log)
    process.start()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(process.socket))) as client:
        while not answers(client, process):
            assert not process.has_ended, process.why_it_ended()
            time.sleep(1)
    yield process
    process.stop()
    assert not process.socket.parent.exists()


def answers(client, process):
    try:
        headers = {"authorization": f"Bearer {process.key}"}
        return client.get("http://server-0/health", headers=headers).status_code == 200
    except httpx.TransportError:
        return False


def test_a_launched_server_has_no_port_and_another_user_cannot_reach_its_socket(launched):
    leader = str(launched._running.pid)
    # The HTTP server is the leader; below it gloo listens, which speaks no HTTP.
    assert ports_of([leader]) == set()
    assert {port.partition(":")[0] for port in ports_of(of_group(launched))} <= {"0100007F"}
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(launched.socket))) as client:
        for path in ("/health", "/v1/models", "/server_info", "/weight_info"):
            assert client.get(f"http://server-0{path}").status_code == 401
    files = [launched.socket, *(f for f in launched.socket.parent.iterdir() if f.is_socket())]
    assert len(files) > 2  # vLLM's own lie beside ours
    assert all(refuses_another_user(file) for file in files)


def ports_of(processes):
    """The TCP addresses on which processes listen, as the kernel spells them."""
    sockets = {link.readlink().name for pid in processes for link in links(Path(f"/proc/{pid}/fd"))}
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def of_group(process):
    """Process ids of a server and of what it started."""
    leader = process._running.pid
    return [path.name for path in Path("/proc").glob("[0-9]*") if group(path.name) == leader]


def group(pid):
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return None


def links(folder):
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def test_sleep_and_wake_are_verified_by_the_servers_own_word(launched):
    """On a CPU the routes change what the server says of itself, and no memory."""
    settings = HttpSettings(attempts=1, in_flight=8)
    client = HttpClient("engine", settings, transport=HttpTransport(8, uds=launched.socket), many_hosts=True)
    server = VllmServer(client, launched.url, 10_000, launched.key)

    async def main():
        try:
            states = [await server.is_asleep()]
            for change in (server.sleep, server.sleep, server.wake, server.wake):
                await change()
                states.append(await server.is_asleep())
            info = await server.look(None)
            return states, info
        finally:
            await server.close()

    states, info = asyncio.run(main())
    assert states == [False, True, True, False, False]
    assert (info.dtype, info.logprobs_mode, info.can_sleep) == ("float32", "processed_logprobs", False)
    assert info.version.startswith("0.32")
