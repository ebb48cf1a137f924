"""What a training loop carries from step to step, and how it is saved and taken up again."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.protocols import Json
from ramify.data.order import DataCursor
from ramify.learner.checkpoint import (
    checkpoint_folder,
    latest_checkpoint,
    load_optimizers,
    prune_checkpoints,
    read_state,
    save_checkpoint,
)
from ramify.learner.update import Learner
from ramify.train.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where a run stands after `step` steps; draws are hashes of (seed, step, ...), so no generator is saved."""

    step: int = 0
    cursor: DataCursor = field(default_factory=DataCursor)


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes and prunes the checkpoints of a run."""

    folder: RunFolder
    learner: Learner
    tokenizer_dir: Path
    seed: int
    keep_last: int

    def save(self, state: LoopState) -> Path:
        """Write the checkpoint of `state`, unless it is there already."""
        path = checkpoint_folder(self.folder.root, state.step)
        if not path.exists():
            record: dict[str, Json] = {
                "step": state.step,
                "policy_version": state.step,
                "cursor": asdict(state.cursor),
                "learner_step": self.learner.step,
                "rng": {"seed": self.seed},
            }
            save_checkpoint(path, self.learner.model, self.learner.optimizers, record, self.tokenizer_dir)
            prune_checkpoints(self.folder.root, self.keep_last)
        return path


def starting_point(folder: RunFolder, model_path: Path) -> Path:
    """The model folder to load: the run's latest checkpoint, or the recipe's model where there is none."""
    return latest_checkpoint(folder.root) or model_path


def restore(folder: RunFolder, make_learner: Callable[[], Learner], seed: int) -> tuple[Learner, LoopState]:
    """Make the learner and give it the state of the latest checkpoint, if there is one.

    Raises:
        DataError: The checkpoint is incomplete or of a run with another seed.
    """
    path = latest_checkpoint(folder.root)
    if path is None:
        return make_learner(), LoopState()
    record: dict[str, Any] = read_state(path)
    try:
        saved_seed, learner_step = record["rng"]["seed"], int(record["learner_step"])
        state = LoopState(int(record["step"]), DataCursor(**record["cursor"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path / 'state.json'}: not the state of a training run ({error!r})") from None
    if saved_seed != seed:
        raise DataError(f"{path}: of a run with seed {saved_seed}, expected {seed}")
    learner = make_learner()
    load_optimizers(path, learner.optimizers)
    learner.step = learner_step
    return learner, state
