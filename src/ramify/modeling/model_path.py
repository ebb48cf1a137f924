"""The folder that `model.path` stands for: itself, what a run of that folder made, or a model of the Hugging Face hub.

An id of the hub, `org/name` or `org/name@revision`, is fetched into the hub's own cache; `ramify.net.hub` says which settings of the environment act, and what is checked.
"""

import functools
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ramify.core.errors import DataError, MachineError
from ramify.core.json_text import MAX_ECHO, parse_json
from ramify.core.json_types import part, text
from ramify.files.untrusted import read_small_file
from ramify.net.hub_cache import HubRepo, cached_snapshot, forget, hub_cache

_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+?)(?:@(?P<revision>[\w.-]+))?", re.ASCII)
_TEXTS, _WEIGHTS = ("*.json", "*.jinja"), "*.safetensors"
"""What is read of a model: no pickles, no code, no weights in other formats."""
_OURS = frozenset({"models", "runs", "checkpoints"})
"""Folders that recipes name; a model that is missing there is not looked for on the hub."""


def is_hub_id(path: Path) -> bool:
    """Return True if `path` is no folder here and may name a model of the hub."""
    try:
        named = _ID.fullmatch(str(path)) is not None and path.parent.name not in _OURS
        return named and not path.exists() and not path.parent.exists()
    except OSError:  # a name that is too long, a loop of links
        return False


def fetch_model(path: Path, *, weights: bool = True, note: Callable[[str], None] = lambda _: None) -> None:
    """Bring a model of the hub into the cache, or see that it is there; a folder is left alone.

    Args:
        path: Of the recipe.
        weights: Not only the tokenizer and the configuration.
        note: Gets a line when a download begins, and now and then how far it is.

    Raises:
        DataError: The hub has no such model or does not give it.
        MachineError: The hub cannot be reached or is out of order, and the model was not fetched before.
    """
    # A program may train, and load what its run made since, or change its folder.
    local_folder.cache_clear()
    if not is_hub_id(path):
        return
    folder = _fetched(path, (*_TEXTS, _WEIGHTS) if weights else _TEXTS, weights=weights, note=note)
    local_folder.cache_clear()
    if weights:
        _check_heads(path, folder)


def is_fetched(path: Path, *, weights: bool = True) -> bool:
    """Return True if a model is here: a folder, or one of the hub that is in the cache.

    Args:
        path: Of the recipe.
        weights: Not only the tokenizer and the configuration.
    """
    try:
        folder = local_folder(path)
    except MachineError:
        return False
    return not (weights and is_hub_id(path)) or _has_weights(folder)


@functools.cache
def local_folder(path: Path) -> Path:
    """Return the folder of a model: `path` itself, or what a run of that folder made, or for an id of the hub the one in the cache.

    It asks no network, and gives the same answer until `fetch_model`, with which every use of a model begins.

    Raises:
        MachineError: The model is not in the cache.
    """
    if not is_hub_id(path):
        return model_of(path)
    folder = cached_snapshot(hub_cache(), _repo(path))
    if folder is None:
        raise MachineError(
            f"{path}: no such folder here, and no model of this name in the hub's cache. Correct the path, or fetch it with ramify model fetch."
        )
    return folder


def _repo(path: Path) -> HubRepo:
    match = _ID.fullmatch(str(path))
    assert match is not None
    return HubRepo("model", match["repo"], match["revision"])


def _has_weights(folder: Path) -> bool:
    return any(True for _ in folder.glob(_WEIGHTS))


def _fetched(path: Path, patterns: tuple[str, ...], *, weights: bool, note: Callable[[str], None]) -> Path:
    """Return the folder in the cache. A hub that gives nothing is no error if all was fetched before."""
    from ramify.net.hub import HubFailedError, HubProblem, fetch_snapshot

    def choose(names: Sequence[str]) -> list[str]:
        return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]

    try:
        return fetch_snapshot(_repo(path), choose, note=note).folder
    except HubFailedError as error:
        failure = error
    passes = (HubProblem.UNREACHABLE, HubProblem.STATUS, HubProblem.GATED, HubProblem.NO_REPO)
    here = cached_snapshot(hub_cache(), _repo(path)) if failure.problem in passes else None
    if here is not None and (_has_weights(here) or not weights):
        return here
    if failure.problem is HubProblem.UNREACHABLE:
        raise MachineError(
            f"{path}: no such folder here, and the hub cannot be reached to fetch a model of this name ({failure.detail}); "
            "connect, name a folder, or fetch it elsewhere and bring its folder (the hub's cache, HF_HOME, is used where "
            "it has it)"
        )
    if failure.problem is HubProblem.NO_REPO:
        raise DataError(
            f"{path}: no such folder here and no such model on the hub. Correct the name, or set HF_TOKEN for a private model."
        )
    raise failure.for_user(str(path), "model")


def _check_heads(path: Path, folder: Path) -> None:
    """Check that the weight files can be read. One that cannot is removed: the hub lists it as it is.

    Raises:
        DataError: One cannot.
    """
    from ramify.modeling.weight_files import read_head

    for file in sorted(folder.glob(_WEIGHTS)):
        try:
            read_head(file)
        except DataError as error:
            forget(file)
            reason = str(error).removeprefix(f"{file}: ").partition(";")[0]
            raise DataError(
                f"{path}: {file.name} {reason} and was removed from the hub's cache. Ask another mirror (HF_ENDPOINT)"
            ) from None


_READ_DONE = part(model=text)


def checkpoints(run_dir: Path) -> dict[int, Path]:
    """Return the checkpoint folders of a run by step, ascending."""
    return _numbered(run_dir / "checkpoints", "step")


def model_of(folder: Path) -> Path:
    """Return the last checkpoint of a run, or the model of a self-critic run's last cycle; any other folder itself.

    A run's folder has checkpoints/step-NNNNNN, a self-critic run's cycle-NN/done.json with the place of the cycle's model.

    Raises:
        DataError: The last done.json is damaged.
    """
    if (folder / "config.json").exists():
        return folder
    cycles = _numbered(folder, "cycle").values()
    done = [cycle / "done.json" for cycle in cycles if (cycle / "done.json").exists()]
    if done:
        return cycle_model(done[-1])
    return next(reversed(checkpoints(folder).values()), folder)


def cycle_model(done: Path) -> Path:
    """Return the model that the done.json of a self-critic cycle names: a folder within the cycle's own.

    Raises:
        DataError: The file is damaged, or names something else.
    """
    advice = "put the file back from a copy, or name the model's own folder as model.path"
    try:
        model: str = _READ_DONE(parse_json(read_small_file(done)))["model"]
        inside = (done.parent / model).resolve().is_relative_to(done.parent.resolve())
    except ValueError as error:
        raise DataError(f"{done}: {error}; {advice}") from None
    if not inside:
        raise DataError(
            f"{done}: model: expected a folder within {done.parent}, got {model[:MAX_ECHO]!r}; {advice}"
        )
    return done.parent / model


def _numbered(folder: Path, name: str) -> dict[int, Path]:
    """Return the entries NAME-NUMBER of a folder by number, ascending."""
    entries = [
        (int(match[1]), path)
        for path in folder.glob(f"{name}-*")
        if (match := re.fullmatch(rf"{name}-([0-9]{{1,15}})", path.name))
    ]
    return dict(sorted(entries))
