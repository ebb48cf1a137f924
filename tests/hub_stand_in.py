"""A stand-in for the Hugging Face hub, with the shape of its API: listings with sizes and hashes, and files behind a redirect.

The real hub was never asked. Shapes are those of huggingface_hub's `RepoSibling` (`?blobs=true`) and of its error codes.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from loopback import HttpRequest, Reply, as_json

SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER_SHA = "f" * 40
_LARGE = (".safetensors", ".parquet", ".bin")
Files = Mapping[str, bytes]


def git_sha1(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def listed(name: str, body: bytes) -> dict[str, Any]:
    """An entry of a listing; of a large file git has a pointer only."""
    if not name.endswith(_LARGE):
        return {"rfilename": name, "size": len(body), "blobId": git_sha1(body)}
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{hashlib.sha256(body).hexdigest()}\nsize {len(body)}\n"
    lfs = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": len(pointer)}
    return {"rfilename": name, "size": len(body), "blobId": git_sha1(pointer.encode()), "lfs": lfs}


@dataclass
class HubStandIn:
    """Answers as the hub; `spoil` may change a listing, `instead` take the place of an answer.

    Attributes:
        models, datasets: Files by repository.
        statuses: Errors by repository: a status and an error code.
        cdn: Where large files are redirected to; "" is the hub itself.
    """

    models: Mapping[str, Files] = field(default_factory=dict)
    datasets: Mapping[str, Files] = field(default_factory=dict)
    statuses: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    cdn: str = ""
    spoil: Callable[[dict[str, Any]], object] = lambda _: None
    instead: Callable[[HttpRequest], Reply | None] = lambda _: None

    def __call__(self, request: HttpRequest) -> Reply:
        if (reply := self.instead(request)) is not None:
            return reply
        parts = unquote(request.path.partition("?")[0]).strip("/").split("/")
        if parts[0] == "api":
            repo, revision = "/".join(parts[2:4]), "/".join(parts[5:]) or "main"
            return self._listing(
                self.models if parts[1] == "models" else self.datasets, repo, revision, parts[4:5]
            )
        if parts[0] == "cdn":
            return _ranged(request, self._files(parts[1:])["/".join(parts[4:])])
        large = parts[-1].endswith(_LARGE)
        kind, segments = ("datasets", parts[1:]) if parts[0] == "datasets" else ("models", parts)
        name = "/".join(segments[4:])
        if large:
            return Reply(
                302, headers={"location": f"{self.cdn}/cdn/{kind}/{segments[0]}/{segments[1]}/{name}"}
            )
        return _ranged(request, self._files([kind, *segments])[name])

    def _files(self, parts: list[str]) -> Files:
        return (self.models if parts[0] == "models" else self.datasets)["/".join(parts[1:3])]

    def _listing(self, repositories: Mapping[str, Files], repo: str, revision: str, form: list[str]) -> Reply:
        status, code = self.statuses.get(repo, (404, "RepoNotFound") if repo not in repositories else (0, ""))
        if "absent" in revision:
            status, code = 404, "RevisionNotFound"
        if status:
            return as_json({"error": code}, status, **({"X-Error-Code": code} if code else {}))
        listing = {
            "id": repo,
            "sha": SHA if revision in ("main", SHA) else OTHER_SHA,
            "siblings": [listed(name, body) for name, body in repositories[repo].items()],
        }
        self.spoil(listing)
        return as_json([_in_tree(entry) for entry in listing["siblings"]] if form == ["tree"] else listing)


def _in_tree(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry as `/tree/` has it, which huggingface_hub asks."""
    lfs = entry.get("lfs")
    named = {"type": "file", "path": entry["rfilename"], "size": entry["size"], "oid": entry["blobId"]}
    return named if lfs is None else {**named, "lfs": {**lfs, "oid": lfs["sha256"]}}


def _ranged(request: HttpRequest, body: bytes) -> Reply:
    """A file, or the rest of it. The headers name etag and commit, as the hub's do."""
    headers = {"ETag": f'"{git_sha1(body)}"', "X-Repo-Commit": SHA}
    match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    if match is None:
        return Reply(200, body, headers)
    start = int(match[1])
    return Reply(
        206, body[start:], {**headers, "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
    )
