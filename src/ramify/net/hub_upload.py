"""Uploads to the Hugging Face hub, through its own library: no answer of the hub is written to this machine."""

from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import MachineError
from ramify.net.hub import HubSettings
from ramify.net.secrets import redact

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
