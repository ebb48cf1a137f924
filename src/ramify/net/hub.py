"""Fetches files of the Hugging Face hub, or of a mirror of it, into the hub's own cache.

The listing comes first: the commit, and path, size and hash of each file. It is checked before it names anything on
this machine, only listed files are requested, and a content counts only once its size and hash are those of the listing.
huggingface_hub 1.33 names files after headers of the server (so that a bad mirror writes outside the cache), checks no hash
and sets no deadline for a whole answer; so ramify sends the requests itself, and reads only settings with huggingface_hub. Uploads go through it: no answer of them is
written to this machine.
HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and HF_HUB_DOWNLOAD_TIMEOUT act as they do there.
"""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ramify.core.errors import DataError, MachineError, UserError
from ramify.net.addresses import join_url
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.connections import wait_for
from ramify.net.exchange import PART_BYTES, Answer
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.net.hub_cache import (
    HubFile,
    HubRepo,
    PartialContent,
    discard,
    finish,
    is_commit,
    link,
    missing,
    partial_content,
    record_ref,
)
from ramify.net.secrets import hide, read_optional_key, redact
from ramify.net.wire import origin, without_query
from ramify.runtime.progress import ProgressNotes

_LISTING_BYTES: Final = 32 * 2**20
_MAX_REDIRECTS: Final = 5
_PATIENCE: Final = 3
"""An answer, or each MiB of a file, may take this many times HF_HUB_DOWNLOAD_TIMEOUT (10 s)."""
Choose = Callable[[Sequence[str]], Sequence[str]]
"""Chooses among the paths of a repository."""


class HubProblem(StrEnum):
    """Reasons why the hub did not deliver."""

    GATED = "gated"
    NO_REPO = "no such repository, or a private one"
    NO_REVISION = "no such revision"
    UNREACHABLE = "unreachable"
    STATUS = "an HTTP status that may pass"
    STOPPED = "a download that stopped"
    UNTRUSTED = "an answer that is wrong"
    CACHE = "a cache that cannot be written"


class HubFailedError(Exception):
    """The hub did not deliver; `detail` is one line for the user."""

    def __init__(self, problem: HubProblem, detail: str) -> None:
        self.problem, self.detail = problem, detail
        super().__init__(f"{problem.value}: {detail}")

    def for_user(self, name: str, kind: str) -> UserError:
        """Return the error that tells the user what to do; `kind` is the word for what has the `name`."""
        match self.problem:
            case HubProblem.GATED:
                return DataError(f"{name}: gated. Accept its terms on its page of the hub and set HF_TOKEN.")
            case HubProblem.NO_REVISION:
                return DataError(f"{name}: the {kind} has no such revision on the hub")
            case HubProblem.NO_REPO:
                return DataError(f"{name}: no such {kind} on the hub (or a private one that needs HF_TOKEN)")
            case HubProblem.UNREACHABLE:
                return MachineError(f"{name}: the hub cannot be reached ({self.detail})")
            case HubProblem.STATUS:
                return MachineError(f"{name}: {self.detail}. Try again later.")
            case HubProblem.STOPPED:
                return MachineError(f"{name}: {self.detail}. Run the command again: the download resumes.")
            case HubProblem.CACHE:
                return MachineError(
                    f"{name}: {self.detail}. Free disk space or set HF_HOME to another folder."
                )
            case HubProblem.UNTRUSTED:
                return DataError(
                    f"{name}: {self.detail}. Nothing of it is used: try again, or set HF_ENDPOINT to another mirror."
                )


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The hub, its cache, and the limits of requests.

    Attributes:
        endpoint: Address of the hub or of a mirror.
        cache: Folder of the cache.
        token: Sent to the endpoint's origin alone.
        offline: No request may be sent.
        seconds: Limit for an answer, and for each MiB of a file.
    """

    endpoint: str
    cache: Path
    token: str | None = field(default=None, repr=False)
    offline: bool = False
    seconds: float = 30.0

    @classmethod
    def of_environment(cls) -> "HubSettings":
        """Read the settings that huggingface_hub would use.

        Raises:
            MachineError: HF_TOKEN holds characters that a header cannot carry.
        """
        from huggingface_hub import constants

        return cls(
            constants.ENDPOINT,
            Path(constants.HF_HUB_CACHE).expanduser(),
            _token(Path(constants.HF_TOKEN_PATH), disabled=constants.HF_HUB_DISABLE_IMPLICIT_TOKEN),
            constants.HF_HUB_OFFLINE,
            _PATIENCE * float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of a commit: their folder in the cache, the commit, and their paths below the folder."""

    folder: Path
    commit: str
    paths: tuple[str, ...]


