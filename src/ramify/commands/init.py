"""`ramify init`: writes a small project that runs as it stands: a tool, a reward, problems, demonstrations and recipes."""

import argparse
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

from ramify.commands.parser import add_quiet, open_console

PROJECT = Path(__file__).parents[1] / "project"
"""The files of the project; docs/your-own-task.md explains them."""

_NOTEBOOK = "notebook.py"
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("dir", type=Path, metavar="DIR", help="a new or empty folder")
    parser.add_argument(
        "--notebook",
        action="store_true",
        help="add notebook.ipynb: the same way through `import ramify as rf`",
    )
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
        if path.is_file() and path.name != _NOTEBOOK:
            (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    if options.notebook:
        notebook = as_notebook((PROJECT / _NOTEBOOK).read_text(encoding="utf-8"))
        (folder / "notebook.ipynb").write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
    console = open_console(options)
    steps = (folder / "README.md").read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    activate = Path(sys.prefix, "bin", "activate")
    if shutil.which("ramify") is None and activate.is_file():
        console.note(f"ramify is not on the PATH of this shell. First: . {shlex.quote(str(activate))}")
    console.note(f"{folder} holds a project. Next:")
    console.result(f"cd {shlex.quote(str(folder))}\n{steps.rstrip()}")


def as_notebook(script: str) -> dict[str, object]:
    """Return a script in Jupytext's percent format as a Jupyter notebook."""
    cells: list[dict[str, object]] = []
    _, *parts = _CELL.split(script)
    for number, (mark, text) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        source, cell = text.strip("\n"), {"id": f"cell-{number}", "metadata": {}}
        if mark.strip() == "[markdown]":
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
            cells.append({**cell, "cell_type": "markdown", "source": source})
        else:
            cells.append(
                {**cell, "cell_type": "code", "source": source, "execution_count": None, "outputs": []}
            )
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
