"""The command line: parse, call one command, turn errors into one line and an exit status.

Imports are inside the functions: signals are handled before anything that takes time is imported.
"""

import errno
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from ramify.core.errors import Interrupted, RamifyError, UserError
from ramify.stopping import Stops

COMMANDS = {
    "quickstart": "train a small agent from data to report: a tiny model, or a real language model",
    "sft": "supervised training on demonstrations",
    "dpo": "training on preference pairs",
    "train": "reinforcement learning with branching rollouts",
    "rollout": "grow trees with any engine and write their trace",
    "eval": "independent attempts at a set of problems, pass@k with intervals",
    "score": "score a file of responses, or check the scores against the references' vectors",
    "search-serve": "a retrieval service over a file of passages",
    "model": "fetch a model into a folder",
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 failed, 2 the user's mistake, 128 + its number on a signal."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    with Stops(f"ramify {command or ''}".strip(), owns_process=arguments is None) as stops:
        if arguments is None:
            sys.excepthook = _show_crash
        try:
            status, message = _run(given, command)
        except BaseException:
            if stops.number is None:
                raise
            status, message = 1, ""
        if status in (1, 2) and stops.number is not None:
            # Also where a library caught what the signal raised, and failed of it in a way of its own.
            status, message = 128 + stops.number, stops.line
        if message:
            _tell(message)
    return status


def _run(given: Sequence[str], command: str | None) -> tuple[int, str]:
    """The exit status, and what to say of it."""
    from ramify.commands.parser import UsageError, make_parser, module_of
    from ramify.sandbox.kernel import forbid_inspection

    # Threads that spin while they wait make a step six times slower on cores that other programs use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        options = make_parser(COMMANDS, command).parse_args(given)
    except UsageError as error:
        return 2, str(error)
    # What runs here holds keys and decides on rewards: no other program of the user reads or changes it.
    forbid_inspection()
    name = f"ramify {options.command}"
    try:
        module_of(options.command).run(options)
    except UserError as error:
        return 2, f"{name}: {error}"
    except Interrupted as stopped:
        return 128 + stopped.number, f"{name}: {stopped}"
    except RamifyError as error:
        return 1, f"{name}: {error}"
    except MemoryError:
        return 1, f"{name}: not enough memory"
    except OSError as error:
        if error.filename is None and error.errno not in _DISK:
            raise
        status = 2 if error.errno in _NOT_ALLOWED else 1
        return status, f"{name}: {error.strerror}: {error.filename or 'a file of the run'}"
    return 0, ""


def _tell(message: str) -> None:
    from ramify.net.secrets import shown

    print(shown(" ".join(message.split())), file=sys.stderr)


def _show_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback of a fault of ours; its message may quote anyone."""
    import traceback

    from ramify.net.secrets import shown

    sys.stderr.write(shown("".join(traceback.format_exception(kind, error, trace)), keep="\n"))


if __name__ == "__main__":
    sys.exit(main())
