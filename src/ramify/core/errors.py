"""The exceptions of ramify.

A new error is a subclass of `RamifyError`. An error that the user can fix is a subclass of `UserError`: its
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


class RowError(DataError):
    """A row of a data file cannot be used.

    Attributes:
        reason: Why, in words that are the same for all such rows, so that they can be counted.
        detail: What is particular to this row.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        """The message is both."""
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


class RowOmittedError(RowError):
    """A row is left out and counted, and ends no run; the reason is what such rows have."""


class RowTooLargeError(RowOmittedError):
    """A row is too large; the reason says than what."""


class MachineError(UserError):
    """This machine cannot run the request (sandbox level, missing library, memory)."""


class ServiceDownError(MachineError):
    """A service that tools need (search, pages, a summary model) is down, refuses the key, or has no budget left.

    It ends the run: going on would train on error messages.
    """


class ContentError(RamifyError):
    """The content of one problem cannot be used; its tree or its trajectory fails, and the run goes on."""


class EngineError(RamifyError):
    """An engine returned something that breaks its contract."""


class TrainingError(RamifyError):
    """Training cannot go on (non-finite loss, nothing to learn from)."""


class CaseError(RamifyError):
    """A recorded trajectory, played again, differs from what was recorded."""


class RunInterruptedError(RamifyError):
    """A signal asked the run to stop, and it stopped at a safe point; the exit status is 128 + the signal's number.

    Attributes:
        number: Number of the signal.
    """

    def __init__(self, number: int, after: str = "") -> None:
        """The message names the signal; `after` says in what state the run was left."""
        self.number = number
        super().__init__(f"{_stopped_by(number)}; {after}" if after else _stopped_by(number))


class SignalInterrupt(KeyboardInterrupt):
    """A signal ends the program wherever it is; catch it only to clean up.

    Attributes:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        """The message names the signal."""
        self.number = number
        super().__init__(_stopped_by(number))


def in_one_line(mistakes: Sequence[str]) -> str:
    """Join several mistakes as one numbered line; a single one stays as it is."""
    if len(mistakes) == 1:
        return mistakes[0]
    listed = " ".join(f"({number}) {mistake}" for number, mistake in enumerate(mistakes, 1))
    return f"{len(mistakes)} mistakes: {listed}"


def _stopped_by(number: int) -> str:
    return f"stopped by {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name}"
