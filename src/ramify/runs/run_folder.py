"""The folder of one run: its recipe, what it is made from, metrics, traces, timings and checkpoints.

RUN/manifest.json  recipe.toml  metrics.jsonl  trees/STEP.jsonl  timing/STEP.jsonl  checkpoints/step-STEP/
    evals.jsonl  evals/STEP.jsonl

A run has begun once it has a step or a checkpoint. Until then its folder is free for the next start, with any recipe.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_types import part, text
from ramify.files.durable import RECIPE, make_folder, read_record, replace_file
from ramify.obs.metrics import MetricsLog
from ramify.runs.claims import TRAINING
from ramify.runs.manifest import MANIFEST, note_session, read_manifest, refuse_other, shown, write_manifest
from ramify.runs.recipe import RecipeRecord

_OF_A_STEP = re.compile(r"([0-9]{6,15})\.jsonl(\.part)?")


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
        """The trace of a step."""
        return self.root / "trees" / f"{step:06d}.jsonl"

    def timing(self, step: int) -> Path:
        """The wall-clock times of a step."""
        return self.root / "timing" / f"{step:06d}.jsonl"

    def evaluation(self, step: int) -> Path:
        """The trace of the evaluation of the weights after a step."""
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

    @property
    def _goes_on(self) -> bool:
        return TRAINING.has_begun(self.root) and (self.root / MANIFEST).exists()

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

    def take_up(self, recipe: RecipeRecord, manifest: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Check that a run that has begun continues with what it was made from.

        Notes another code version or device, and keys of the recipe that have changed.

        Raises:
            ConfigError: Data, weights, tools or rewards differ; names the first key that does.
            DataError: The manifest is damaged.
        """
        if self._goes_on:
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
        if not self._goes_on:
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
        """The name that the run drew when it began; None without a readable manifest."""
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
