"""The exceptions of ramify.

A new error is a subclass of `RamifyError`; one that a user can mend is a subclass of `UserError`, whose
message is one line that names the place (file, key or row) and says what was expected.
"""

import signal
from collections.abc import Sequence


class RamifyError(Exception):
    """Root of every error that ramify raises on purpose."""


class UserError(RamifyError):
    """The user's input or environment must change; the command line prints the message and exits with 2."""


class ConfigError(UserError):
    """A recipe or an override is wrong."""


class DataError(UserError):
    """A data file, a model folder or a checkpoint is wrong."""


class MachineError(UserError):
    """This machine cannot do what was asked (sandbox level, missing library, memory)."""


class ServiceDownError(MachineError):
    """A service that tools need (search, pages, a summary model) is down, refuses the key, or its budget is spent.

    It ends the run: going on would train on error messages.
    """


class EngineError(RamifyError):
    """An engine answered with something that breaks its contract."""


class TrainingError(RamifyError):
    """Training cannot go on (non-finite loss, nothing to learn from)."""


class Interrupted(RamifyError):
    """A signal asked to stop, and the run stopped at a safe point; the command line exits with 128 + its number.

    Attributes:
        number: Of the signal.
    """

    def __init__(self, number: int, after: str = "") -> None:
        """The message names the signal and says what is so `after` it."""
        self.number = number
        super().__init__(f"{_stopped_by(number)}; {after}" if after else _stopped_by(number))


class Stopped(KeyboardInterrupt):
    """A signal ends the program wherever it is; nobody catches it but to clean up.

    Attributes:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        """The message names the signal."""
        self.number = number
        super().__init__(_stopped_by(number))


def in_one_line(mistakes: Sequence[str]) -> str:
    """Several mistakes as one line, numbered; a single one stands as it is."""
    if len(mistakes) == 1:
        return mistakes[0]
    listed = " ".join(f"({number}) {mistake}" for number, mistake in enumerate(mistakes, 1))
    return f"{len(mistakes)} mistakes: {listed}"


def _stopped_by(number: int) -> str:
    return f"stopped by {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name}"
