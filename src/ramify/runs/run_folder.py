"""Folders of runs: who may use one, and what a training run holds: recipe, manifest, metrics, traces, timings and checkpoints.

RUN/manifest.json  recipe.toml  metrics.jsonl  trees/STEP.jsonl  timing/STEP.jsonl  checkpoints/step-STEP/
    evals.jsonl  evals/STEP.jsonl  tokenizer/

Beside each trace lies its index, STEP.index.jsonl.

A run has begun once it has a step or a checkpoint. Until then its folder is free for the next start, with any recipe: a
claim marks it as the run's own while it is still empty, in its lock. Whatever a start that failed or was killed leaves
there (logs of servers, caches, a recipe without a manifest) then never blocks the next one, and a folder with files of
somebody else is refused.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError, DataError
from ramify.core.json_types import part, text
from ramify.files.durable import (
    LOCK,
    RECIPE,
    entries,
    locked_folder,
    make_folder,
    naming,
    read_record,
    replace_file,
    require_plain_files,
)
from ramify.obs.metrics import MetricsLog
from ramify.runs.manifest import (
    MANIFEST,
    RecipeRecord,
    note_session,
    read_manifest,
    refuse_other,
    shown,
    write_manifest,
)
from ramify.runs.status import STATUS, end_session

SCORE = "eval/pass@1"
"""The metric of evaluations during training that ranks checkpoints: the share of attempts that are right."""

_MOST_MARK = 64
"""Bytes of a lock that are read."""


@dataclass(frozen=True, slots=True)
class RunKind:
    """A kind of run folder, and what belongs to it besides its recipe and its manifest; a `*` stands for any characters.

    Attributes:
        name: Word in the mark; a folder that another kind of run has marked is not free.
        what: Its content, for messages.
        results: Files and folders that are results. From a folder with a result only a resumed run may go on.
        lines: Files whose first line is a result.
        files: Its other files.
        folders: Its folders.
        can_resume: The command has --resume.
    """

    name: str
    what: str
    results: tuple[str, ...]
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    can_resume: bool = True

    def has_begun(self, path: Path) -> bool:
        """Return True if the folder holds a result."""
        lines = (file for pattern in self.lines for file in path.glob(pattern))
        return any(file.is_file() and file.stat().st_size > 0 for file in lines) or any(
            any(path.glob(pattern)) for pattern in self.results
        )

    def check(self, path: Path, resume: bool, recipe: RecipeRecord | None = None) -> None:
        """Check that a run may use the folder `run.dir`; writes nothing.

        Raises:
            ConfigError: It holds results and `resume` is false, it holds something else, it holds links, the recipe or the manifest
                of a run that has begun is missing, or its recipe differs from `recipe` in a key that must not change.
        """
        if not path.exists():
            return
        if not path.is_dir():
            raise ConfigError(f"run.dir: {path} is a file; expected a new or empty folder")
        begun = self.has_begun(path)
        if begun and not (path / RECIPE).exists():
            raise ConfigError(
                f"run.dir: {path} holds {self.what} without its {RECIPE}; put that file back, or name a new folder"
            )
        if begun and not resume:
            advice = "go on with --resume or name a new folder" if self.can_resume else "name a new folder"
            raise ConfigError(f"run.dir: {path} holds {self.what}; {advice}")
        if not begun and entries(path) and _read_mark(path) != self._mark:
            raise ConfigError(f"run.dir: {path} exists and is not empty; expected a new or empty folder")
        require_plain_files("run.dir", path)
        files = (RECIPE, MANIFEST, STATUS, *self.lines, *self.results, *self.files)
        for names, is_right, kind in ((self.folders, Path.is_dir, "folder"), (files, Path.is_file, "file")):
            for file in (path / name for name in names if "/" not in name):
                if file.exists() and not is_right(file):
                    raise ConfigError(f"run.dir: {file} is no {kind}; put it back from a copy, or remove it")
        if begun:
            self._check_origin(path, recipe)

    def _check_origin(self, path: Path, recipe: RecipeRecord | None) -> None:
        if self.can_resume and not (path / MANIFEST).exists():
            raise ConfigError(
                f"run.dir: {path} holds {self.what} without its {MANIFEST}: what it was made from is unknown. Put that file back, "
                "or name a new folder"
            )
        if recipe is not None:
            recipe.changes(path / RECIPE)

    @contextmanager
    def claim(self, path: Path, resume: bool, recipe: RecipeRecord | None = None) -> Iterator[None]:
        """Make the folder `run.dir`, mark it, and hold it for this process alone while the block runs.

        It is checked before anything is written, and again once it is held, since another process may have used it in between.
        A run that has left nothing but its recipe removes that too.

        Raises:
            ConfigError: As for `check`; the folder cannot be made or written, or another process holds it.
        """
        self.check(path, resume, recipe)
        is_new = not path.exists()
        make_folder("run.dir", path)
        with locked_folder("run.dir", path):
            self.check(path, resume, recipe)
            try:
                if not self.has_begun(path):
                    _write_mark(path, self._mark)
                yield
            except BaseException as error:
                end_session(path, error)
                raise
            else:
                end_session(path, None)
            finally:
                if not self.has_begun(path):
                    _clean_up(path, is_new)

    @property
    def _mark(self) -> bytes:
        return f"ramify {self.name}\n".encode()


def _read_mark(path: Path) -> bytes:
    # A lock that is a link, a pipe or a folder is none of ours.
    with suppress(OSError):
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(lock, _MOST_MARK)
        finally:
            os.close(lock)
    return b""


def _write_mark(path: Path, mark: bytes) -> None:
    lock_path = path / LOCK
    with naming(lock_path):
        lock = os.open(lock_path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(lock, mark, 0)
            os.ftruncate(lock, len(mark))
            # Before anything else is in the folder: after a power cut it must still be known as ours.
            os.fsync(lock)
        finally:
            os.close(lock)


def _clean_up(path: Path, is_new: bool) -> None:
    """Remove a recipe that nothing was made with; other things stay for the user to read, and so does the mark."""
    (path / STATUS).unlink(missing_ok=True)
    if entries(path) - {RECIPE, MANIFEST, "tokenizer"}:
        return
    shutil.rmtree(path / "tokenizer", ignore_errors=True)
    for name in (RECIPE, MANIFEST, LOCK):
        (path / name).unlink(missing_ok=True)
    if is_new:
        # Not if an unfinished file is left there, or another process has come meanwhile.
        with suppress(OSError):
            path.rmdir()


_STEPS = ("checkpoints/step-*", f"trees/{'[0-9]' * 6}*.jsonl")
TRAINING = RunKind(
    name="run",
    what="a run",
    lines=("metrics.jsonl", "cycle-*/rl/metrics.jsonl"),
    results=(*_STEPS, *(f"cycle-*/rl/{steps}" for steps in _STEPS), "cycle-*/done.json"),
    files=("evals.jsonl", "report.html"),
    folders=("checkpoints", "trees", "timing", "evals", "preflight", "tokenizer", "figures"),
)
ROLLOUT = RunKind(
    name="rollout",
    what="trees",
    results=("trees/000001.jsonl",),
    files=("report.html",),
    folders=("trees", "timing", "tokenizer", "figures"),
    can_resume=False,
)
EVALUATION = RunKind(
    name="evaluation",
    what="an evaluation",
    lines=("results.jsonl",),
    results=("summary.json",),
    files=("times.jsonl", "trees.jsonl", "trees.index.jsonl", "times.json", "report.html"),
    folders=("tokenizer", "figures"),
)
SYNTHESIS = RunKind(
    name="synthesis",
    what="a synthesis",
    lines=("trees/direct.jsonl", "trees/tools.jsonl", "trees/hints.jsonl"),
    results=("questions.jsonl", "sft.jsonl", "rl.jsonl", "rejected.jsonl", "summary.json"),
    files=("report.html",),
    folders=("trees", "tokenizer", "figures"),
)

RUN_KINDS = (TRAINING, ROLLOUT, EVALUATION, SYNTHESIS)


def marked_kind(path: Path) -> RunKind | None:
    """Return the kind of run that has marked a folder as its own."""
    mark = _read_mark(path)
    return next((kind for kind in RUN_KINDS if kind._mark == mark), None)


_OF_A_STEP = re.compile(r"([0-9]{6,15})(?:\.index)?\.jsonl(?:\.part)?")


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The run that a checkpoint belongs to.

    Attributes:
        name: Random name, drawn when the run began.
        recipe: Fingerprint of those keys of the run's recipe that must not change.
    """

    name: str
    recipe: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside a run's folder; `resume`: the user asked to continue the run."""

    root: Path
    resume: bool = False

    def trees(self, step: int) -> Path:
        """Return the path of a step's trace."""
        return self.root / "trees" / f"{step:06d}.jsonl"

    def timing(self, step: int) -> Path:
        """Return the path of a step's wall-clock times."""
        return self.root / "timing" / f"{step:06d}.jsonl"

    def evaluation(self, step: int) -> Path:
        """Return the path of the trace of the evaluation after a step."""
        return self.root / "evals" / f"{step:06d}.jsonl"

    @property
    def evaluations(self) -> MetricsLog:
        """The metrics of the run's evaluations."""
        return MetricsLog(self.root / "evals.jsonl")

    @property
    def preflight(self) -> Path:
        """The results of the preflight."""
        return self.root / "preflight"

    @property
    def metrics(self) -> MetricsLog:
        """The run's metrics."""
        return MetricsLog(self.root / "metrics.jsonl")

    def rewind(self, step: int) -> None:
        """Delete what later steps wrote: they are repeated, or not done at all.

        Raises:
            DataError: A line of the metrics cannot be read.
        """
        self.metrics.truncate_after(step)
        self.evaluations.truncate_after(step)
        for name in ("trees", "timing", "evals"):
            for path in (self.root / name).glob("*"):
                name_of_step = _OF_A_STEP.fullmatch(path.name)
                if name_of_step and int(name_of_step[1]) > step:
                    path.unlink()

    def check_manifest(
        self, recipe: RecipeRecord, manifest: Mapping[str, Any], note: Callable[[str], None]
    ) -> None:
        """Check that a run that is resumed is made from the same data, weights, tools and rewards; a new run passes.

        Notes a change of code version or device, and keys of the recipe that have changed.

        Raises:
            ConfigError: Data, weights, tools or rewards differ; names the first key that does.
            DataError: The manifest is damaged.
        """
        if TRAINING.has_begun(self.root):
            before = read_manifest(self.root, made_from=part(), name=text)
            refuse_other(self.root, "a run", before["made_from"], manifest["made_from"])
            note_session(self.root, before, manifest["made_with"][-1], note)
            for change in recipe.changes(self.root / RECIPE):
                if change.key != "run.dir":
                    note(f"goes on with {change.key} = {shown(change.now)}, it was {shown(change.before)}")

    def begin(self, recipe: RecipeRecord, manifest: Mapping[str, Any]) -> RunIdentity:
        """Make the folder a run, unless it is one that has begun; call it after all other checks. Returns the run's identity.

        Raises:
            ConfigError: The folder cannot be written.
        """
        if not TRAINING.has_begun(self.root):
            # A start that did not get to its first step may have evaluated another model.
            shutil.rmtree(self.root / "evals", ignore_errors=True)
            (self.root / "evals.jsonl").unlink(missing_ok=True)
            self.create(recipe)
            write_manifest(self.root, {"name": os.urandom(8).hex(), **manifest})
        elif recipe.changes(self.root / RECIPE):
            self.create(recipe)
        name = self.name()
        assert name is not None
        return RunIdentity(name, recipe.fingerprint)

    def create(self, recipe: RecipeRecord) -> None:
        """Put the recipe into the folder.

        Raises:
            ConfigError: The folder cannot be written.
        """
        make_folder("run.dir", self.root)
        replace_file(self.root / RECIPE, recipe.text.encode())

    def name(self) -> str | None:
        """Return the name that the run drew when it began; None without a readable manifest."""
        try:
            return str(read_record(self.root / MANIFEST, part(name=text))["name"])
        except DataError:
            return None


@contextmanager
def claim_run_folder(path: Path, recipe: RecipeRecord, resume: bool) -> Iterator[RunFolder]:
    """Open or create the folder of a training run, and hold it for this process alone while the block runs.

    Raises:
        ConfigError: As for `RunKind.claim`.
    """
    with TRAINING.claim(path, resume, recipe):
        yield RunFolder(path, resume)
