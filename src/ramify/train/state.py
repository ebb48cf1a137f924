"""What a training loop carries from step to step, and the checkpoints that keep it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ramify.config.schema_parts import TrainingRunSection
from ramify.core.errors import TrainingError
from ramify.data.order import DataCursor
from ramify.learner.checkpoint import (
    checkpoint_folder,
    load_optimizers,
    load_weights,
    prune_checkpoints,
    read_state,
    save_checkpoint,
)
from ramify.learner.tensor_file import all_finite
from ramify.learner.update import Learner
from ramify.train.guard import GuardState
from ramify.train.run_folder import RunFolder, RunIdentity

NaturalNumber = Annotated[int, Field(ge=0, lt=1 << 63)]
Score = Annotated[float, Field(ge=-1e100, le=1e100)]
"""Its sum is finite, however many there are."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A checkpoint with its score: the mean over the steps from it to the next one."""

    step: NaturalNumber
    score: Score


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where a run stands after `step` steps; draws are hashes of (seed, step, ...), so no generator is saved.

    Attributes:
        step: Steps that were taken.
        cursor: In the data.
        scores: Of the steps since the last checkpoint that was due; None where a step had none. They are that
            checkpoint's: a step's reward is that of the weights before its update.
        due: Step of that checkpoint; 0 before there is one.
        ranking: The best of the checkpoints that were due and are judged, the best first.
        branching: What the branching rule remembers (`Brancher.state`).
        guard: What the collapse detector remembers; None in a run without one.
    """

    step: NaturalNumber = 0
    cursor: DataCursor = field(default_factory=DataCursor)
    scores: tuple[Score | None, ...] = ()
    due: NaturalNumber = 0
    ranking: tuple[Judged, ...] = ()
    branching: Mapping[str, Any] = field(default_factory=dict)
    guard: GuardState | None = None

    def after_step(self, cursor: DataCursor, score: float | None) -> "LoopState":
        """One step further; a score is better when it is higher."""
        return replace(self, step=self.step + 1, cursor=cursor, scores=(*self.scores, score))

    def went_back(self, step: int) -> "LoopState":
        """The weights are those of an earlier checkpoint again."""
        return replace(self, scores=(), due=step)

    @property
    def kept(self) -> frozenset[int]:
        """Steps whose checkpoints stay beside the last ones."""
        needed = self.guard.needed if self.guard else frozenset()
        return needed | {judged.step for judged in self.ranking}

    def judged(self, most: int) -> "LoopState":
        """The last checkpoint that was due takes its place among the `most` best; of equal ones the later is better."""
        known = [score for score in self.scores if score is not None]
        if not known or not self.due:
            return replace(self, scores=())
        found = Judged(self.due, math.fsum(known) / len(known))
        others = [other for other in self.ranking if other.step != self.due]
        ranked = sorted([*others, found], key=lambda one: (one.score, one.step), reverse=True)
        return replace(self, scores=(), ranking=tuple(ranked[:most]))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What `state.json` holds: the loop's state, the learner's, and what the checkpoint is of."""

    loop: LoopState
    learner_step: NaturalNumber
    skipped_in_a_row: NaturalNumber
    seed: int
    tokenizer: str
    run: RunIdentity


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes and prunes the checkpoints of a run.

    Attributes:
        folder: Of the run.
        learner: What is saved.
        companions: Files of the recipe's model that every checkpoint has (`companion_files`).
        tokenizer: Its fingerprint.
        identity: Which run it is.
        run: When to save, how many to keep.
        total_steps: The last step has a checkpoint in any case.
    """

    folder: RunFolder
    learner: Learner
    companions: Mapping[str, bytes]
    tokenizer: str
    identity: RunIdentity
    run: TrainingRunSection
    total_steps: int

    def keep(self, state: LoopState) -> LoopState:
        """Write the checkpoint of a step where one is due; returns the state to go on from."""
        if state.step % self.run.save_every and state.step != self.total_steps:
            return state
        guard = state.guard.saved(state.step) if state.guard else None
        kept = replace(state.judged(self.run.keep_best), due=state.step, guard=guard)
        self._write(kept)
        return kept

    def save(self, state: LoopState) -> Path:
        """The checkpoint of `state`, written now unless it was due; it is never judged."""
        path = checkpoint_folder(self.folder.root, state.step)
        if not path.exists():
            self._write(state)
        return path

    def fall_back(self, step: int) -> Path:
        """Give the learner the weights and the optimizer state of an earlier step; its own count of steps goes on.

        Raises:
            DataError: That checkpoint is damaged.
        """
        path = checkpoint_folder(self.folder.root, step)
        if_damaged = "the run cannot go back to it: start a new run.dir from another checkpoint as model.path"
        read_state(path, if_damaged)
        load_weights(path, self.learner.model)
        load_optimizers(path, self.learner.optimizers, if_damaged)
        self.learner.skipped_in_a_row = 0
        return path

    def best_note(self, state: LoopState) -> str | None:
        """One line about the best checkpoint; None where none is kept."""
        if not state.ranking:
            return None
        best = state.ranking[0]
        return f"best checkpoint: {checkpoint_folder(self.folder.root, best.step)} (score {best.score:.4g})"

    def _write(self, state: LoopState) -> None:
        """Write and prune.

        Raises:
            TrainingError: A weight or a momentum is not finite, and nothing is written; or the disk takes nothing.
        """
        learner = self.learner
        for what, tensors in (
            ("weights", dict(learner.model.named_parameters())),
            ("optimizer state", learner.optimizers.state_tensors()),
        ):
            for name, tensor in tensors.items():
                if not all_finite(tensor):
                    raise TrainingError(
                        f"step {state.step}: {what} of {name} are not finite, so no checkpoint was written; lower "
                        "learner.optimizer.rate and start again, or go on from an earlier checkpoint as model.path"
                    )
        record = RunRecord(
            loop=state,
            learner_step=learner.step,
            skipped_in_a_row=learner.skipped_in_a_row,
            seed=self.run.seed,
            tokenizer=self.tokenizer,
            run=self.identity,
        )
        path = checkpoint_folder(self.folder.root, state.step)
        save_checkpoint(path, learner.model, learner.optimizers, asdict(record), self.companions)
        prune_checkpoints(self.folder.root, self.run.keep_last, state.kept)
