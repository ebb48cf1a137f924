"""`manifest.json` of a run: what it is made from and with, so that a resume can refuse to go on with something else.

    {"schema": 2, PART: {...}, "made_with": [{...}, ...], ...}

PART is "scores" of an evaluation and "made_from" of training; every resume compares it. `made_with` has an entry for each
session that ran other code, other packages or another device than the one before.
"""

import hashlib
import json
import platform
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError, DataError
from ramify.obs.files import read_object, replace_file

MANIFEST = "manifest.json"
SCHEMA = 2
_PACKAGES = ("ramify", "torch", "transformers", "tokenizers", "numpy", "tantivy", "math-verify", "sympy")


def made_with(device: str) -> dict[str, Any]:
    """Versions of the code and of what it runs on; `commit` is None outside of a git checkout, `device` the name of what computes."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": versions,
        "device": device,
    }


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write `manifest.json`, its schema included."""
    replace_file(folder / MANIFEST, (json.dumps({"schema": SCHEMA, **manifest}, indent=2) + "\n").encode())


def read_manifest(folder: Path, part: str) -> dict[str, Any]:
    """Read `manifest.json`, which has to have `part`.

    Raises:
        DataError: It is missing, cannot be read, or is of another schema.
    """
    record = read_object(folder / MANIFEST)
    sessions = record.get("made_with")
    is_one = isinstance(sessions, list) and sessions and all(isinstance(each, dict) for each in sessions)
    if record.get("schema") != SCHEMA or not isinstance(record.get(part), dict) or not is_one:
        raise DataError(
            f"{folder / MANIFEST}: expected a manifest of schema {SCHEMA} with {part!r} and 'made_with'"
        )
    return record


def refuse_other(folder: Path, what: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare what is in a folder with what is to go on there; `what` says what it is, for the message.

    Raises:
        ConfigError: They differ; names the first key.
    """
    difference = first_difference(found, wanted)
    if difference is not None:
        key, before, now = difference
        raise ConfigError(
            f"run.dir: {folder} holds {what} with {key} = {shown(before)}, now it is {shown(now)}; name a new "
            "folder, or go on with what it was"
        )


def note_session(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], note: Callable[[str], None]
) -> None:
    """Add what this session runs with to the manifest, and say so, where it is not what the last one ran with."""
    if before["made_with"][-1] != now:
        note("the code, a package or the device is not that of what is done so far; see manifest.json")
        write_manifest(folder, {**before, "made_with": [*before["made_with"], now]})


def first_difference(before: Any, now: Any, key: str = "") -> tuple[str, Any, Any] | None:  # noqa: ANN401 - JSON
    """The first key, in alphabetical order, at which two tables differ, with both values; None where they are equal.

    `now` may hold tuples, which JSON turns into lists.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            place = f"{key}.{name}" if key else name
            found = first_difference(before.get(name), now.get(name), place)
            if found is not None:
                return found
        return None
    return None if before == json.loads(json.dumps(now)) else (key, before, now)


def file_sha256(path: Path) -> str:
    """Of all bytes of a file.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def shown(value: Any) -> str:  # noqa: ANN401 - JSON
    """A value for a message, cut to a line."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _commit() -> str | None:
    """Of the checkout that this code lies in; "-dirty" when its files differ from the commit."""
    here = Path(__file__).resolve().parents[1]
    try:
        asked = [
            subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", str(here)),
            )
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    head, changed = asked
    return f"{head}-dirty" if changed else head
