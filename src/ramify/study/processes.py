"""Trains the runs of an ablation in processes of their own, several at a time; what is interrupted goes on from its checkpoint."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import DataError, MachineError, RunInterruptedError, SignalInterrupt, TrainingError
from ramify.core.json_types import FieldError, number, part, text
from ramify.files.durable import append_line, is_locked, parse_line, read_text
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import MetricsLog
from ramify.runtime.bound_process import bound_command
from ramify.study.arms import PlannedRun

_POLL_SECONDS, _SHOW_SECONDS = 0.1, 5.0
_STOP_SECONDS = 120.0
"""Time in which a run saves its state when it is stopped."""
_MAX_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings that the processes share: the recipe, the folder for their output, the file that notes their starts, and how many run at once."""

    recipe: Path
    logs: Path
    starts: Path
    jobs: int


def train_runs(
    runs: Sequence[PlannedRun],
    done: Sequence[str],
    launch: Launch,
    console: RunConsole,
    record: Callable[[PlannedRun], None],
) -> None:
    """Train the runs, each after the one that it waits for.

    Args:
        runs: In the order in which they begin.
        done: Names of the runs that ended before.
        launch: How they are started.
        console: Shows the progress.
        record: Called with each run when it has ended.

    Raises:
        TrainingError: A run failed. The others were stopped, and their state saved.
        RunInterruptedError: Ctrl-C or SIGTERM; the state of the runs was saved.
    """
    waiting, ended = list(runs), set(done)
    working: dict[PlannedRun, subprocess.Popen[bytes]] = {}
    began: dict[str, int] = {}
    launch.logs.mkdir(exist_ok=True)
    with console.phase("runs", len(done) + len(runs), len(done)) as phase, _stopped_at_the_end(working):
        shown = 0.0
        while waiting or working:
            # A run of a killed command may still be saving its state.
            ready = [run for run in waiting if run.after in ended | {""} and not is_locked(run.folder)]
            for run in ready[: launch.jobs - len(working)]:
                waiting.remove(run)
                began[run.name] = _log_size(run, launch.logs)
                working[run] = _start(run, launch)
            for run in [run for run, process in working.items() if process.poll() is not None]:
                if status := working.pop(run).returncode:
                    raise TrainingError(_failure(run, status, launch.logs, began[run.name]))
                record(run)
                ended.add(run.name)
                phase.advance(1, waiting="")
            if time.monotonic() - shown > _SHOW_SECONDS:
                shown = time.monotonic()
                _show(phase, list(working), [run for run in waiting if is_locked(run.folder)])
            time.sleep(_POLL_SECONDS)


def read_starts(path: Path) -> Mapping[str, Sequence[float]]:
    """Return the times at which processes were started, by the name of the run; a line that was cut off, which seconds alone miss, is none."""
    starts: dict[str, list[float]] = {}
    for row, line in enumerate(read_text(path).split("\n") if path.exists() else [], start=1):
        with suppress(DataError, FieldError):
            fields = part(run=text, time=number)(parse_line(path, row, line))
            starts.setdefault(fields["run"], []).append(fields["time"])
    return starts


def _start(run: PlannedRun, launch: Launch) -> "subprocess.Popen[bytes]":
    words = [word for override in run.overrides for word in ("-s", override)]
    arguments = ["-P", "-m", "ramify", "train", str(launch.recipe), "--resume", "--quiet", *words]
    append_line(launch.starts, {"run": run.name, "time": time.time()}, synced=False)
    try:
        with _log(run, launch.logs).open("ab") as log:
            return subprocess.Popen(
                bound_command(Path(sys.executable), arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"OMP_NUM_THREADS": "1", **os.environ},
                # Ctrl-C reaches it from here alone: a second signal would end it before its state is saved.
                start_new_session=True,
            )
    except OSError as error:
        raise MachineError(f"a process for {run.name} cannot be started: {error.strerror}") from None


def _show(phase: Phase, runs: Sequence[PlannedRun], locked: Sequence[PlannedRun]) -> None:
    steps = [f"{run.name} at step {MetricsLog(run.folder / 'metrics.jsonl').last_step()}" for run in runs]
    steps += [f"{run.name}, which another process trains" for run in locked]
    phase.advance(0, waiting=", ".join(steps))


@contextmanager
def _stopped_at_the_end(working: Mapping[PlannedRun, "subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Stop the processes that still run when the block ends, each with its state saved."""
    try:
        yield
    except SignalInterrupt as stopped:
        _stop(working)
        raise RunInterruptedError(stopped.number, "the same command goes on from here") from None
    finally:
        _stop(working)


def _stop(working: Mapping[PlannedRun, "subprocess.Popen[bytes]"]) -> None:
    for process in working.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in working.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()


def _log(run: PlannedRun, logs: Path) -> Path:
    return logs / f"{run.name}.log"


def _log_size(run: PlannedRun, logs: Path) -> int:
    path = _log(run, logs)
    return path.stat().st_size if path.exists() else 0


def _failure(run: PlannedRun, status: int, logs: Path, began: int) -> str:
    """Return why a run failed: the last line that it wrote in this session, if it wrote one."""
    path = _log(run, logs)
    output = path.read_bytes()[began:].decode(errors="replace")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if status < 0:
        reason = f"it was ended by signal {-status}, which the system also sends where memory is short"
    else:
        reason = lines[-1][:_MAX_CHARACTERS] if lines else f"it ended with status {status}"
    return f"{run.name} failed: {reason} (its output is in {path})"
