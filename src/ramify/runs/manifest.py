"""A run's `manifest.json` and recipe: what it is made from and with, so that a resume can refuse to go on with something else.

    {"schema": 2, PART: {...}, "made_with": [{...}, ...], ...}

PART is "scores" for an evaluation and "made_from" for every other run; every resume compares it. `made_with` has an entry for
each session whose code, packages or device differ from those of the session before.
"""

import hashlib
import json
import platform
import subprocess
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ramify import __version__
from ramify.core.errors import ConfigError, DataError
from ramify.core.json_types import FieldError, Reader, count, each, part
from ramify.core.messages import Problem
from ramify.data.configs import DataFiles
from ramify.data.sources import data_files
from ramify.engines.configs import SERVER_KEYS
from ramify.files.durable import read_record, write_record
from ramify.modeling.model_config import whole_folder

MANIFEST = "manifest.json"
SCHEMA = 2
_MODEL_FILES = (
    "adapter_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_TRANSPORT = frozenset(
    {
        "url",
        "http",
        "slots",
        "key_variable",
        "in_flight",
        "cache",
        "failures_to_stop",
        "pause_seconds",
        *SERVER_KEYS,
    }
) - {"model"}
"""Keys of a service that say how to reach it; `model` says who answers there."""
_SERVICES = (("engine",), ("reward", "judge"), ("tools", "browser", "summary"), ("repair", "helper"))
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "tantivy", "math-verify", "sympy")
_WITH_VALUES = 8
"""Number of differences shown with both values; the folder of another run may have dozens."""


def made_with(device: str) -> dict[str, Any]:
    """Return the versions of the code, Python and packages, and `device`, the name of what computes; `commit` is None outside of git."""
    versions = {"ramify": __version__}
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
    """Write `manifest.json`; adds the schema number."""
    write_record(folder / MANIFEST, {"schema": SCHEMA, **manifest})


def read_manifest(folder: Path, **fields: Reader[Any]) -> dict[str, Any]:
    """Read `manifest.json`, which must have these fields besides its own.

    Raises:
        DataError: The file is missing, cannot be read, or has another schema; names the field.
    """
    return read_record(folder / MANIFEST, part(schema=_read_schema, made_with=_read_sessions, **fields))


def _read_schema(value: Any) -> int:  # noqa: ANN401 - any JSON value
    if count(value) != SCHEMA:
        raise FieldError.of(f"a manifest of schema {SCHEMA}", value)
    return SCHEMA


def _read_sessions(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    if not each(part())(value):
        raise FieldError.of("at least one session", value)
    return list(value)


def refuse_other(folder: Path, what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare what a folder was made from with what is to be added; `what` names the content, for the message.

    Prices, and how to reach the engine, the judge, the summary model and a helper, may differ: they cannot change an answer.

    Raises:
        ConfigError: They differ; names each key.
    """
    others = "; ".join(map(str, differences(_lasting(before), _lasting(now))))
    if others:
        raise ConfigError(
            f"run.dir: {folder} holds {what} with {others}. Choose a new run.dir or restore what it was made from."
        )


def _lasting(made_from: Mapping[str, Any]) -> dict[str, Any]:
    # In a deterministic run the slots decide which sequences share a step of the engine.
    keep = ("slots",) if made_from.get("deterministic") else ()
    lasting = {**made_from, "price": None}
    for path in _SERVICES:
        lasting = _without_transport(lasting, path, keep)
    return lasting


def _without_transport(table: Any, path: Sequence[str], keep: Collection[str]) -> Any:  # noqa: ANN401 - JSON
    """Return a table without the keys that say how to reach the service at a path in it, if there is one."""
    if not isinstance(table, Mapping):
        return table
    if not path:
        return {key: value for key, value in table.items() if key not in _TRANSPORT or key in keep}
    first, *below = path
    return {**table, first: _without_transport(table.get(first), below, keep)}


def note_session(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], note: Callable[[str], None]
) -> None:
    """If this session runs with something else than the last one, add it to the manifest and say so."""
    if before["made_with"][-1] != now:
        note("the code, a package or the device differs from the session before; see manifest.json")
        write_manifest(folder, {**before, "made_with": [*before["made_with"], now]})


@dataclass(frozen=True, slots=True)
class Difference:
    """A key at which two tables differ, with both values; None where a table has none."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        """For a message."""
        return f"{self.key} = {shown(self.before)}, now it is {shown(self.now)}"


def differences(before: Any, now: Any, key: str = "") -> Iterator[Difference]:  # noqa: ANN401 - JSON
    """Yield the keys at which two tables differ, in alphabetical order.

    `now` may hold tuples, which JSON turns into lists.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            inner = f"{key}.{name}" if key else name
            yield from differences(before.get(name), now.get(name), inner)
    elif before != json.loads(json.dumps(now)):
        yield Difference(key, before, now)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def data_sha256(data: DataFiles) -> str:
    """SHA-256 of data: that of the file, or of several files' in order.

    Raises:
        DataError: A file cannot be read, or is not there.
    """
    digests = [file_sha256(path) for path in data_files(data)]
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def problems_sha256(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of the problems' ids, messages and accepted answers, in order."""
    table = [
        [problem.id, [[message.role, message.text] for message in problem.messages], list(problem.answer)]
        for problem in problems
    ]
    return text_sha256(json.dumps(table, ensure_ascii=True))


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def model_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that describes a model and its tokenizer, by name, for the files that are there.

    Those of an adapter's base stand under "base/".

    Raises:
        DataError: One cannot be read, or there is no base.
    """
    whole = whole_folder(folder)
    folders = {"": folder} if whole == folder else {"": folder, "base/": whole}
    return {
        prefix + name: file_sha256(parent / name)
        for prefix, parent in folders.items()
        for name in _MODEL_FILES
        if (parent / name).exists()
    }


def shown(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a value for a message, cut to a line."""
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _commit() -> str | None:
    """Return the commit of the checkout that holds this code, with "-dirty" if its files differ from the commit."""
    here = Path(__file__).resolve().parents[1]
    # `status` would lock the checkout's index to refresh it, and leave the lock there if it takes too long and is killed.
    git = ["git", "--no-optional-locks", "-C", str(here)]
    try:
        head, changed = [
            subprocess.run(
                [*git, *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", str(here)),
            )
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-dirty" if changed else head


@dataclass(frozen=True, slots=True)
class RecipeRecord:
    """A checked recipe, as runs write it down.

    Attributes:
        text: The whole recipe as TOML that loads again.
        fingerprint: Of the keys that a run which goes on must not change.
        may_change: The other keys, as `section.name`.
    """

    text: str
    fingerprint: str
    may_change: frozenset[str]

    def changes(self, record: Path) -> tuple[Difference, ...]:
        """Return the keys in which this recipe differs from the one that a run was started with, `record`.

        Raises:
            ConfigError: A key differs that must not change, named with both values; or the run's recipe cannot be read.
        """
        differing = tuple(differences(_read(record), tomllib.loads(self.text)))
        if refused := [difference for difference in differing if difference.key not in self.may_change]:
            shown = "; ".join(map(str, refused[:_WITH_VALUES]))
            if others := [difference.key for difference in refused[_WITH_VALUES:]]:
                shown += f"; and so do {', '.join(others)}"
            raise ConfigError(
                f"run.dir: {record} differs from the recipe given: {shown}; put "
                f"{'it' if len(refused) == 1 else 'them'} back, or name a new folder (a run that goes on may change "
                f"{', '.join(sorted(self.may_change - {'run.dir'}))})"
            )
        return differing


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected a recipe file: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from None
