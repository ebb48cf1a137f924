"""`ramify model push` to a stand-in for the hub: all of a checkpoint but the state of training arrives, whole. The real hub was never asked."""

import base64
import hashlib
import json
import shutil

import pytest

from e2e_runs import ramify
from loopback import Reply, as_json, serve

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Takes a repository, contents of large files, and commits; `files` are those of the last commit."""

    def __init__(self):
        self.url, self.large, self.files, self.created, self.tokens = "", {}, {}, [], set()

    def __call__(self, request):
        self.tokens.add(request.headers.get("authorization"))
        path = request.path.partition("?")[0]
        if path == "/api/repos/create":
            self.created.append(request.json())
            return as_json({"url": f"{self.url}/me/tiny", "id": "me/tiny"})
        if path.startswith("/api/models/me/tiny/preupload/"):
            names = [file["path"] for file in request.json()["files"]]
            kinds = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            modes = [{"path": n, "uploadMode": kind, "shouldIgnore": False} for n, kind in kinds.items()]
            return as_json({"files": modes})
        if path == "/me/tiny.git/info/lfs/objects/batch":
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.url}/large/{each['oid']}"}}}
                for each in request.json()["objects"]
            ]
            return as_json({"transfer": "basic", "objects": objects})
        if path.startswith("/large/"):
            self.large[path.rpartition("/")[2]] = request.body
            return Reply(200)
        if path.startswith("/api/models/me/tiny/commit/"):
            for line in map(json.loads, request.body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.large[value["oid"]]
            url = f"{self.url}/me/tiny/commit/{SHA}"
            return as_json({"commitUrl": url, "commitOid": SHA, "commitMessage": "m"})
        return as_json({"error": "not here"}, 404)


@pytest.fixture
def checkpoint(tmp_path, model_folder):
    folder = shutil.copytree(model_folder, tmp_path / "run" / "checkpoints" / "step-000003")
    (folder / "state").mkdir()
    (folder / "state" / "optimizer.safetensors").write_bytes(b"large")
    (folder / "state.json").write_text("{}")
    return folder


def push(*words, **environment):
    """Status, output and errors in a process of its own, since the library reads its settings when it is imported."""
    return ramify(
        "model", "push", *words, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", **environment
    )


def test_a_checkpoint_is_pushed_without_the_state_of_training(checkpoint):
    hub = Hub()
    with serve(hub) as server:
        hub.url = server.url
        status, out, err = push(checkpoint, "me/tiny", HF_ENDPOINT=server.url, HF_TOKEN="hf_secret")
    assert status == 0, err
    assert f"model: {hub.url}/me/tiny/commit/{SHA}" in out
    created = [hub.created[0][key] for key in ("name", "organization", "visibility")]
    assert created == ["tiny", "me", "private"]
    there = {file.name: file.read_bytes() for file in checkpoint.iterdir() if file.is_file()}
    del there["state.json"]
    assert {name: hub.files[name] for name in there} == there
    assert not [name for name in hub.files if name.startswith("state")]
    weights = there["model.safetensors"]
    assert hub.large[hashlib.sha256(weights).hexdigest()] == weights
    assert "hf_secret" not in out + err


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [
        ("me/tiny", "", "HF_TOKEN: expected a token of the hub that may write"),
        ("tiny model", "hf_secret", "tiny model: expected an id of the hub such as my-name/my-model"),
        ("me/other", "hf_secret", "me/other: the hub did not take it ("),
    ],
)
def test_what_cannot_be_pushed_is_one_line(tmp_path, checkpoint, name, token, message):
    hub = Hub()
    with serve(hub) as server:
        hub.url = server.url
        settings = {"HF_ENDPOINT": server.url, "HF_TOKEN": token, "HF_HOME": str(tmp_path / "home")}
        status, _, err = push(checkpoint, name, **settings)
    assert (status in (1, 2), err.count("\n")) == (True, 1)
    assert message in err
    assert "hf_secret" not in err
    assert not hub.files


def test_a_folder_without_a_whole_model_asks_nobody(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    hub = Hub()
    with serve(hub) as server:
        status, _, err = push(checkpoint, "me/tiny", HF_ENDPOINT=server.url, HF_TOKEN="hf_secret")
    assert (status, hub.tokens) == (2, set())
    assert "model.path" not in err
    assert str(checkpoint) in err
