"""The state that a training loop carries from step to step, and the checkpoints that store it."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ramify.core.errors import TrainingError
from ramify.data.order import DataCursor
from ramify.learner.guard import GuardState
from ramify.learner.update import Learner
from ramify.runs.checkpoint import save_checkpoint
from ramify.runs.checkpoint_files import STATE, checkpoint_folder, prune_checkpoints, read_state
from ramify.runs.configs import TrainingRunConfig
from ramify.runs.run_folder import RunFolder, RunIdentity

NaturalNumber = Annotated[int, Field(ge=0, lt=1 << 63)]
Score = Annotated[float, Field(ge=-1e100, le=1e100)]
"""Its sum is finite, however many there are."""


@dataclass(frozen=True, slots=True)
class CheckpointScore:
    """A checkpoint's score: the mean score of the steps from this checkpoint to the next."""

    step: NaturalNumber
    score: Score


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state of a run after `step` steps; draws are hashes of (seed, step, ...), so no generator is saved.

    Attributes:
        step: Number of steps done.
        cursor: Place in the data.
        scores: Scores of the steps since the last scheduled checkpoint; None for a step without one. They count for
            that checkpoint, because a step's reward is measured with the weights before its update.
        due: Step of that checkpoint; 0 before there is one.
        ranking: The best scheduled checkpoints with their scores, the best first.
        branching: State of the branching rule (`Brancher.state`).
        guard: State of the collapse detector; None in a run without one.
    """

    step: NaturalNumber = 0
    cursor: DataCursor = field(default_factory=DataCursor)
    scores: tuple[Score | None, ...] = ()
    due: NaturalNumber = 0
    ranking: tuple[CheckpointScore, ...] = ()
    branching: Mapping[str, Any] = field(default_factory=dict)
    guard: GuardState | None = None

    def after_step(self, cursor: DataCursor, score: float | None) -> "LoopState":
        """Return the state after one more step; a higher score is better."""
        return replace(self, step=self.step + 1, cursor=cursor, scores=(*self.scores, score))

    def went_back(self, step: int) -> "LoopState":
        """Return the state after a fallback to the weights of the checkpoint of `step`."""
        return replace(self, scores=(), due=step)

    def kept_steps(self, keep_best: int) -> frozenset[int]:
        """Return the steps whose checkpoints are kept besides the last ones; with `keep_best` the one that is yet to be judged too."""
        needed = self.guard.needed if self.guard else frozenset()
        # Checkpoints that stops and `--max-steps` cause in between count among the last ones, and may be many.
        unjudged = {self.due} if keep_best else frozenset[int]()
        return needed | unjudged | {judged.step for judged in self.ranking}

    def judged(self, most: int) -> "LoopState":
        """Rank the last scheduled checkpoint among the `most` best; on a tie the later one is better."""
        known = [score for score in self.scores if score is not None]
        if not known or not self.due:
            return replace(self, scores=())
        score = CheckpointScore(self.due, math.fsum(known) / len(known))
        others = [other for other in self.ranking if other.step != self.due]
        ranked = sorted([*others, score], key=lambda each: (each.score, each.step), reverse=True)
        return replace(self, scores=(), ranking=tuple(ranked[:most]))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of `state.json`: the state of the loop and the learner, and the run it belongs to."""

    loop: LoopState
    learner_step: NaturalNumber
    skipped_in_a_row: NaturalNumber
    seed: int
    tokenizer: str
    run: RunIdentity


@dataclass(slots=True)
class _Pending:
    """What ends the writing of the last checkpoint, if a thread still writes it."""

    end: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes and prunes the checkpoints of a run.

    Training goes on while a scheduled checkpoint is written, if the weights are on a GPU: then their copy in the machine's
    memory is needed anyway. `settle` waits for it; call it before the next line of the metrics is written, since no run is
    to be more than one checkpoint ahead of what can be resumed.

    Attributes:
        folder: Folder of the run.
        learner: Holds the weights and the optimizer state.
        companions: Files that every checkpoint copies from the recipe's model (`companion_files`).
        tokenizer: Fingerprint of the tokenizer.
        identity: The run that the checkpoints belong to.
        run: When to save and how many checkpoints to keep.
        total_steps: Steps of the run; the last one always has a checkpoint.
        in_background: Whether scheduled checkpoints are written while training goes on.
    """

    folder: RunFolder
    learner: Learner
    companions: Mapping[str, bytes]
    tokenizer: str
    identity: RunIdentity
    run: TrainingRunConfig
    total_steps: int
    in_background: bool = False
    _pending: _Pending = field(default_factory=_Pending)

    def keep(self, state: LoopState) -> LoopState:
        """Write a checkpoint if one is scheduled for this step; returns the state to continue with."""
        if state.step % self.run.save_every and state.step != self.total_steps:
            return state
        guard = state.guard.saved(state.step) if state.guard else None
        saved = replace(state.judged(self.run.keep_best), due=state.step, guard=guard)
        self._write(saved, in_background=self.in_background)
        return saved

    def settle(self) -> None:
        """Wait until the last checkpoint is on the disk.

        Raises:
            TrainingError: It cannot be written.
        """
        end, self._pending.end = self._pending.end, None
        if end is not None:
            end()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Wait for the last checkpoint if the block fails: the thread that writes it would keep the process alive."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self.settle()
            raise

    def save(self, state: LoopState) -> Path:
        """Write a checkpoint of `state` now, unless the scheduled one exists; it gets no score. Returns its folder."""
        self.settle()
        path = checkpoint_folder(self.folder.root, state.step)
        if not path.exists():
            self._write(state, in_background=False)
        return path

    def fall_back(self, step: int) -> Path:
        """Load the weights and the optimizer state of an earlier step; the learner's own step count is unchanged.

        Raises:
            DataError: The checkpoint is damaged.
        """
        self.settle()
        path = checkpoint_folder(self.folder.root, step)
        if_damaged = "the run cannot go back to it: start a new run.dir from another checkpoint as model.path"
        read_state(path, if_damaged)
        self.learner.ranks.all("load_weights", path)
        self.learner.ranks.all("load_state", path / STATE, if_damaged)
        self.learner.skipped_in_a_row = 0
        return path

    def best_note(self, state: LoopState) -> str | None:
        """Return one line about the best checkpoint; None if no best ones are kept."""
        if not state.ranking:
            return None
        best = state.ranking[0]
        return f"best checkpoint: {checkpoint_folder(self.folder.root, best.step)} (score {best.score:.4g})"

    def _write(self, state: LoopState, *, in_background: bool) -> None:
        """Write a checkpoint, then prune.

        Raises:
            TrainingError: A weight or a momentum is not finite, and nothing is written; or the disk cannot be written.
        """
        self.settle()
        learner = self.learner
        if broken := next(filter(None, learner.ranks.all("not_finite")), None):
            raise TrainingError(
                f"step {state.step}: {broken} are not finite, so no checkpoint was written. Lower "
                "learner.optimizer.rate and start again, or start from an earlier checkpoint as model.path."
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
        end = save_checkpoint(path, learner, asdict(record), self.companions, in_background=in_background)

        def finish() -> None:
            end()
            prune_checkpoints(self.folder.root, self.run.keep_last, state.kept_steps(self.run.keep_best))

        if in_background:
            self._pending.end = finish
        else:
            finish()