def fetch_snapshot(
    repo: HubRepo,
    choose: Choose,
    settings: HubSettings | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Snapshot:
    """Bring the chosen files of a repository into the cache, and block until they are there.

    Args:
        repo: The repository.
        choose: Picks among the listed paths; what it raises is passed on.
        settings: None for those of the environment.
        note: Gets a line when a download begins, and now and then how far it is.

    Raises:
        HubFailedError: The hub did not deliver.
        DataError: The repository's name is invalid.
        MachineError: HF_TOKEN, a proxy or certificates of the environment cannot be used.
    """
    settings = settings or HubSettings.of_environment()
    if settings.offline:
        raise HubFailedError(HubProblem.UNREACHABLE, "HF_HUB_OFFLINE is set")
    return wait_for(_fetch(repo, choose, settings, note), "hub")


async def _fetch(
    repo: HubRepo, choose: Choose, settings: HubSettings, note: Callable[[str], None]
) -> Snapshot:
    limits = HttpSettings(
        timeout_seconds=settings.seconds, max_bytes=_LISTING_BYTES, backoff_seconds=0.2, in_flight=1
    )
    secrets = [settings.token] if settings.token else []
    client = HttpClient("hub", limits, secrets=secrets, many_hosts=True)
    try:
        return await _Fetch(client, settings, repo, note).snapshot(choose)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HubFailedError(
            HubProblem.CACHE, f"the hub's cache {settings.cache} cannot be written: {reason}"
        ) from None
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class _Fetch:
    client: HttpClient
    settings: HubSettings
    repo: HubRepo
    note: Callable[[str], None]

    async def snapshot(self, choose: Choose) -> Snapshot:
        """List, choose, and download the missing files; then link them into the snapshot."""
        folder = self.repo.folder(self.settings.cache)
        commit, entries = await self._listing()
        paths = choose(list(entries))
        try:
            files = [HubFile.of_listing(path, entries[path]) for path in paths]
        except ValueError as error:
            raise self._untrusted(str(error)) from None
        snapshot = folder / "snapshots" / commit
        absent = [file for file in files if missing(snapshot, file)]
        _check_room(folder, absent)
        total, done = sum(file.size for file in absent), 0
        if absent:
            self.note(f"fetching {self.repo.name}, {total / 1e6:,.0f} MB")
        progress = ProgressNotes(self.note, self.repo.name, total)
        for file in absent:
            await self._download(folder, commit, file, partial(progress.reach, before=done))
            done += file.size
        # All at once and last, so that an interrupted fetch leaves no snapshot that looks whole.
        snapshot.mkdir(parents=True, exist_ok=True)
        for file in absent:
            link(folder, snapshot, file)
        record_ref(folder, self.repo.ref, commit)
        return Snapshot(snapshot, commit, tuple(paths))

    async def _listing(self) -> tuple[str, Mapping[str, Mapping[str, object]]]:
        """Return the commit, and the unchecked entries of all files by their path."""
        repo = self.repo
        url = f"{self._url('api', f'{repo.kind}s', repo.name, 'revision')}/{quote(repo.ref, safe='')}?blobs=true"
        try:
            async with asyncio.timeout(2 * _PATIENCE * self.settings.seconds):
                answer = await self._get(url)
            listing: Any = answer.json()
        except RequestFailedError as error:
            raise _problem(error) from None
        except TimeoutError:
            raise HubFailedError(
                HubProblem.UNREACHABLE, f"{without_query(url)}: no listing in time"
            ) from None
        commit, siblings = (
            (listing.get("sha"), listing.get("siblings")) if isinstance(listing, dict) else (None, None)
        )
        if not is_commit(commit):
            raise self._untrusted(f"names the commit {commit!r:.80}, expected 40 hexadecimal digits")
        if is_commit(repo.ref) and commit != repo.ref:
            raise self._untrusted(f"answers with the commit {commit} instead")
        if not isinstance(siblings, list) or not all(isinstance(entry, dict) for entry in siblings):
            raise self._untrusted("lists no files")
        return str(commit), {
            path: entry for entry in siblings if isinstance(path := entry.get("rfilename"), str)
        }

    async def _download(self, folder: Path, commit: str, file: HubFile, reach: Callable[[int], None]) -> None:
        """Bring a content into the cache, unless it is there; twice if the beginning from an earlier download was damaged."""
        blob = folder / "blobs" / file.hash
        prefix = "" if self.repo.kind == "model" else f"{self.repo.kind}s"
        url = self._url(*filter(None, (prefix, self.repo.name, "resolve", commit)), file.path)
        if blob.is_file() and blob.stat().st_size == file.size:
            return
        with partial_content(blob, file, reach) as part:
            if part is None:
                return
            is_resumed = part.size > 0
            try:
                await self._fill(part, url, file)
                is_whole = part.is_whole()
                if is_resumed and not is_whole:
                    part.restart()
                    await self._fill(part, url, file)
                    is_whole = part.is_whole()
                if not is_whole:
                    what = "its hash" if part.size == file.size else f"{part.size} bytes of {file.size}"
                    raise self._untrusted(f"lists another {file.path} than it sends ({what})")
            except HubFailedError as error:
                if error.problem is HubProblem.UNTRUSTED:
                    discard(blob)
                raise
            finish(blob)

    async def _fill(self, part: PartialContent, url: str, file: HubFile) -> None:
        """Download the missing bytes; a broken connection is reopened as long as each brings at least `PART_BYTES`."""
        while part.size < file.size or not file.size:
            before = part.size
            try:
                await self._get(url, part)
                return
            except RequestFailedError as error:
                failure = error
            if not failure.kind.retriable:
                raise _problem(failure)
            if part.size - before < PART_BYTES:
                detail = f"{file.path} stopped at {part.size} of {file.size} bytes ({failure.detail})"
                raise HubFailedError(HubProblem.STOPPED, detail)

    async def _get(self, url: str, part: PartialContent | None = None) -> Answer:
        """Send a GET request, and follow redirects; the token goes to the endpoint's origin alone."""
        own = origin(self.settings.endpoint)
        for _ in range(_MAX_REDIRECTS + 1):
            token = self.settings.token if origin(url) == own else None
            headers = {"authorization": f"Bearer {token}"} if token else {}
            if part is None:
                answer = await self.client.get(url, headers=headers)
            else:
                answer = await self.client.download(url, part, headers=headers)
            if answer.status < 300:
                return answer
            target = join_url(url, answer.location) if answer.location else ""
            if not target or (url.startswith("https:") and not target.startswith("https:")):
                raise RequestFailedError(
                    FailureKind.REDIRECTS, f"{without_query(url)}: it leads nowhere safe"
                )
            url = target
        raise RequestFailedError(
            FailureKind.REDIRECTS, f"{without_query(url)}: more than {_MAX_REDIRECTS} redirects"
        )

    def _url(self, *parts: str) -> str:
        return "/".join((self.settings.endpoint.rstrip("/"), *map(quote, parts)))

    def _untrusted(self, detail: str) -> HubFailedError:
        return HubFailedError(HubProblem.UNTRUSTED, f"{without_query(self.settings.endpoint)} {detail}")


def _check_room(folder: Path, files: Sequence[HubFile]) -> None:
    """Raise HubFailedError if the disk has less room than the files need."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    needed, free = sum(file.size for file in files), shutil.disk_usage(there).free
    if needed > free:
        detail = f"{folder} needs {needed / 1e9:,.1f} GB, the disk has {free / 1e9:,.1f} GB free"
        raise HubFailedError(HubProblem.CACHE, detail)


def _problem(error: RequestFailedError) -> HubFailedError:
    """Return a failed request in the hub's terms; the real hub answers 401 for a missing repository."""
    if error.code == "GatedRepo":
        return HubFailedError(HubProblem.GATED, error.detail)
    if error.code == "RevisionNotFound":
        return HubFailedError(HubProblem.NO_REVISION, error.detail)
    if error.code == "RepoNotFound" or error.status in (401, 404):
        return HubFailedError(HubProblem.NO_REPO, error.detail)
    if error.status is not None and (error.status >= 400):
        return HubFailedError(HubProblem.STATUS, f"the hub answered with HTTP status {error.status}")
    if error.kind in (FailureKind.TIMEOUT, FailureKind.CONNECTION):
        return HubFailedError(HubProblem.UNREACHABLE, error.detail)
    return HubFailedError(HubProblem.UNTRUSTED, error.detail)


def _token(file: Path, *, disabled: bool) -> str | None:
    """Return the token of HF_TOKEN, or the one that `hf auth login` left, unless the environment disables tokens."""
    if disabled:
        return None
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := read_optional_key(variable):
            return token
    try:
        token = file.expanduser().read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        token = ""
    if not token or not token.isprintable() or " " in token:
        return None
    hide([token])
    return token


_LONGEST_REASON = 500
"""Characters of the library's error that are shown."""


def push_folder(
    settings: HubSettings,
    folder: Path,
    name: str,
    *,
    branch: str | None,
    is_public: bool,
    left_out: Sequence[str],
) -> str:
    """Upload a folder as the model `name`, which is created if there is none; return the commit's address.

    Args:
        settings: The hub's address and the token.
        folder: The model.
        name: Its id, such as "org/name".
        branch: Branch of the repository; None: main.
        is_public: A new repository is public.
        left_out: Patterns of files that stay here.

    Raises:
        MachineError: The hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    hub = HfApi(endpoint=settings.endpoint, token=settings.token)
    try:
        hub.create_repo(name, private=not is_public, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=branch,
            commit_message=f"ramify model push {folder.name}",
            ignore_patterns=list(left_out),
        )
    # The library and what it stands on raise errors of many kinds, also of a file that changes meanwhile.
    except Exception as error:  # noqa: BLE001
        reason = redact(" ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON])
        raise MachineError(f"{name}: the hub did not take it ({reason}). Repeat the command") from None
    return str(commit.commit_url)
