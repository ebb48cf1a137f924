"""The record of a run's steps: its own files, which a resume reads, and the loggers that follow them."""

import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ramify.core.records import ScoredTree
from ramify.net.secrets import shown
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import write_indexed
from ramify.runs.configs import LogConfig, TrainingLogConfig
from ramify.runs.loggers import LOGGERS, LoggedRun, Logger, Opener, logged_trajectories
from ramify.runs.manifest import RecipeRecord
from ramify.runs.run_folder import RunFolder
from ramify.runs.state import Saver

_LONGEST_REASON = 200
"""Characters of a logger's error that are shown."""


class Loggers:
    """Hands the metrics of each step to loggers, which begin with the first step; the end of the `with` block closes them.

    A logger that raises is dropped with one line. None can change the run: the global generators of `random` and `numpy`
    are as before after each call.
    """

    def __init__(
        self,
        openers: Mapping[str, Opener],
        run: LoggedRun,
        note: Callable[[str], None],
        trees_every: int = 0,
    ) -> None:
        self._trees_every = trees_every
        self._openers, self._run, self._note = dict(openers), run, note
        self._open: dict[str, Logger] = {}
        self._notes: list[str] = []

    def step(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        trees: Mapping[str, Sequence[ScoredTree]] | None = None,
        *,
        first_again: int | None = None,
    ) -> None:
        """Log the metrics that have a value, and the trees if they are due.

        Args:
            step: Step of the run.
            metrics: The metrics.
            trees: Trees by the name under which they are logged.
            first_again: The first step that is logged anew if these are the first metrics of a session; None: `step`.
        """
        values = {name: value for name, value in metrics.items() if value is not None}
        first = step if first_again is None else first_again
        due = trees if trees and self._trees_every and step % self._trees_every == 0 else {}

        def log(name: str) -> None:
            if name not in self._open:
                self._open[name] = self._openers[name](self._run, first)
            # Within the guard: a tree that cannot be shown ends no run either.
            logged = {key: logged_trajectories(scored) for key, scored in due.items()}
            self._open[name].step(step, values, logged)

        self._each(log)

    def note(self, text: str) -> None:
        """Show a line about the whole run, which the loggers get too."""
        self._note(text)
        self._notes.append(shown(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self._each(lambda name: self._open[name].close("\n".join(self._notes), succeeded=kind is None))

    def _each(self, action: Callable[[str], None]) -> None:
        with _unchanged_generators():
            for name in tuple(self._openers):
                try:
                    action(name)
                except Exception as error:  # noqa: BLE001 - of a package that is not ours
                    del self._openers[name]
                    reason = " ".join(str(error).split())[:_LONGEST_REASON]
                    self._note(
                        f"log.to: {name} failed and is left out from now on: {type(error).__name__}: {reason}"
                    )


class Recorder:
    """Records each step of a run: traces and `metrics.jsonl`, from which a run goes on, and then the loggers.

    Args:
        folder: Folder of the run.
        settle: Waits for the last checkpoint (`Saver.settle`).
        loggers: Follow the run.
    """

    def __init__(self, folder: RunFolder, settle: Callable[[], None], loggers: Loggers) -> None:
        self.folder, self._settle, self.loggers = folder, settle, loggers

    def step(
        self, step: int, metrics: Mapping[str, float | None], trees: Sequence[TracedTree] | None = None
    ) -> None:
        """Write the trees and the line of a step, then log it.

        Raises:
            TrainingError: The disk cannot be written.
        """
        if trees is not None:
            write_indexed(self.folder.trees(step), trees)
        # No run is to be more than one checkpoint ahead of what can be resumed.
        self._settle()
        self.folder.metrics.append(step, metrics)
        self.loggers.step(step, metrics, None if trees is None else {"trees": trees})


def open_recorder(
    saver: Saver, recipe: RecipeRecord, config: TrainingLogConfig, note: Callable[[str], None]
) -> Recorder:
    """Return the recorder of a run; loggers know it by the name that it drew when it began."""
    name, every = saver.identity.name, config.trees_every
    loggers = open_loggers(saver.folder.root, name, recipe, config, note, every)
    return Recorder(saver.folder, saver.settle, loggers)


def open_loggers(
    folder: Path,
    name: str,
    recipe: RecipeRecord,
    config: LogConfig,
    note: Callable[[str], None],
    trees_every: int = 0,
) -> Loggers:
    """Return the loggers of the run called `name`; they get its recipe without keys."""
    run = LoggedRun(folder, name, _redacted(tomllib.loads(recipe.text)))
    return Loggers({logger: LOGGERS[logger] for logger in config.to}, run, note, trees_every)


def _redacted(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    if isinstance(value, dict):
        return {key: _redacted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redacted(inner) for inner in value]
    return shown(value, keep="\n") if isinstance(value, str) else value


@contextmanager
def _unchanged_generators() -> Iterator[None]:
    """Put the global generators back as they were: trackio and MLflow draw from `random`."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one is meant
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
