"""Files of tables: where a file, a folder of shards or a data set of the hub has them. It loads no library before it fetches."""

import re
from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import DataError
from ramify.data.row_files import FILE_KINDS
from ramify.net.hub_cache import HubRepo, cached_snapshot, hub_cache

SUFFIXES = (".jsonl", ".parquet")
HUB_PREFIX = "hf:"
_HUB_LOCATION = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?(?::(?P<table>[\w. /-]+))?(?:@(?P<last>[\w./-]+))?",
    re.ASCII,
)
SHARD = re.compile(r"-\d+-of-(?P<shards>\d+)(?=\.\w+$)|/\d+(?=\.parquet$)")
"""The part of a file's name that says which part of a table it is."""
_MAX_LISTED = 12


def find_tables(location: str) -> tuple[Path, ...]:
    """Return all files of `location`: a file or "hf:org/name", or every table in a folder and one level below it.

    Raises:
        DataError: There is no file.
    """
    if location.startswith(HUB_PREFIX):
        return fetch(location)[0]
    path = Path(location)
    if not path.is_dir():
        return (check_file(path),)
    files = sorted(file for depth in ("*", "*/*") for s in SUFFIXES for file in path.glob(f"{depth}{s}"))
    if not files:
        others = sorted({file.suffix for file in path.glob("*.*")} & set(FILE_KINDS))
        arrays = f". Name a {others[0]} file itself" if others else ""
        raise DataError(
            f"{path}: expected .jsonl or .parquet files in this folder or one level below, found none{arrays}"
        )
    return tuple(files)


def check_file(path: Path) -> Path:
    """Return `path` if it is a file of a known kind.

    Raises:
        DataError: It is not.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix not in FILE_KINDS:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; expected {', '.join(FILE_KINDS)}")
    return path


def hub_location(location: str) -> re.Match[str]:
    """Return the parts of "hf:org/name[:table][@revision]".

    Raises:
        DataError: It has another form.
    """
    match = _HUB_LOCATION.fullmatch(location)
    if match is None or (match["revision"] and match["last"]):
        raise DataError(f"{location!r}: expected hf:org/name[:table][@revision]")
    return match


def fetch(location: str, default: str = "test") -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the files of one table of "hf:org/name[:table][@revision]", and a note that names the revision.

    `table` is the files' path ("2023/validation/metadata") or a part of it in whole words ("test", "main/test").
    Without it the table is `default`, or the only one; table and revision may stand in either order. Most data sets of the hub also
    have a parquet version at "@refs/convert/parquet". Without a network (or with HF_HUB_OFFLINE) earlier downloads are read.

    Raises:
        DataError: The form is wrong, the hub refuses or cannot be reached, or no table or several tables match.
    """
    match = hub_location(location)
    files, revision = _fetch_table(
        location, match["repo"], match["revision"] or match["last"], (match["table"], default)
    )
    return files, (f"{location}: revision {revision}",)


def _fetch_table(
    location: str, repo: str, revision: str | None, table: tuple[str | None, str]
) -> tuple[tuple[Path, ...], str]:
    from ramify.net.hub import HubFailedError, HubProblem, fetch_snapshot

    hub_repo = HubRepo("dataset", repo, revision)
    try:
        snapshot = fetch_snapshot(hub_repo, lambda names: _one_table(location, names, table))
    except HubFailedError as error:
        if error.problem is HubProblem.UNREACHABLE:
            return _cached_table(location, hub_repo, table, error.detail)
        raise error.for_user(location, "data set") from None
    return tuple(snapshot.folder / path for path in snapshot.paths), snapshot.commit


def _cached_table(
    location: str, repo: HubRepo, table: tuple[str | None, str], reason: str
) -> tuple[tuple[Path, ...], str]:
    folder = cached_snapshot(hub_cache(), repo)
    if folder is None:
        raise DataError(
            f"{location}: the hub cannot be reached, and the cache has no copy ({reason}). Connect to the network, or name a file."
        )
    names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
    return tuple(folder / name for name in _one_table(location, names, table)), folder.name


def _one_table(location: str, names: Sequence[str], table: tuple[str | None, str]) -> list[str]:
    """Return the files of the table, its name or else the default one, with its shards in order.

    Raises:
        DataError: No table has that name, or several do, or not all of its shards are there.
    """
    own, default = table
    tables: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith((".jsonl", ".parquet")):
            tables.setdefault(SHARD.sub("", name), []).append(name)
    words = re.compile(rf"(?<![^\W_]){re.escape(own or default)}(?![^\W_])", re.IGNORECASE)
    exact = [key for key in tables if own in (key, key.rpartition(".")[0])]
    matches = exact or [key for key in tables if words.search(key)]
    if not matches and own is None and len(tables) == 1:
        matches = list(tables)
    if len(matches) != 1:
        shown = ", ".join((matches or list(tables))[:_MAX_LISTED]) or "no .jsonl and no .parquet"
        raise DataError(
            f"{location}: expected one table named {own or default!r}, found {len(matches)}. Name one as "
            f"hf:org/name:table; there is {shown}"
        )
    shards = tables[matches[0]]
    counts = {int(match["shards"]) for name in shards if (match := SHARD.search(name)) and match["shards"]}
    if counts and counts != {len(shards)}:
        raise DataError(f"{location}: expected {max(counts)} files of {matches[0]}, found {len(shards)}")
    return shards
