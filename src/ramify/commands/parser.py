"""The parser of the command line. It imports only the module of the given command, and no heavy library."""

import argparse
import difflib
import importlib
import re
from collections.abc import Mapping
from types import ModuleType
from typing import NoReturn

from ramify import __version__
from ramify.core.errors import UserError

_GIVEN = re.compile(r"argument COMMAND: invalid choice: '([^']*)'|unrecognized arguments: (\S+)")
"""argparse's messages about an unknown word."""


class UsageError(UserError):
    """The command line itself is wrong; the message begins with the program's name."""


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, without argparse's usage text."""

    words: tuple[str, ...] = ()
    """All commands, and the options of the given one."""

    def error(self, message: str) -> NoReturn:
        given = _GIVEN.match(message)
        word = (given[1] or given[2]).partition("=")[0] if given else ""
        near = difflib.get_close_matches(word, self.words, n=1)
        meant = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"{self.prog}: {message}{meant} (see {self.prog} --help)")


def make_parser(commands: Mapping[str, str], command: str | None) -> argparse.ArgumentParser:
    """The parser of `commands` (help texts by name); only `command` gets its arguments."""
    parser = _Parser(prog="ramify", description="Branching reinforcement learning for LLM agents.")
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.words = tuple(commands)
    for name, text in commands.items():
        below = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == command:
            module_of(name).add_arguments(below)
            options = [word for action in below._actions for word in action.option_strings]
            parser.words += tuple(options)
    return parser


def module_of(command: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"ramify.commands.{command.replace('-', '_')}")
