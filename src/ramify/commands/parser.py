"""The parser of the command line, and arguments that several commands share.

It imports only the module of the given command, and no heavy library.
"""

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from ramify import __version__
from ramify.config import shipped_recipes
from ramify.core.errors import UserError

if TYPE_CHECKING:
    from ramify.obs.console import RunConsole

TRAINING = ("sft", "dpo", "train", "selfcritic")
"""The commands that train a model, on several ranks if they are asked to."""

_GIVEN = re.compile(r"argument COMMAND: invalid choice: '([^']*)'|unrecognized arguments: (\S+)")
"""argparse's messages about an unknown word."""


class UsageError(UserError):
    """The command line itself is wrong; the message begins with the program's name."""


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, without argparse's usage text."""

    words: tuple[str, ...] = ()
    """All commands, and the options of the given one."""

    def error(self, message: str) -> NoReturn:
        match = _GIVEN.match(message)
        word = (match[1] or match[2]).partition("=")[0] if match else ""
        near = difflib.get_close_matches(word, self.words, n=1)
        meant = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"{self.prog}: {message}{meant} (see {self.prog} --help)")


def make_parser(commands: Mapping[str, str], command: str | None) -> argparse.ArgumentParser:
    """Build the parser of `commands` (help texts by name); only `command` gets its arguments."""
    parser = _Parser(prog="ramify", description="Branching reinforcement learning for LLM agents.")
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.words = tuple(commands)
    parser.set_defaults(commands=commands)
    for name, text in commands.items():
        below = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == command:
            module_of(name).add_arguments(below)
            options = [word for action in below._actions for word in action.option_strings]
            parser.words += tuple(options)
    return parser


def module_of(command: str) -> ModuleType:
    """Return the module of a command; one module has the two that learn from examples."""
    name = "examples" if command in ("sft", "dpo") else command.replace("-", "_")
    return importlib.import_module(f"ramify.commands.{name}")


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add RECIPE, -s, --dry-run and --rows."""
    parser.add_argument(
        "recipe",
        type=recipe_file,
        metavar="RECIPE.toml",
        help="what to run: a file, the name of a shipped recipe such as arpo_reasoning_7b, or my_run.py:trainer",
    )
    add_override(parser)
    add_dry_run(parser)


def add_dry_run(
    parser: argparse.ArgumentParser,
    about: str = "check the recipe; print it with all defaults, and what it needs of this machine",
) -> None:
    """Add --dry-run, which does what `about` says, and --rows."""
    parser.add_argument("--dry-run", action="store_true", help=about)
    parser.add_argument(
        "--rows",
        action="store_true",
        help="with --dry-run: read the data and all other files too, and refuse what the run would refuse",
    )


def add_override(parser: argparse.ArgumentParser) -> None:
    """Add -s."""
    parser.add_argument(
        "-s",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.NAME=VALUE",
        help="set one key of the recipe; may be repeated",
    )


def add_step(parser: argparse.ArgumentParser) -> None:
    """Add --step."""
    parser.add_argument(
        "--step",
        type=at_least_one,
        metavar="K",
        help="of a run folder: the trees of this step (the last one)",
    )


def add_tree(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --tree."""
    parser.add_argument(
        "--tree", type=_at_least_zero, metavar="N", help=f"{text}: its place in the step's file, from 0"
    )


def recipe_file(text: str) -> Path:
    """Return the recipe file `text`; if there is none, the shipped recipe of that name (`recipes/`, `.toml` are optional)."""
    path = Path(text)
    shipped = shipped_recipes() / f"{path.name.removesuffix('.toml')}.toml"
    is_name = path.parent in (Path(), Path("recipes"))
    return shipped if is_name and not path.exists() and shipped.is_file() else path


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add --json and --quiet, which `open_console` reads."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="progress goes to standard error; the last thing on standard output is one JSON object",
    )
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add --quiet, which `open_console` reads."""
    parser.add_argument("--quiet", action="store_true", help="no progress: results, warnings and errors only")


def open_console(options: argparse.Namespace) -> "RunConsole":
    """Return the console that --json and --quiet ask for, of a command that has them or not."""
    from ramify.obs.console import RunConsole

    return RunConsole(quiet=getattr(options, "quiet", False), as_json=getattr(options, "json", False))


def notes_of(options: argparse.Namespace) -> Callable[[str], None]:
    """Return what shows a line on the console of `options`, which is opened for it."""
    return lambda text: open_console(options).note(text)


def write_as_it_is(text: str) -> None:
    """Write a text to standard output without escapes; a reader that is gone (`| head`) ends nothing."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def at_least_one(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    return _whole_number(text, 1)


def _at_least_zero(text: str) -> int:
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text[:40]!r}")
    return int(text)
