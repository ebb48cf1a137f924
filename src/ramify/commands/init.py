"""`ramify init`: writes a small project that runs as it stands: a tool, a reward, problems, demonstrations and recipes."""

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from ramify.commands.parser import add_quiet, open_console

PROJECT = Path(__file__).parents[1] / "project"
"""The files of the project; docs/your-own-task.md explains them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("dir", type=Path, metavar="DIR", help="a new or empty folder")
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        ConfigError: The folder cannot be written, or is not empty.
    """
    from ramify.files.durable import make_folder, require_new_folder

    folder: Path = options.dir
    require_new_folder("DIR", folder)
    make_folder("DIR", folder)
    for path in sorted(PROJECT.iterdir()):
        if path.is_file():
            (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    console = open_console(options)
    steps = (folder / "README.md").read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    activate = Path(sys.prefix, "bin", "activate")
    if shutil.which("ramify") is None and activate.is_file():
        console.note(f"ramify is not on the PATH of this shell. First: . {shlex.quote(str(activate))}")
    console.note(f"{folder} holds a project. Next:")
    console.result(f"cd {shlex.quote(str(folder))}\n{steps.rstrip()}")
