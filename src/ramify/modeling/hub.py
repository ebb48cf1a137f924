"""A model of the Hugging Face hub by its id, `org/name` or `org/name@revision`: fetched into the hub's own cache.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE act as they do in huggingface_hub.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import DataError, MachineError
from ramify.modeling.run_models import model_of

_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+?)(?:@(?P<revision>[\w.-]+))?", re.ASCII)
_TEXTS, _WEIGHTS = ("*.json", "*.jinja"), ("*.safetensors",)
"""What is read of a model: no pickles, no code, no weights in other formats."""
_OURS = frozenset({"models", "runs", "checkpoints"})
"""Folders that recipes name; a model that is missing there is not looked for on the hub."""


def is_hub_id(path: Path) -> bool:
    """Whether `path` is no folder here and may name a model of the hub."""
    try:
        named = _ID.fullmatch(str(path)) is not None and path.parent.name not in _OURS
        return named and not path.exists() and not path.parent.exists()
    except OSError:  # a name that is too long, a loop of links
        return False


def fetch_model(path: Path, *, weights: bool = True) -> None:
    """Bring a model of the hub into the cache, or see that it is there; a folder is left alone.

    Args:
        path: Of the recipe.
        weights: Not only the tokenizer and the configuration.

    Raises:
        DataError: The hub has no such model or does not give it.
        MachineError: The hub cannot be reached or is out of order, and the model was not fetched before.
    """
    if is_hub_id(path):
        _snapshot(str(path), (*_TEXTS, *_WEIGHTS) if weights else _TEXTS, offline=False)
        local_folder.cache_clear()


def is_fetched(path: Path, *, weights: bool = True) -> bool:
    """Whether a model is here: a folder, or one of the hub that is in the cache.

    Args:
        path: Of the recipe.
        weights: Not only the tokenizer and the configuration.
    """
    try:
        folder = local_folder(path)
    except MachineError:
        return False
    return not (weights and is_hub_id(path)) or any(True for _ in folder.glob(_WEIGHTS[0]))


@functools.cache
def local_folder(path: Path) -> Path:
    """The folder of a model: `path` itself, or what a run of that folder made, or for an id of the hub the one in the cache.

    It asks no network, and gives the same answer for the rest of the process.

    Raises:
        MachineError: The model is not in the cache.
    """
    return _snapshot(str(path), _TEXTS, offline=True) if is_hub_id(path) else model_of(path)


def _snapshot(name: str, patterns: Sequence[str], *, offline: bool) -> Path:
    from logging import CRITICAL

    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    found = _ID.fullmatch(name)
    assert found is not None
    # It would draw bars and tell of every retry; what went wrong in the end is told in one line below.
    disable_progress_bars()
    set_verbosity(CRITICAL)
    try:
        return Path(
            snapshot_download(
                found["repo"],
                revision=found["revision"],
                allow_patterns=list(patterns),
                local_files_only=offline,
            )
        )
    except GatedRepoError:
        raise DataError(f"{name}: gated; accept its terms on its page of the hub and set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise DataError(f"{name}: the model has no such revision on the hub") from None
    except RepositoryNotFoundError:
        raise DataError(
            f"{name}: no such folder here and no such model on the hub (or a private one that needs HF_TOKEN)"
        ) from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.TransportError, ConnectionError) as error:
        # The client calls every failure "no local entry"; what the hub answered is the cause of that.
        if isinstance(error.__cause__, HfHubHTTPError):
            status = error.__cause__.response.status_code
            raise MachineError(
                f"{name}: the hub answered with HTTP status {status}; try again later"
            ) from None
        raise MachineError(
            f"{name}: no such folder here, and the hub cannot be reached to fetch a model of this name; connect, name a "
            "folder, or fetch it elsewhere and bring its folder (the hub's cache, HF_HOME, is used where it has it)"
        ) from None
    # Whatever else a service answers.
    except Exception as error:  # noqa: BLE001
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(f"{name}: the hub did not give it: {reason}") from None
