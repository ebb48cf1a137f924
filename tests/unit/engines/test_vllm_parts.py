"""Parts of the vLLM engine: routing, the folder of weights, the command of a server."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from processes import is_running, wait_until
from ramify.core.errors import MachineError
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm import routing
from ramify.engines.vllm.folder import SocketFolder, WeightsFolder
from ramify.engines.vllm.process import Command, ServerProcess
from ramify.engines.vllm.routing import BLOCK_TOKENS, CachedPrefixes, blocks_of, least_work


@dataclass
class Place:
    in_flight: int = 0
    prefixes: CachedPrefixes = field(default_factory=CachedPrefixes)


def test_blocks_are_whole_and_depend_on_all_before_them():
    ids = tuple(range(100))
    blocks = blocks_of(ids)
    assert len(blocks) == 100 // BLOCK_TOKENS
    assert blocks_of((*ids, 7, 8)) == blocks
    other = blocks_of((99, *ids[1:]))
    assert not set(other) & set(blocks)
    assert blocks_of(ids[:50]) == blocks[: 50 // BLOCK_TOKENS]
    assert blocks_of(ids[: BLOCK_TOKENS - 1]) == []


def test_the_longest_prefix_wins_and_then_the_least_load():
    ids = tuple(range(200))
    near, far, idle = Place(in_flight=1), Place(in_flight=1), Place()
    near.prefixes.add(blocks_of(ids[:160]))
    far.prefixes.add(blocks_of(ids[:32]))
    assert near.prefixes.tokens(blocks_of(ids)) == 160
    assert least_work([far, idle, near], blocks_of(ids)) is near
    near.in_flight = 4  # 256 tokens of work against 160 cached
    assert least_work([far, idle, near], blocks_of(ids)) is idle
    near.prefixes.clear()
    assert near.prefixes.tokens(blocks_of(ids)) == 0


def test_without_any_prefix_requests_spread():
    servers = [Place() for _ in range(3)]
    for number in range(9):
        chosen = least_work(servers, blocks_of(tuple(range(number, number + 64))))
        chosen.in_flight += 1
    assert [server.in_flight for server in servers] == [3, 3, 3]


def test_old_blocks_are_forgotten(monkeypatch):
    monkeypatch.setattr(routing, "_MOST_BLOCKS", 4)
    prefixes = CachedPrefixes()
    first, second = blocks_of(tuple(range(64))), blocks_of(tuple(range(100, 132)))
    prefixes.add(first)
    prefixes.add(second)
    assert prefixes.tokens(second) == 32
    assert prefixes.tokens(first) == 0


HOLDER = """
import sys, time
from pathlib import Path
from ramify.engines.vllm.folder import WeightsFolder
folder = WeightsFolder(Path(sys.argv[1]))
(folder.path / "version-000001").mkdir()
print(folder.path, flush=True)
time.sleep(60)
"""


def test_a_killed_runs_weights_are_removed_by_the_next_and_a_living_ones_stay(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    theirs = Path(holder.stdout.readline().strip())
    (tmp_path / "ramify-weights-strange").write_text("a file")
    (tmp_path / "ramify-weights-link").symlink_to(tmp_path)
    mine = WeightsFolder(tmp_path)
    assert theirs.is_dir()
    holder.kill()
    holder.wait()
    other = WeightsFolder(tmp_path)
    assert not theirs.exists()
    assert mine.path.is_dir()
    assert (tmp_path / "ramify-weights-strange").is_file()
    assert (tmp_path / "ramify-weights-link").is_symlink()
    for folder in (mine, other):
        asyncio.run(folder.close())
        assert not folder.path.exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        MachineError, match=r"engine\.weights_dir: nothing can be written into .*Name another folder"
    ):
        WeightsFolder(tmp_path / "file" / "below")


def command(python, gpus="", **changes):
    config = VllmEngineConfig(name="vllm", launch=True, python=python, **changes)
    return Command(config, Path("/models/m"), 4096, gpus)


def test_the_command_names_all_that_the_engine_relies_on():
    flags = ("--tensor-parallel-size", "2", "--middleware", "theirs.Own")
    words = command(Path("py"), flags=flags, sleep=True).arguments(Path("/run/s/server-0.sock"))
    line = " ".join(words)
    for part in (
        "--model /models/m --served-model-name m --dtype bfloat16",
        "--max-model-len 4096 --max-logprobs 21",
        "--logprobs-mode processed_logprobs --generation-config vllm",
        "--enable-prefix-caching --enable-scale-out --enable-sleep-mode",
        "--uds /run/s/server-0.sock",
        "--tensor-parallel-size 2",
    ):
        assert part in line
    # vLLM asks the last one first.
    assert words[-4:] == ["--middleware", "theirs.Own", "--middleware", "ramify_auth.RequireKey"]
    assert not {"--host", "--port"} & set(words)


def test_the_environment_opens_the_routes_and_places_the_server(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    where = (Path("/run/s/server-0.sock"), "the-key")
    plain = command(Path("py")).environment(*where)
    assert (plain["VLLM_SERVER_DEV_MODE"], plain["CUDA_VISIBLE_DEVICES"]) == ("1", "5")
    assert "VLLM_BATCH_INVARIANT" not in plain
    assert (plain["RAMIFY_SERVER_KEY"], plain["VLLM_RPC_BASE_PATH"]) == ("the-key", "/run/s")
    first, second = plain["PYTHONPATH"].split(os.pathsep)
    assert ((Path(first) / "ramify_auth.py").is_file(), second) == (True, "/theirs")
    placed = command(Path("py"), gpus="0,1", batch_invariant=True).environment(*where)
    assert (placed["CUDA_VISIBLE_DEVICES"], placed["VLLM_BATCH_INVARIANT"]) == ("0,1", "1")


TRAINERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT", "RAMIFY_SECRET", "RAMIFY_VLLM_PYTHON", "VLLM_API_KEY", "JUDGE_API_KEY", "HF_TOKEN",
    "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "search_api_key",
)  # fmt: skip


def test_a_server_gets_neither_keys_nor_what_torchrun_set(monkeypatch):
    """torch waits for ever on torchrun's store where TORCHELASTIC_USE_AGENT_STORE is set."""
    for name in TRAINERS:
        monkeypatch.setenv(name, "theirs")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    variables = command(Path("py")).environment(Path("/run/s/server-0.sock"), "the-key")
    assert not set(TRAINERS) & set(variables)
    assert "theirs" not in variables.values()
    assert variables["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("length", [0, 90], ids=["short", "long"])
def test_the_socket_lies_in_a_folder_of_this_user_whose_path_is_short(tmp_path, monkeypatch, length):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("n" * length)) if length else None)
    folder = SocketFolder()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    longest = folder.path / "01234567-0123-0123-0123-0123456789ab"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(longest))
    folder.remove()
    assert not folder.path.exists()


