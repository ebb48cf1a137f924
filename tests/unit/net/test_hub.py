"""A hub or mirror that is wrong, broken or hostile: nothing is written outside the cache, and nothing unchecked is used."""

import hashlib
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub_stand_in import OTHER_SHA, SHA, HubStandIn, git_sha1, listed
from loopback import HttpRequest, Reply, as_json, serve
from ramify.net.hub import HubFailedError, HubProblem, HubSettings, fetch_snapshot
from ramify.net.hub_cache import HubRepo, cached_snapshot

pytestmark = pytest.mark.integration

WEIGHTS = b"w" * 300_000
FILES = {"config.json": b"{}", "sub/more.json": b"[1]", "model.safetensors": WEIGHTS, "code.py": b"raise"}
REPO = HubRepo("model", "org/tiny")
WANTED = ["config.json", "sub/more.json", "model.safetensors"]


def everything(names):
    return [name for name in names if name != "code.py"]


def fetch(hub, cache, repo=REPO, choose=everything, **options):
    with serve(hub) as server:
        server_settings = HubSettings(server.url, cache, **options)
        try:
            return fetch_snapshot(repo, choose, server_settings), server
        except HubFailedError as error:
            failure = error
    message = str(failure.for_user("org/tiny", "model"))
    assert "\n" not in message
    assert len(message) < 600
    return failure, server


def all_files(folder: Path):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def contents(snapshot):
    return {path: (snapshot.folder / path).read_bytes() for path in snapshot.paths}


def test_what_is_fetched_lies_where_huggingface_hub_looks_for_it(tmp_path, monkeypatch):
    snapshot, server = fetch(HubStandIn({"org/tiny": FILES}), tmp_path)
    assert contents(snapshot) == {name: FILES[name] for name in WANTED}
    assert snapshot.commit == SHA
    sha256 = hashlib.sha256(WEIGHTS).hexdigest()
    assert all_files(tmp_path) == sorted(
        [f"models--org--tiny/blobs/{digest}" for digest in (git_sha1(b"{}"), git_sha1(b"[1]"), sha256)]
        + [f"models--org--tiny/snapshots/{SHA}/{name}" for name in WANTED]
        + ["models--org--tiny/refs/main"]
    )
    from huggingface_hub import snapshot_download

    theirs = snapshot_download("org/tiny", cache_dir=tmp_path, local_files_only=True)
    assert Path(theirs) == snapshot.folder == cached_snapshot(tmp_path, REPO)
    assert not any("code.py" in request.path for request in server.requests)
    before = all_files(tmp_path)
    again, server = fetch(HubStandIn({"org/tiny": FILES}), tmp_path)
    assert (again, len(server.requests), all_files(tmp_path)) == (snapshot, 1, before)


