"""The command line: parse, call one command, turn errors into one line and an exit status."""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from ramify import __version__
from ramify.core.errors import Interrupted, RamifyError, UserError
from ramify.net.secrets import redact

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
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A disk that is full or fails; what was written before stays."""

_NOT_ALLOWED = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
)
"""A read-only file system, a missing permission, a name too long, a folder for a file: for the user to mend."""


class _UsageError(UserError):
    """The command line itself is wrong; the message begins with the program's name."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what was wrong, where argparse prints its usage too."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{self.prog}: {message} (see {self.prog} --help)")


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = _Parser(prog="ramify", description="Branching reinforcement learning for LLM agents.")
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        below = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        # Only the command that is asked for is imported, and with it no heavy library: `--help` is quick.
        if name == command:
            _module(name).add_arguments(below)
    return parser


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"ramify.commands.{command.replace('-', '_')}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 failed, 2 the user's mistake, 128 + its number on a signal."""
    # Threads that spin while they wait make a step six times slower on cores that other programs use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    try:
        options = _parser(command).parse_args(given)
    except _UsageError as error:
        return _fail(2, str(error))
    name = f"ramify {options.command}"
    try:
        _module(options.command).run(options)
    except UserError as error:
        return _fail(2, f"{name}: {error}")
    except Interrupted as stopped:
        return _fail(128 + stopped.number, f"{name}: {stopped}")
    except KeyboardInterrupt:
        return _fail(130, f"{name}: interrupted")
    except RamifyError as error:
        return _fail(1, f"{name}: {error}")
    except OSError as error:
        if error.filename is None and error.errno not in _DISK:
            raise
        status = 2 if error.errno in _NOT_ALLOWED else 1
        return _fail(status, f"{name}: {error.strerror}: {error.filename or 'a file of the run'}")
    return 0


def _fail(status: int, message: str) -> int:
    print(redact(" ".join(message.split())), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
