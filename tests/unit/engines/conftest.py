"""Fixtures of the tests of vLLM engines."""

import pytest

from model_folders import write_model
from ramify.engines.vllm import replica


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("vllm") / "model", "qwen2")


@pytest.fixture
def quick_servers(monkeypatch):
    """Servers are looked at often."""
    monkeypatch.setattr(replica, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(replica, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr("ramify.engines.vllm.engine._PAUSE_SECONDS", 0.001)


@pytest.fixture
def hanging_servers(monkeypatch):
    """Servers that hang are given up soon. For tests in which one does: a sound one may take as long on a busy machine."""
    monkeypatch.setattr(replica, "HEALTH_SECONDS", 3.0)
