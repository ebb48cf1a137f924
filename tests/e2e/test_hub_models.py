"""A model by its id of the hub, from a stand-in for it; the real hub was never asked."""

import io
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest
from huggingface_hub import constants

from e2e_runs import SFT, ramify, write_task
from hub_stand_in import HubStandIn, listed
from loopback import Reply, serve
from ramify.cli import main


@pytest.fixture(scope="module")
def hub(model_folder):
    """`org/tiny`, with a pickle and a program that nobody wants."""
    files = {path.name: path.read_bytes() for path in model_folder.iterdir() if path.is_file()}
    files |= {"pytorch_model.bin": b"pickle", "modeling.py": b"raise SystemExit"}
    statuses = {"org/gated": (403, "GatedRepo"), "org/busy": (503, "")}
    with serve(HubStandIn({"org/tiny": files}, statuses=statuses)) as here:
        yield here


def run(endpoint, home, *command):
    """Status and errors of a command in a process of its own, whose variables name the hub and its cache."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "5"}  # fmt: skip
    status, _, message = ramify(*command, **settings)
    return status, message


def run_here(endpoint, home, *commands, **more):
    """Statuses, output and lines of errors of commands in this process, of which the hub's client read its variables long ago."""
    settings = {"ENDPOINT": endpoint, "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token")}
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in (settings | more).items():
            patch.setattr(constants, name, value)
        statuses = [main(list(map(str, command))) for command in commands]
    return statuses, out.getvalue(), err.getvalue().splitlines()


@pytest.fixture(scope="module")
def fetched(hub, model_folder, tmp_path_factory):
    """A cache with `org/tiny` in it, and what came of two steps of training it."""
    folder = tmp_path_factory.mktemp("hub")
    recipe = write_task(folder / "task", model_folder, SFT)
    words = ("sft", recipe, "-s", "model.path=org/tiny", "--max-steps", 2)
    before = run_here(hub.url, folder / "home", (*words, "--dry-run"))
    status, message = run(hub.url, folder / "home", *words)
    assert status == 0, message
    return folder / "home", recipe, before


def test_the_sizes_of_a_model_are_fetched_without_its_weights(hub, model_folder, tmp_path):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    words = (recipe, "-s", "model.path=org/tiny")
    statuses, output, message = run_here(
        hub.url, tmp_path / "home", ("doctor", *words, "--gpu-memory", 24), ("sft", *words, "--dry-run")
    )
    assert statuses == [0, 0], message
    assert "together: fits" in output
    # What is here now is not enough to train.
    assert "org/tiny is fetched from the hub when the run starts" in output
    names = {path.name for path in (tmp_path / "home").rglob("*")}
    assert "config.json" in names
    assert not [name for name in names if name.endswith(".safetensors")]


def test_a_dry_run_fetches_nothing(fetched):
    statuses, output, message = fetched[2]
    assert (statuses, message) == ([0], [])
    assert 'path = "org/tiny"' in output
    assert "# model: org/tiny is fetched from the hub when the run starts" in output


def test_a_model_is_fetched_and_trained_without_pickles_or_code(fetched):
    home, recipe, _ = fetched
    names = {path.name for path in home.rglob("snapshots/*/*")}
    assert "model.safetensors" in names
    assert not names & {"pytorch_model.bin", "modeling.py"}
    run_folder = recipe.parent / "run"
    assert 'path = "org/tiny"' in (run_folder / "recipe.toml").read_text()
    assert (run_folder / "checkpoints" / "step-000002" / "model.safetensors").is_file()


def test_what_was_fetched_is_used_without_a_network(fetched):
    home, recipe, _ = fetched
    again = ("sft", recipe.parent / "run" / "recipe.toml", "--resume")
    new = ("-s", "model.path=org/tiny", "-s", f"run.dir={recipe.parent / 'new'}")
    statuses, output, message = run_here(
        "http://127.0.0.1:9", home, again, ("sft", recipe, *new, "--dry-run")
    )
    assert statuses == [0, 0], message
    assert "# memory: about " in output


@pytest.mark.parametrize(
    ("path", "setting", "expected"),
    [
        ("org/tiny", "nowhere", "model.path: org/tiny: no such folder here, and the hub cannot be reached"),
        ("org/tiny", "offline", "model.path: org/tiny: no such folder here, and the hub cannot be reached"),
        ("org/none", "hub", "model.path: org/none: no such folder here and no such model on the hub"),
        ("org/busy", "hub", "model.path: org/busy: the hub answered with HTTP status 503"),
        ("org/gated", "hub", "model.path: org/gated: gated. Accept its terms"),
        ("org/tiny@absent", "hub", "model.path: org/tiny@absent: the model has no such revision"),
        ("models/none", "hub", "model.path: model folder models/none: no such folder"),
    ],
)
def test_what_cannot_be_had_is_one_line(hub, tmp_path, model_folder, path, setting, expected):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    endpoint = hub.url if setting == "hub" else "http://127.0.0.1:9"
    offline = {"HF_HUB_OFFLINE": setting == "offline"}
    statuses, _, message = run_here(
        endpoint, tmp_path, ("sft", recipe, "-s", f"model.path={path}"), **offline
    )
    assert (statuses, len(message)) == ([2], 1), message
    assert expected in message[0]
    assert not (recipe.parent / "run").exists()


