"""A server that ramify starts: who can reach it, what it inherits, and how it is started again. A stand-in plays vLLM."""

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

import build
from model_folders import write_model
from other_user import refuses_another_user
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.records import Request, version_folder
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm.replica import ServerState
from ramify.modeling.load import load_model
from ramify.sampler.publisher import write_weights
from vllm_stand_in import install

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("vllm") / "model", "qwen2")


@pytest.fixture
def launch(folder, tmp_path, monkeypatch):
    """An engine that starts its server, the file of the routes that this fails at, and the notes."""
    path, _ = install(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("JUDGE_API_KEY", "of-another-service")
    notes = []
    section = VllmEngineConfig(
        name="vllm",
        launch=True,
        python=Path(sys.executable),
        dtype="float32",
        start_seconds=240.0,
        sleep=True,
    )
    engine = build_vllm(section, ChatTokenizer(folder), 300, tmp_path / "run", notes.append, hands_over=True)
    return engine, tmp_path / "packages" / "failing.txt", notes


def play(engine, work):
    async def main():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def step(engine, folder, version):
    weights = version_folder(engine.info().weights_folder, version)
    write_weights(build.learner(load_model(folder)), weights, "float32")
    await engine.load_weights(version)
    return await engine.generate(Request((5, 9, 33, 60), 1, 4))


def test_a_server_that_fails_to_sleep_or_to_wake_is_started_again(folder, launch):
    engine, failing, notes = launch
    replica = engine._replicas[0]
    pids = []

    async def work(engine):
        for version, (sleeps, wakes) in enumerate([("", ""), ("/sleep", "/wake_up"), ("", "")], start=1):
            failing.write_text(wakes)
            await step(engine, folder, version)
            pids.append(replica.process._running.pid)
            failing.write_text(sleeps)
            await engine.sleep()
            assert replica.state is ServerState.ASLEEP
            assert replica.process.has_ended is bool(sleeps)

    play(engine, work)
    failures = [note for note in notes if "starts a server" not in note]
    assert len(failures) == 2
    assert "http://server-0 does not wake (HTTP 500 from http://server-0/wake_up: " in failures[0]
    assert "http://server-0 does not sleep (HTTP 500 from http://server-0/sleep: " in failures[1]
    assert len(set(pids)) == 3


def test_a_launched_server_is_for_this_run_alone(folder, launch):
    """Neither another user nor another program of this user can ask it for anything."""
    engine, _, _ = launch
    seen = {}

    async def work(engine):
        await step(engine, folder, 1)
        process = engine._replicas[0].process
        socket = process.socket
        environment = Path(f"/proc/{process._running.pid}/environ").read_bytes().decode().split("\0")
        seen.update(folder=socket.parent, names={line.partition("=")[0] for line in environment})
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as client:
            for path in ("/health", "/collective_rpc", "/sleep", "/v1/models"):
                assert client.post(f"http://x{path}").status_code == 401
                headers = {"authorization": "Bearer wrong"}
                assert client.get(f"http://x{path}", headers=headers).status_code == 401
        assert refuses_another_user(socket)

    play(engine, work)
    assert {"RAMIFY_SERVER_KEY", "VLLM_SERVER_DEV_MODE"} <= seen["names"]
    assert not {"RANK", "JUDGE_API_KEY"} & seen["names"]
    assert not seen["folder"].exists()
