"""`status.json` of a run: the number of its steps, and how its last session ended.

It decides nothing: a run goes on without it. A session that was killed leaves "running" behind, and no lock.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ramify.core.errors import DataError, RunInterruptedError, UserError
from ramify.core.json_types import count, one_of, optional, record, text
from ramify.files.durable import read_record, replace_file
from ramify.net.secrets import shown

STATUS = "status.json"
_SCHEMA = 1
_MAX_REASON = 300
SessionState = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of the last session, steps of the whole run (None: not known before its end), and why it ended early."""

    state: SessionState
    steps: int | None
    reason: str = ""
    schema: int = _SCHEMA


def begin_session(folder: Path, steps: int | None) -> None:
    """Note that a session works in the folder, which the caller has locked."""
    _write(folder, RunStatus("running", steps))


def end_session(folder: Path, error: BaseException | None) -> None:
    """Note how the session ended that began last, if one has begun: a start that was refused changes nothing."""
    try:
        status = read_status(folder)
    except DataError:
        return
    if status is None or status.state != "running":
        return
    state: SessionState = "finished" if error is None else "failed"
    if isinstance(error, RunInterruptedError | KeyboardInterrupt):
        state = "interrupted"
    reason = "" if error is None else " ".join(str(error).split()) or type(error).__name__
    if error is not None and not isinstance(error, UserError | RunInterruptedError | KeyboardInterrupt):
        reason = f"{type(error).__name__}: {reason}"
    # The disk may be full, which is why the run failed.
    with suppress(OSError):
        _write(folder, RunStatus(state, status.steps, shown(reason)[:_MAX_REASON]))


def read_status(folder: Path) -> RunStatus | None:
    """Return the status; None without the file.

    Raises:
        DataError: The file cannot be read.
    """
    path = folder / STATUS
    return read_record(path, _READ) if path.exists() else None


def _write(folder: Path, status: RunStatus) -> None:
    replace_file(folder / STATUS, (json.dumps(asdict(status)) + "\n").encode())


_READ = record(
    RunStatus,
    state=one_of(("running", "finished", "interrupted", "failed")),
    steps=optional(count),
    reason=text,
    schema=count,
)
