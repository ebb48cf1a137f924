"""A table of a data set on the Hugging Face hub, downloaded into the hub's own cache.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE work as in huggingface_hub. Untested on the real hub; tests use a
stand-in for it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import DataError

HUB_PREFIX = "hf:"
_PLACE = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?(?::(?P<table>[\w. /-]+))?", re.ASCII
)
_SHARD = re.compile(r"-\d+-of-\d+(?=\.\w+$)|/\d+(?=\.parquet$)")
_DEFAULT_TABLE = "test"
_MAX_LISTED = 12


def fetch(place: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of one table of "hf:org/name[@revision][:table]", and a note that names the revision.

    `table` is the files' path ("2023/validation/metadata") or a part of it in whole words ("test", "main/test").
    Without it the table is "test", or the only one. Most data sets of the hub also have a parquet version at
    "@refs/convert/parquet". Without a network (or with HF_HUB_OFFLINE) earlier downloads are read.

    Raises:
        DataError: The form is wrong, the hub refuses or cannot be reached, or no table or several tables match.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise DataError(f"{place!r}: expected hf:org/name[@revision][:table]")
    files, revision = _fetch_table(place, match["repo"], match["revision"], match["table"])
    return files, (f"{place}: revision {revision}",)


def _fetch_table(
    place: str, repo: str, revision: str | None, table: str | None
) -> tuple[tuple[Path, ...], str]:
    import httpx
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        listed = HfApi().dataset_info(repo, revision=revision)
        names = _one_table(place, [each.rfilename for each in listed.siblings or ()], table)
        paths = [hf_hub_download(repo, name, repo_type="dataset", revision=revision) for name in names]
        return tuple(map(Path, paths)), str(listed.sha)
    except GatedRepoError:
        raise DataError(f"{place}: gated; accept its terms on its page of the hub and set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise DataError(f"{place}: the data set has no such revision") from None
    except RepositoryNotFoundError:
        raise DataError(f"{place}: no such data set, or a private one that needs HF_TOKEN") from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.TransportError, ConnectionError) as error:
        return _fetched_before(place, repo, revision, table, error)
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:
        raise DataError(f"{place}: the hub did not give it: {_first_line(error)}") from None


def _fetched_before(
    place: str, repo: str, revision: str | None, table: str | None, reason: Exception
) -> tuple[tuple[Path, ...], str]:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, repo_type="dataset", revision=revision, local_files_only=True))
    except (OSError, ValueError):
        raise DataError(
            f"{place}: the hub cannot be reached and nothing was fetched before ({_first_line(reason)})"
        ) from None
    names = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
    return tuple(folder / name for name in _one_table(place, names, table)), folder.name


def _one_table(place: str, names: Sequence[str], table: str | None) -> list[str]:
    """The files of the table, with its shards in order.

    Raises:
        DataError: No table has that name, or several do.
    """
    tables: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith((".jsonl", ".parquet")):
            tables.setdefault(_SHARD.sub("", name), []).append(name)
    words = re.compile(rf"(?<![^\W_]){re.escape(table or _DEFAULT_TABLE)}(?![^\W_])", re.IGNORECASE)
    exact = [key for key in tables if table in (key, key.rpartition(".")[0])]
    found = exact or [key for key in tables if words.search(key)]
    if not found and table is None and len(tables) == 1:
        found = list(tables)
    if len(found) != 1:
        shown = ", ".join((found or list(tables))[:_MAX_LISTED]) or "no .jsonl and no .parquet"
        raise DataError(
            f"{place}: expected one table named {table or _DEFAULT_TABLE!r}, found {len(found)}; name one as "
            f"hf:org/name:table; there is {shown}"
        )
    return tables[found[0]]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