SLEEPER = """#!/bin/sh
sleep 300 &
echo $! > {folder}/child
exec sleep 300
"""


def test_a_server_ends_with_what_it_started(tmp_path):
    python = tmp_path / "python"
    python.write_text(SLEEPER.format(folder=tmp_path))
    python.chmod(0o755)
    process = ServerProcess(command(python), tmp_path / "log")
    assert process.has_ended
    process.start()
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        assert not process.has_ended
    child = int((tmp_path / "child").read_text())
    process.stop()
    assert process.has_ended
    wait_until(lambda: not is_running(child))


def test_a_server_gets_no_allocator_of_the_learner_and_no_port_and_its_plugin_is_allowed(monkeypatch):
    """vLLM's sleep mode asserts that segments do not expand; a service called vllm sets VLLM_PORT on Kubernetes."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "VLLM_PORT")
    for name in names:
        monkeypatch.setenv(name, "expandable_segments:True")
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    where = (Path("/run/s/server-0.sock"), "the-key")
    variables = command(Path("py"), weights="gloo").environment(*where)
    assert not set(names) & set(variables)
    assert variables["VLLM_PLUGINS"] == "theirs,ramify"
    assert command(Path("py")).environment(*where)["VLLM_PLUGINS"] == "theirs"


@pytest.mark.skipif(sys.platform != "linux", reason="of /proc")
def test_a_killed_runs_servers_are_killed_by_the_next_run_and_a_living_ones_stay(tmp_path, monkeypatch):
    """One that hangs in a collective ignores the signal that it got, and keeps its GPU's memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sockets = SocketFolder(), SocketFolder()
    servers = [
        subprocess.Popen(["sleep", "300"], env={"VLLM_RPC_BASE_PATH": str(folder.path)}) for folder in sockets
    ]
    os.close(sockets[0]._lock)  # as after a kill
    mine = SocketFolder()
    assert servers[0].wait(10.0) == -9
    assert servers[1].poll() is None
    assert (sockets[0].path.exists(), sockets[1].path.exists()) == (False, True)
    servers[1].kill()
    servers[1].wait()
    for folder in (mine, sockets[1]):
        folder.remove()
