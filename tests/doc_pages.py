"""Files and commands of a documentation page, as they stand on it."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.cli import main
from ramify.commands.init import as_notebook

DOCS = Path(__file__).parents[1] / "docs"
_FILE = re.compile(r"`(\w+/[\w.]+)`[^`]*:\n\n```(?:python|toml)\n(.*?)```", re.DOTALL)
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def read_page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def replaced(text, changes):
    for before, after in changes:
        text = text.replace(before, after)
    return text


def write_files(page, folder, fewer, steps):
    """Write each file that the page shows below `folder`; `fewer` are changes by file name, `steps` those of all files."""
    names = []
    for name, text in _FILE.findall(page):
        path = folder / name
        changes = fewer.get(path.name, ())
        assert all(before in text for before, _ in changes)
        path.parent.mkdir(exist_ok=True)
        path.write_text(replaced(replaced(text, changes), steps), encoding="utf-8")
        names.append(name)
    return names


def follow(name, folder, quickstart, fewer, steps):
    """Do all that a page says in `folder`, where the run of a quick start is; returns the names of its files.

    Programs of the environment are those of this process.
    """
    (folder / "runs").mkdir()
    (folder / "runs" / "quickstart").symlink_to(quickstart)
    page = read_page(name)
    names = write_files(page, folder, fewer, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in read_commands(page):
            run_command(replaced(line, steps))
    return names


def read_commands(page):
    """Return the lines of all blocks for the shell."""
    return [line for block in _COMMANDS.findall(page) for line in block.splitlines()]


def run_command(line):
    program, *arguments = shlex.split(line)
    if program == "ramify":
        assert main(arguments) == 0, line
    elif program == "cd":
        os.chdir(arguments[0])
    elif program == "python":
        subprocess.run([sys.executable, *arguments], check=True, timeout=800)
    elif program == "sed":
        subprocess.run(line, shell=True, check=True, timeout=60)
    else:
        assert line == ". .venv/bin/activate" or program == "mkdir", line


def run_notebook(notebook):
    """Run the cells in turn; returns the values that they show, and the names at the end."""
    names, shown = {"__name__": "notebook"}, []
    for cell in notebook["cells"]:
        assert len(cell["source"].splitlines()) <= 20
        if cell["cell_type"] != "code":
            continue
        body = ast.parse(cell["source"]).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))  # noqa: S307 - a cell of ours
    return [value for value in shown if value is not None], names


def run_example(name):
    """Run a notebook of examples/notebooks in the current folder."""
    script = DOCS.parent / "examples" / "notebooks" / name
    return run_notebook(as_notebook(script.read_text(encoding="utf-8")))
