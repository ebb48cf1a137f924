"""The parser of the command line. Only the command that is asked for is imported, and with it no heavy library."""

import argparse
import importlib
from types import ModuleType
from typing import NoReturn

from ramify import __version__
from ramify.core.errors import UserError

COMMANDS = {
    "quickstart": "build a small world, train an agent in it and write a report",
    "sft": "supervised training on demonstrations",
    "dpo": "training on preference pairs",
    "train": "reinforcement learning with branching rollouts",
    "rollout": "grow trees with any engine and write their trace",
    "eval": "independent attempts at a set of problems, pass@k with intervals",
    "score": "score a file of responses, or check the scores against the references' vectors",
    "search-serve": "a retrieval service over a file of passages",
    "cache": "bring the references' search cache in and out, and show what a cache holds",
    "doctor": "what this machine can do: versions, sandbox level, devices",
}


class UsageError(UserError):
    """The command line itself is wrong; the message begins with the program's name."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what was wrong, where argparse prints its usage too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see {self.prog} --help)")


def make_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser, with the arguments of `command`."""
    parser = _Parser(prog="ramify", description="Branching reinforcement learning for LLM agents.")
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        below = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == command:
            module_of(name).add_arguments(below)
    return parser


def module_of(command: str) -> ModuleType:
    """The module that does what `command` says."""
    return importlib.import_module(f"ramify.commands.{command.replace('-', '_')}")
