"""What a training loop carries from step to step, and the checkpoints that keep it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ramify.config.schema_parts import RunSection
from ramify.data.order import DataCursor
from ramify.learner.checkpoint import (
    checkpoint_folder,
    load_optimizers,
    load_weights,
    prune_checkpoints,
    read_state,
    save_checkpoint,
)
from ramify.learner.update import Learner
from ramify.train.guard import GuardState
from ramify.train.run_folder import RunFolder

NaturalNumber = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint with the highest score so far."""

    step: NaturalNumber
    score: float


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where a run stands after `step` steps; draws are hashes of (seed, step, ...), so no generator is saved.

    Attributes:
        step: Steps that were taken.
        cursor: In the data.
        scores: Of the steps since the last checkpoint that was due; None where a step had none.
        best: Of the checkpoints that were due.
        branching: What the branching rule remembers (`Brancher.state`).
        guard: What the collapse detector remembers; None in a run without one.
    """

    step: NaturalNumber = 0
    cursor: DataCursor = field(default_factory=DataCursor)
    scores: tuple[float | None, ...] = ()
    best: Best | None = None
    branching: Mapping[str, Any] = field(default_factory=dict)
    guard: GuardState | None = None

    def after_step(self, cursor: DataCursor, score: float | None) -> "LoopState":
        """One step further; a score is better when it is higher."""
        return replace(self, step=self.step + 1, cursor=cursor, scores=(*self.scores, score))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What `state.json` holds: the loop's state, the learner's, and what the checkpoint is of.

    `score` is the mean over the steps since the checkpoint before that was due; None for one made in between.
    """

    loop: LoopState
    score: float | None
    learner_step: NaturalNumber
    skipped_in_a_row: NaturalNumber
    seed: int
    tokenizer: str


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes and prunes the checkpoints of a run.

    Attributes:
        folder: Of the run.
        learner: What is saved.
        model_path: The recipe's model, which has the tokenizer's files.
        tokenizer: Its fingerprint.
        run: When to save, how many to keep.
        total_steps: The last step has a checkpoint in any case.
    """

    folder: RunFolder
    learner: Learner
    model_path: Path
    tokenizer: str
    run: RunSection
    total_steps: int

    def keep(self, state: LoopState) -> LoopState:
        """Write the checkpoint of a step where one is due; returns the state to go on from."""
        if state.step % self.run.save_every and state.step != self.total_steps:
            return state
        known = [score for score in state.scores if score is not None]
        score = math.fsum(known) / len(known) if known else None
        best = state.best
        if score is not None and (best is None or score >= best.score):
            best = Best(state.step, score)
        guard = state.guard.saved(state.step) if state.guard else None
        kept = replace(state, scores=(), best=best, guard=guard)
        self._write(kept, score)
        return kept

    def save(self, state: LoopState) -> Path:
        """The checkpoint of `state`, written now unless it was due; it has no score."""
        path = checkpoint_folder(self.folder.root, state.step)
        if not path.exists():
            self._write(state, None)
        return path

    def fall_back(self, step: int) -> Path:
        """Give the learner the weights and the optimizer state of an earlier step; its own count of steps goes on.

        Raises:
            DataError: That checkpoint is damaged.
        """
        path = checkpoint_folder(self.folder.root, step)
        read_state(path)
        load_weights(path, self.learner.model)
        load_optimizers(path, self.learner.optimizers)
        self.learner.skipped_in_a_row = 0
        return path

    def best_note(self, state: LoopState) -> str | None:
        """One line about the best checkpoint; None where none is kept."""
        path = checkpoint_folder(self.folder.root, state.best.step) if state.best else None
        if state.best is None or path is None or not path.exists():
            return None
        return f"best checkpoint: {path} (score {state.best.score:.4g})"

    def _write(self, state: LoopState, score: float | None) -> None:
        learner = self.learner
        record = RunRecord(
            loop=state,
            score=score,
            learner_step=learner.step,
            skipped_in_a_row=learner.skipped_in_a_row,
            seed=self.run.seed,
            tokenizer=self.tokenizer,
        )
        path = checkpoint_folder(self.folder.root, state.step)
        save_checkpoint(path, learner.model, learner.optimizers, asdict(record), self.model_path)
        needed = state.guard.needed if state.guard else frozenset()
        prune_checkpoints(self.folder.root, self.run.keep_last, self.run.keep_best, needed)