def test_a_download_says_how_much_it_is_and_how_far(tmp_path, monkeypatch):
    monkeypatch.setattr("ramify.runtime.progress.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("ramify.runtime.progress.NEXT_SECONDS", 0.0)
    notes = []
    with serve(HubStandIn({"org/tiny": FILES})) as server:
        settings = HubSettings(server.url, tmp_path)
        for _ in range(2):
            fetch_snapshot(REPO, everything, settings, notes.append)
    assert notes[0] == "fetching org/tiny, 0 MB"
    shares = [int(re.fullmatch(r"org/tiny: (\d+)% after .*", note)[1]) for note in notes[1:]]
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_what_huggingface_hub_has_fetched_is_not_fetched_again(tmp_path):
    folder = tmp_path / "models--org--tiny"
    for name in WANTED:
        blob = (
            folder / "blobs" / listed(name, FILES[name]).get("lfs", {}).get("sha256", git_sha1(FILES[name]))
        )
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(FILES[name])
    snapshot, server = fetch(HubStandIn({"org/tiny": FILES}), tmp_path)
    assert contents(snapshot) == {name: FILES[name] for name in WANTED}
    assert len(server.requests) == 1


def changed(name, **values):
    """A spoiler that changes the entry of a file."""

    def spoil(listing):
        next(entry for entry in listing["siblings"] if entry["rfilename"] == name).update(values)

    return spoil


def renamed(path):
    return lambda listing: listing["siblings"].append({**listed("a.json", b"{}"), "rfilename": path})


EVIL = "../../../../evil"
LISTINGS = {
    "commit that climbs": lambda listing: listing.update(sha=EVIL),
    "absolute commit": lambda listing: listing.update(sha="/tmp/evil"),
    "short commit": lambda listing: listing.update(sha="abc"),
    "commit with a line end": lambda listing: listing.update(sha=SHA + "\n"),
    "no commit": lambda listing: listing.update(sha=None),
    "hash that climbs": changed("config.json", blobId=EVIL),
    "absolute hash": changed("config.json", blobId="/some/where/PWN"),
    "large hash that climbs": changed("model.safetensors", lfs={"sha256": EVIL, "size": len(WEIGHTS)}),
    "no hash": changed("config.json", blobId=None),
    "no large hash": changed("model.safetensors", lfs=[]),
    "size of another type": changed("config.json", size="2"),
    "negative size": changed("config.json", size=-1),
    "no size": changed("config.json", size=None),
    "path that climbs": renamed(f"{EVIL}.json"),
    "path in the middle that climbs": renamed("a/../../../../../x.json"),
    "absolute path": renamed("/tmp/evil.json"),
    "path with a backslash": renamed("..\\evil.json"),
    "path with a null": renamed("a\0.json"),
    "path with an empty part": renamed("a//b.json"),
    "long path": renamed("a/" * 600 + "b.json"),
    "long name": renamed("a" * 300 + ".json"),
    "no files": lambda listing: listing.pop("siblings"),
    "files of another type": lambda listing: listing.update(siblings=[1]),
    "larger than any disk": changed("model.safetensors", size=2**50),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_that_is_wrong_names_nothing_on_this_machine(name, tmp_path):
    cache = tmp_path / "a" / "b" / "cache"
    error, server = fetch(HubStandIn({"org/tiny": FILES}, spoil=LISTINGS[name]), cache)
    problem = HubProblem.CACHE if name == "larger than any disk" else HubProblem.UNTRUSTED
    assert isinstance(error, HubFailedError)
    assert error.problem is problem, error
    assert all_files(tmp_path) == []
    assert len(server.requests) == 1


def test_headers_that_climb_are_not_read(tmp_path):
    """They made huggingface_hub 1.33 write outside its cache."""

    def instead(request: HttpRequest):
        if request.path.startswith("/api"):
            return None
        name = request.path.rpartition(f"/{SHA}/")[2] or "model.safetensors"
        body = FILES.get(name, WEIGHTS)
        evil = {"ETag": f'"{tmp_path}/PWN"', "X-Linked-Etag": f'"{EVIL}"', "X-Repo-Commit": EVIL}
        return Reply(200, body, {**evil, "X-Linked-Size": "1"})

    cache = tmp_path / "a" / "b" / "cache"
    snapshot, _ = fetch(HubStandIn({"org/tiny": FILES}, instead=instead), cache)
    assert contents(snapshot) == {name: FILES[name] for name in WANTED}
    assert all(path.startswith("a/b/cache/models--org--tiny/") for path in all_files(tmp_path))


def gives(body, status=200, name="model.safetensors"):
    """Answers with another body for a file."""
    return lambda request: (
        Reply(status, body) if request.path.endswith(name) and "/cdn/" in request.path else None
    )


FLIPPED = bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (WEIGHTS[: len(WEIGHTS) // 2], f"{len(WEIGHTS) // 2} bytes of {len(WEIGHTS)}"),
        (FLIPPED, "its hash"),
        (WEIGHTS + b"x", f"more than {len(WEIGHTS)} bytes"),
        (b"", f"0 bytes of {len(WEIGHTS)}"),
    ],
    ids=["half", "flipped", "longer", "empty"],
)
def test_a_file_that_is_not_the_listed_one_is_refused_and_removed(body, reason, tmp_path):
    error, _ = fetch(HubStandIn({"org/tiny": FILES}, instead=gives(body)), tmp_path)
    assert isinstance(error, HubFailedError)
    assert (error.problem, reason in error.detail) == (HubProblem.UNTRUSTED, True), error
    assert not [path for path in all_files(tmp_path) if hashlib.sha256(WEIGHTS).hexdigest() in path]
    assert cached_snapshot(tmp_path, REPO) is None
    snapshot, _ = fetch(HubStandIn({"org/tiny": FILES}), tmp_path)
    assert contents(snapshot)["model.safetensors"] == WEIGHTS


def cut_after(count):
    """The first answer for the weights ends after some bytes; all others are the hub's."""
    cuts = [count]

    def instead(request: HttpRequest):
        if "/cdn/" not in request.path or not cuts:
            return None
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(WEIGHTS)
        body = WEIGHTS[: cuts.pop()]
        return Reply(write=lambda stream: stream.write(head + body))

    return instead


def test_a_download_that_breaks_off_goes_on_where_it_was(tmp_path):
    snapshot, server = fetch(HubStandIn({"org/tiny": FILES}, instead=cut_after(100_000)), tmp_path)
    assert contents(snapshot)["model.safetensors"] == WEIGHTS
    ranges = [request.headers.get("range") for request in server.requests if "/cdn/" in request.path]
    assert ranges == [None, "bytes=100000-"]


def test_a_download_that_breaks_off_often_goes_on_while_it_grows(tmp_path):
    large = bytes(range(256)) * (40 * 2**10)  # 10 MiB, 1.5 at a time

    def instead(request: HttpRequest):
        if "/cdn/" not in request.path:
            return None
        start = int(request.headers.get("range", "bytes=0-")[6:-1])
        head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (206 if start else 200, len(large) - start)
        return Reply(write=lambda stream: stream.write(head + large[start : start + 3 * 2**19]))

    snapshot, server = fetch(HubStandIn({"org/tiny": {"m.safetensors": large}}, instead=instead), tmp_path)
    assert contents(snapshot) == {"m.safetensors": large}
    assert sum("/cdn/" in request.path for request in server.requests) == 7


@pytest.mark.parametrize("left", [WEIGHTS[:1000], FLIPPED[:1000], WEIGHTS + b"more", FLIPPED], ids=range(4))
def test_what_an_earlier_process_left_is_used_if_it_fits(left, tmp_path):
    blob = tmp_path / "models--org--tiny" / "blobs" / hashlib.sha256(WEIGHTS).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.with_name(f"{blob.name}.ramify-part").write_bytes(left)
    snapshot, _ = fetch(HubStandIn({"org/tiny": FILES}), tmp_path)
    assert contents(snapshot)["model.safetensors"] == WEIGHTS
    assert not [path for path in all_files(tmp_path) if path.endswith(".ramify-part")]


def test_a_server_that_ignores_ranges_is_read_from_the_start(tmp_path):
    cut = cut_after(1000)
    whole = gives(WEIGHTS)
    snapshot, _ = fetch(HubStandIn({"org/tiny": FILES}, instead=lambda a: cut(a) or whole(a)), tmp_path)
    assert contents(snapshot)["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("moves", ["status", "relative"])
def test_the_token_goes_to_the_endpoint_alone(moves, tmp_path):
    files = {"org/tiny": FILES}
    with serve(HubStandIn(files)) as other:
        hub = HubStandIn(files, cdn=other.url if moves == "status" else "")
        snapshot, server = fetch(hub, tmp_path, token="hf_secret")
    assert contents(snapshot)["model.safetensors"] == WEIGHTS
    assert {request.headers.get("authorization") for request in server.requests} == {"Bearer hf_secret"}
    assert len(other.requests) == (moves == "status")
    assert all("authorization" not in request.headers for request in other.requests)


@pytest.mark.parametrize(
    ("status", "code", "problem"),
    [
        (401, "", HubProblem.NO_REPO),
        (401, "RepoNotFound", HubProblem.NO_REPO),
        (401, "GatedRepo", HubProblem.GATED),
        (403, "GatedRepo", HubProblem.GATED),
        (403, "", HubProblem.STATUS),
        (404, "RepoNotFound", HubProblem.NO_REPO),
        (404, "RevisionNotFound", HubProblem.NO_REVISION),
        (429, "", HubProblem.STATUS),
        (500, "", HubProblem.STATUS),
    ],
)
def test_what_the_hub_refuses_is_typed(status, code, problem, tmp_path):
    error, _ = fetch(HubStandIn({"org/tiny": FILES}, statuses={"org/tiny": (status, code)}), tmp_path)
    assert isinstance(error, HubFailedError)
    assert error.problem is problem
    assert error.problem is not HubProblem.STATUS or str(status) in error.detail


def test_a_pinned_commit_is_that_commit(tmp_path):
    pinned = HubRepo("model", "org/tiny", OTHER_SHA)
    snapshot, _ = fetch(HubStandIn({"org/tiny": FILES}), tmp_path, pinned)
    assert (snapshot.commit, snapshot.folder.name) == (OTHER_SHA, OTHER_SHA)
    hub = HubStandIn({"org/tiny": FILES}, spoil=lambda listing: listing.update(sha=SHA))
    error, _ = fetch(hub, tmp_path, HubRepo("model", "org/tiny", "e" * 40))
    assert isinstance(error, HubFailedError)
    assert error.problem is HubProblem.UNTRUSTED


def flood(stream):
    stream.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        stream.write(b"10000\r\n" + b"[" * 65536 + b"\r\n")


def drip(stream):
    stream.write(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n")
    while True:
        stream.write(b"w")
        stream.flush()
        time.sleep(0.1)


@pytest.mark.parametrize("where", ["/api/", "/cdn/"])
@pytest.mark.parametrize("write", [flood, drip])
def test_answers_without_an_end_do_end(write, where, tmp_path):
    began = time.monotonic()
    hub = HubStandIn(
        {"org/tiny": FILES}, instead=lambda request: Reply(write=write) if where in request.path else None
    )
    error, _ = fetch(hub, tmp_path, seconds=0.5)
    assert isinstance(error, HubFailedError)
    assert time.monotonic() - began < 60
    late = {HubProblem.UNREACHABLE} if where == "/api/" else {HubProblem.UNREACHABLE, HubProblem.STOPPED}
    # The flood ends at its bytes or at the deadline, whichever comes first.
    assert error.problem in (late | {HubProblem.UNTRUSTED} if write is flood else late)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= len(WEIGHTS) + 100


def test_redirects_end(tmp_path):
    def instead(request: HttpRequest):
        return Reply(302, headers={"location": f"{request.path}x"}) if "/cdn/" in request.path else None

    error, _ = fetch(HubStandIn({"org/tiny": FILES}, instead=instead), tmp_path)
    assert isinstance(error, HubFailedError)
    assert error.problem is HubProblem.UNTRUSTED
    assert "redirects" in error.detail


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "cache").write_text("a file")
    error, _ = fetch(HubStandIn({"org/tiny": FILES}), tmp_path / "cache")
    assert isinstance(error, HubFailedError)
    assert error.problem is HubProblem.CACHE


@pytest.mark.parametrize("ref", ["../../../../evil", "/etc/evil", "a\nb", "0" * 40 + "/../x", "\udc80"])
def test_a_ref_in_the_cache_that_climbs_is_not_followed(ref, tmp_path):
    (tmp_path / "evil").mkdir()
    folder = tmp_path / "models--org--tiny"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_bytes(ref.encode(errors="surrogateescape"))
    assert cached_snapshot(tmp_path, REPO) is None


ENTRIES = st.fixed_dictionaries(
    {
        "rfilename": st.one_of(
            st.sampled_from(
                [*WANTED, EVIL, "/x", ".", "..", "a/.", "", "~/x", "a/b/c.json", "..json", "con"]
            ),
            st.text(max_size=12),
            st.integers(),
        ),
        "size": st.one_of(st.integers(-2, 2**60), st.none(), st.floats(allow_nan=False), st.booleans()),
        "blobId": st.one_of(
            st.sampled_from([git_sha1(b"{}"), EVIL, "a" * 64, "A" * 40]), st.text(max_size=6), st.none()
        ),
        "lfs": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {"sha256": st.one_of(st.sampled_from(["a" * 64, EVIL]), st.integers(), st.none())}
            ),
            st.integers(),
        ),
    }
)


@settings(max_examples=int(os.environ.get("RAMIFY_HUB_EXAMPLES", "25")), deadline=None, suppress_health_check=list(HealthCheck))  # fmt: skip
@given(entries=st.lists(ENTRIES, max_size=4), commit=st.sampled_from([SHA, EVIL, "", 5]))
def test_no_listing_writes_outside_the_cache_or_raises_anything_else(entries, commit, tmp_path_factory):
    top = tmp_path_factory.mktemp("drawn")
    listing = json.loads(json.dumps({"sha": commit, "siblings": entries}))

    def instead(request: HttpRequest):
        return as_json(listing) if request.path.startswith("/api") else Reply(200, b"{}")

    fetch(HubStandIn(instead=instead), top / "a" / "b" / "cache", choose=list)
    assert all(path.startswith("a/b/cache/models--org--tiny/") for path in all_files(top))
