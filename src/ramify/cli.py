"""The command line: parse, call one command, turn errors into one line and an exit status.

Imports are inside the functions: signals are handled before anything that takes time is imported.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from ramify.core.errors import RamifyError, RunInterruptedError, UserError
from ramify.runtime.stopping import Stops

COMMANDS = {
    "quickstart": "train a small agent from data to report: a tiny model, or a real language model",
    "init": "a small project that runs as it stands: tool, reward, data and recipes, to be changed",
    "sft": "supervised training on demonstrations",
    "dpo": "training on preference pairs",
    "train": "reinforcement learning with branching rollouts",
    "ablate": "does branching help on a task: flat, matched and the recipe's rule at equal sampled tokens, over paired seeds",
    "selfcritic": "reinforcement learning and DPO on the policy's own answers, in turn (Tool-Star)",
    "rollout": "grow trees with any engine and write their trace",
    "synth": "data for supervised training and RL from questions, as Tool-Star makes it",
    "pairs": "preference pairs for DPO from the trees that runs recorded",
    "eval": "independent attempts at a set of problems, pass@k with intervals",
    "judge": "a model's verdicts on the answers of a finished evaluation, or of a file of results",
    "score": "score a file of responses, or check the scores against test vectors",
    "view": "look at what agents did: the trees of a run in a browser, or as one file",
    "runs": "the runs in a folder, and what differs between two of them",
    "credit": "each token's credit in a run's trees, under the run's algorithm or any other",
    "audit": "decisions of recorded runs resampled on both sides: their effects, and estimators' credit against them",
    "case": "a recorded trajectory as a test of the tools and the reward",
    "report": "one page about any run, with its figures",
    "card": "what a run was made from and what it scored, as JSON to send to others",
    "search-serve": "a retrieval service over a file of passages",
    "model": "fetch a model into a folder, push a folder to the hub",
    "merge": "convert checkpoints to plain model folders: verl's FSDP shards, LoRA adapters",
    "cache": "import and export search caches of the papers' code, and show what a cache holds",
    "recipes": "the shipped recipes: paper, hardware, model, data",
    "completion": "completion of commands, options and recipes, for bash, zsh or fish",
    "doctor": "what this machine can do: versions, sandbox level, devices",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that is full or fails; files written before stay."""

_NOT_ALLOWED = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
)
"""Errors that the user can fix: read-only file system, missing permission, name too long, folder instead of a file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 if done, 1 if failed, 2 for a user's mistake, 128 + number after a signal."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in words if not word.startswith("-")), None)
    with Stops(f"ramify {command or ''}".strip(), owns_process=arguments is None) as stops:
        if arguments is None:
            sys.excepthook = _show_crash
            if isinstance(sys.stdout, io.TextIOWrapper):
                # As on standard error, also for what is written without a console.
                sys.stdout.reconfigure(errors="backslashreplace")
        try:
            status, message = _run(words, command)
        except BaseException:
            if stops.number is None:
                raise
            status, message = 1, ""
        if status in (1, 2) and stops.number is not None:
            # A library may have caught the signal's exception and failed with one of its own.
            status, message = 128 + stops.number, stops.line
        if message and not _is_other_rank(command):
            from ramify.net.secrets import shown

            print(shown(" ".join(message.split())), file=sys.stderr)
    return status


def _run(words: Sequence[str], command: str | None) -> tuple[int, str]:
    """Return the exit status and the message for the user, which may be empty."""
    from ramify.commands.parser import UsageError, make_parser, module_of
    from ramify.core.rank import SECRET_VARIABLE
    from ramify.net.secrets import take_secret
    from ramify.sandbox.kernel import forbid_inspection

    # Waiting threads that spin make a step six times slower on cores shared with other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        options = make_parser(COMMANDS, command).parse_args(words)
    except UsageError as error:
        return 2, str(error)
    # This process holds keys and computes rewards, so no other program of the user may read or change its memory.
    forbid_inspection()
    options.secret = take_secret(SECRET_VARIABLE)
    name = f"ramify {options.command}"
    try:
        module_of(options.command).run(options)
    except UserError as error:
        return 2, f"{name}: {error}"
    except RunInterruptedError as stopped:
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


def _is_other_rank(command: str | None) -> bool:
    """Return True on a rank other than 0 of a training run: rank 0 reports what is wrong."""
    from ramify.commands.parser import TRAINING
    from ramify.core.rank import launched

    try:
        return command in TRAINING and launched(os.environ).number > 0
    except UserError:
        return False


def _show_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug, with keys and control characters removed: its message may quote foreign text."""
    import traceback

    from ramify.net.secrets import shown

    sys.stderr.write(shown("".join(traceback.format_exception(kind, error, trace)), keep="\n"))


if __name__ == "__main__":
    sys.exit(main())
