"""A real vLLM on this machine's CPU. `make test-engine` installs it in an environment of its own and names its Python."""

import os
from pathlib import Path

import pytest
from real_servers import CONTEXT, FLAGS, NamedServer, launched_by

from ramify.cli import main
from ramify.engines.vllm.process import Command


@pytest.fixture(scope="session")
def vllm_python():
    python = os.environ.get("RAMIFY_VLLM_PYTHON")
    if not python:
        pytest.skip("no Python with vLLM: make test-engine makes one, or name it in RAMIFY_VLLM_PYTHON")
    return Path(python).absolute()


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory, vllm_python):
    """The folder of a finished smoke quick start: a model that calls tools, with a tied head."""
    out = tmp_path_factory.mktemp("quickstart") / "out"
    assert main(["quickstart", "--smoke", "--seed", "1", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def taught(quickstart):
    """The quick start's model after a longer SFT than the smoke run's: it calls tools, in different ways."""
    run = quickstart / "taught"
    recipe = quickstart / "sft" / "recipe.toml"
    assert main(["sft", str(recipe), "-s", f"run.dir={run}", "-s", "data.epochs=8"]) == 0
    return next((run / "checkpoints").iterdir())


@pytest.fixture(scope="session")
def start_server(tmp_path_factory, vllm_python):
    """Start a server of a folder; all of them end with the tests."""
    started = []

    def start(folder, *flags):
        command = Command(launched_by(vllm_python, *FLAGS, *flags), folder, CONTEXT)
        started.append(NamedServer(command, tmp_path_factory.mktemp("logs") / "server.log"))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server, taught):
    """One server of the taught model."""
    return start_server(taught)
