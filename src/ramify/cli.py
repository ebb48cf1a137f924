"""The command line: parse, call one command, turn errors into one line and an exit status."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from ramify import __version__
from ramify.core.errors import Interrupted, RamifyError, UserError

_COMMANDS = {
    "quickstart": "build a small world, train an agent in it and write a report",
    "sft": "supervised training on demonstrations",
    "train": "reinforcement learning with branching rollouts",
    "rollout": "grow trees with any engine and write their trace",
    "eval": "independent attempts at a set of problems, pass@k with intervals",
    "doctor": "what this machine can do: versions, sandbox level, devices",
}


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ramify", description="Branching reinforcement learning for LLM agents."
    )
    parser.add_argument("--version", action="version", version=f"ramify {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        below = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        # Only the command that is asked for is imported, and with it no heavy library: `--help` is quick.
        if name == command:
            importlib.import_module(f"ramify.commands.{name}").add_arguments(below)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 failed, 2 the user's mistake, 130 interrupted."""
    # Threads that spin while they wait make a step six times slower on cores that other programs use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in given if word in _COMMANDS), None)
    options = _parser(command).parse_args(given)
    try:
        importlib.import_module(f"ramify.commands.{options.command}").run(options)
    except UserError as error:
        print(f"ramify {options.command}: {_one_line(error)}", file=sys.stderr)
        return 2
    except Interrupted as stopped:
        print(f"ramify {options.command}: {_one_line(stopped)}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print(f"ramify {options.command}: interrupted", file=sys.stderr)
        return 130
    except RamifyError as error:
        print(f"ramify {options.command}: {_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
