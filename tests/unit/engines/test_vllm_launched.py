"""A server that ramify starts: who can reach it, what it inherits, and how it is started again. A stand-in plays vLLM."""

import sys
import tempfile
from pathlib import Path

import httpx
import pytest
from vllm_engines import engine_of, play, request_of, step

from other_user import refuses_another_user
from ramify.core.errors import MachineError, ServiceDownError
from ramify.engines.vllm.process import ServerProcess
from ramify.engines.vllm.replica import ServerState
from vllm_stand_in import install

pytestmark = pytest.mark.integration


@pytest.fixture
def launch(folder, tmp_path, monkeypatch):
    """An engine that starts its server, the file of the routes that this fails at, and the notes."""
    path, _ = install(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("JUDGE_API_KEY", "of-another-service")
    notes = []
    engine = engine_of(
        folder,
        notes=notes,
        hands_over=True,
        run=tmp_path / "run",
        launch=True,
        python=Path(sys.executable),
        start_seconds=240.0,
        sleep=True,
    )
    return engine, tmp_path / "packages" / "failing.txt", notes


def test_a_server_that_fails_to_sleep_or_to_wake_is_started_again(folder, launch):
    engine, failing, notes = launch
    replica = engine._replicas[0]
    pids = []
    # It measures the free memory as it starts: not before the learner lets it.
    assert replica.process.has_ended

    async def work(engine):
        await engine.sleep()
        assert (replica.state, replica.process.has_ended) == (ServerState.ASLEEP, False)
        for version, (sleeps, wakes) in enumerate([("", ""), ("/sleep", "/wake_up"), ("", "")], start=1):
            failing.write_text(wakes)
            await step(engine, folder, version)
            pids.append(replica.process._running.pid)
            failing.write_text(sleeps)
            await engine.sleep()
            assert replica.state is ServerState.ASLEEP
            assert replica.process.has_ended is bool(sleeps)

    play(engine, work)
    failures = [note for note in notes if "starts a server" not in note and "waiting for" not in note]
    assert len(failures) == 2
    assert "http://server-0 does not wake (HTTP 500 from http://server-0/wake_up: " in failures[0]
    assert "http://server-0 does not sleep (HTTP 500 from http://server-0/sleep: " in failures[1]
    assert len(set(pids)) == 3


def test_a_launched_server_is_for_this_run_alone(folder, launch):
    """Neither another user nor another program of this user can ask it for anything."""
    engine, _, _ = launch
    observed = {}

    async def work(engine):
        await step(engine, folder, 1)
        process = engine._replicas[0].process
        socket = process.socket
        environment = Path(f"/proc/{process._running.pid}/environ").read_bytes().decode().split("\0")
        observed.update(folder=socket.parent, names={line.partition("=")[0] for line in environment})
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=60) as client:
            for path in ("/health", "/collective_rpc", "/sleep", "/v1/models"):
                assert client.post(f"http://x{path}").status_code == 401
                headers = {"authorization": "Bearer wrong"}
                assert client.get(f"http://x{path}", headers=headers).status_code == 401
        assert refuses_another_user(socket)

    play(engine, work)
    assert {"RAMIFY_SERVER_KEY", "VLLM_SERVER_DEV_MODE"} <= observed["names"]
    assert not {"RANK", "JUDGE_API_KEY"} & observed["names"]
    assert not observed["folder"].exists()


@pytest.mark.usefixtures("quick_servers")
def test_a_python_without_vllm_is_told(folder, tmp_path):
    engine = engine_of(folder, launch=True)
    with pytest.raises(
        ServiceDownError, match=r"has no vLLM: install it there, or name .* engine\.python"
    ) as failed:
        play(engine, lambda e: e.generate(request_of(folder)))
    assert "\n" not in str(failed.value)


FAILING = """#!/bin/sh
echo "(Worker pid=7) ERROR 11-23 09:31:45 [core.py:953] ValueError: Available memory is less than desired"
exit 1
"""


@pytest.mark.usefixtures("quick_servers")
def test_a_server_that_does_not_start_says_why(folder, tmp_path):
    python = tmp_path / "python"
    python.write_text(FAILING)
    python.chmod(0o755)
    engine = engine_of(folder, launch=True, python=python)
    with pytest.raises(
        ServiceDownError, match=r"its process ended: ValueError: Available memory .*server-0\.log"
    ):
        play(engine, lambda e: e.generate(request_of(folder)))


def test_a_server_that_cannot_be_started_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    section = {"launch": True, "python": tmp_path / "absent"}
    with pytest.raises(MachineError, match=r"engine\.python: .*absent cannot be started"):
        engine_of(folder, weights_dir=tmp_path / "weights", hands_over=True, **section)
    assert not list(tmp_path.glob("**/ramify-*"))


@pytest.mark.parametrize("weights", ["folder", "gloo"])
@pytest.mark.parametrize("fault", ["a proxy", "no key", "the second socket", "the second start"])
def test_nothing_of_what_was_opened_stays_where_a_later_part_fails(
    folder, tmp_path, monkeypatch, weights, fault
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    section = {"launch": True, "gpus": ("", ""), "python": Path(sys.executable), "weights": weights}
    if weights == "folder":
        section["weights_dir"] = tmp_path / "weights"
    started = []
    if fault == "a proxy":
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent"))
    elif fault == "no key":
        section = {
            **section,
            "launch": False,
            "gpus": ("",),
            "python": None,
            "key_variable": "ABSENT_SERVER_KEY",
        }
        section |= {"urls": ("http://127.0.0.1:9",)}
    else:
        method = "__init__" if fault == "the second socket" else "start"
        work = getattr(ServerProcess, method)

        def fails(process, *arguments):
            started.append(process)
            if len(started) == 2:
                raise MachineError("no room")
            work(process, *arguments)

        monkeypatch.setattr(ServerProcess, method, fails)
    with pytest.raises(MachineError):
        engine_of(folder, hands_over=True, run=tmp_path / "run", **section)
    assert not list(tmp_path.glob("**/ramify-*"))
    if fault == "the second start":
        assert started[0].has_ended