def test_a_model_is_fetched_into_a_folder(hub, model_folder, tmp_path):
    out = tmp_path / "models" / "tiny"
    fetch = ("model", "fetch", "org/tiny", "--out", out)
    absent = ("model", "fetch", "org/none", "--out", tmp_path / "none")
    (tmp_path / "empty" / ".fetch-killed.part" / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    linked = ("model", "fetch", "org/tiny", "--out", tmp_path / "link")
    statuses, _, message = run_here(hub.url, tmp_path / "home", fetch, fetch, absent, linked)
    assert statuses == [0, 2, 2, 0], message
    assert len(message) == 2, message
    assert {path.name for path in (tmp_path / "empty").iterdir()} == {p.name for p in model_folder.iterdir()}
    assert {path.name for path in out.iterdir()} == {path.name for path in model_folder.iterdir()}
    assert not out.is_symlink()
    for path in out.iterdir():
        assert not path.is_symlink()
        assert path.read_bytes() == (model_folder / path.name).read_bytes()
    assert any("--out" in line and "is not empty" in line for line in message)
    assert any("no such model on the hub" in line for line in message)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "none"))] == []


EVIL = "../../../../evil"


def evil_headers(**headers):
    """A hub whose answers for files name another etag or commit."""

    def spoiled(hub):
        def instead(request):
            if request.path.startswith("/api"):
                return None
            reply = HubStandIn(hub.models)(request)
            return replace(reply, headers={**reply.headers, **headers})

        hub.instead = instead

    return spoiled


def weights_instead(change):
    """A hub that gives other weights than it lists."""

    def spoiled(hub):
        files = hub.models["org/tiny"]
        worse = {"org/tiny": {**files, "model.safetensors": change(files["model.safetensors"])}}
        hub.instead = lambda request: None if request.path.startswith("/api") else HubStandIn(worse)(request)

    return spoiled


def half_weights(hub):
    """A hub that lists what it gives."""
    files = hub.models["org/tiny"]
    hub.models = {"org/tiny": {**files, "model.safetensors": files["model.safetensors"][:9000]}}


def evil_commit(hub):
    hub.spoil = lambda listing: listing.update(sha=EVIL)


def evil_name(hub):
    entry = listed("tokenizer.json", b"{}")
    hub.spoil = lambda listing: listing["siblings"].append({**entry, "rfilename": f"{EVIL}.json"})


def endless_listing(hub):
    def write(stream):
        stream.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
        while True:
            stream.write(b" ")
            stream.flush()
            time.sleep(0.2)

    hub.instead = lambda request: Reply(write=write)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (evil_headers(ETag=f'"{EVIL}"'), None),
        (evil_headers(ETag='"/{tmp}/PWN"'), None),
        (evil_headers(**{"X-Linked-Etag": f'"{EVIL}"', "X-Repo-Commit": EVIL}), None),
        (evil_commit, f"names the commit '{EVIL}'"),
        (evil_name, f"lists '{EVIL}.json'"),
        (weights_instead(lambda body: body[:9000]), "lists another model.safetensors than it sends (9000 bytes of"),
        (weights_instead(lambda body: body[:-1] + bytes([body[-1] ^ 1])), "than it sends (its hash)"),
        (half_weights, "model.safetensors cannot be read as safetensors"),
        (endless_listing, "the hub cannot be reached to fetch"),
    ],
    ids=["etag", "absolute etag", "headers", "commit", "name", "half", "flipped", "listed half", "endless"],
)  # fmt: skip
def test_a_mirror_gone_bad_writes_nothing_outside_and_gives_no_model(model_folder, tmp_path, spoil, message):
    hub = HubStandIn(
        {"org/tiny": {path.name: path.read_bytes() for path in model_folder.iterdir() if path.is_file()}}
    )
    spoil(hub)
    home, out = tmp_path / "a" / "b" / "home", tmp_path / "out"
    inner = hub.instead
    hub.instead = lambda request: in_folder(inner(request), tmp_path)
    with serve(hub) as here:
        before = time.monotonic()
        fetch = ("model", "fetch", "org/tiny", "--out", out)
        statuses, output, lines = run_here(here.url, home, fetch, HF_HUB_DOWNLOAD_TIMEOUT=1)
    assert time.monotonic() - before < 200
    if message is None:
        assert statuses == [0], lines
        assert (out / "model.safetensors").read_bytes() == (model_folder / "model.safetensors").read_bytes()
    else:
        assert (statuses, [message in line for line in lines]) == ([2], [True]), lines
        assert "model:" not in output
        assert not out.exists()
        assert not [path for path in home.rglob("*") if path.name.endswith((".safetensors", ".ramify-part"))]
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents]
    assert [path for path in outside if out not in path.parents] == []


def in_folder(reply, folder):
    """The reply with {tmp} in its headers replaced."""
    if reply is None:
        return None
    headers = {name: value.replace("{tmp}", str(folder).strip("/")) for name, value in reply.headers.items()}
    return replace(reply, headers=headers)


def test_a_model_in_the_cache_that_was_damaged_is_not_given(hub, tmp_path):
    """A flipped byte does not change the size, so the copy is compared with its hash."""
    home = tmp_path / "home"
    first = ("model", "fetch", "org/tiny", "--out", tmp_path / "first")
    assert run_here(hub.url, home, first)[0] == [0]
    (weights,) = (path.resolve() for path in home.rglob("model.safetensors"))
    body = weights.read_bytes()
    weights.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    second = ("model", "fetch", "org/tiny", "--out", tmp_path / "second")
    statuses, _, message = run_here(hub.url, home, second, second)
    assert statuses == [2, 0], message
    assert "model.safetensors in the hub's cache was damaged and is removed" in message[0]
    assert (tmp_path / "second" / "model.safetensors").read_bytes() == body
