"""Writes a checkpoint: at once, or in threads while training goes on."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ramify.core.errors import DataError, TrainingError
from ramify.core.protocols import Json
from ramify.files.durable import sync, sync_folder
from ramify.learner.optimizer_files import state_name
from ramify.learner.sharding import is_sharded
from ramify.learner.update import Learner
from ramify.modeling.load import save_model, saved_state
from ramify.modeling.lora import has_adapters
from ramify.runs.checkpoint_files import STATE, first_line, partial_of, remove, write_record

GENERATION_FILE = "generation_config.json"
_POLL_SECONDS = 0.05
_WRITER = ThreadPoolExecutor(1, "ramify-checkpoint")


def save_checkpoint(
    folder: Path, learner: Learner, state: Mapping[str, Json], companions: Mapping[str, bytes]
) -> None:
    """Write a checkpoint; `read_state` returns its `state`.

    Raises:
        DataError: `folder` exists.
        ValueError: A number in `state` is not finite.
        TrainingError: The files cannot be written; nothing is left of them.
    """
    writing = _Writing.of(folder, learner, state, companions)
    with writing.told():
        writing.begin()
        is_split = is_sharded(learner.model)
        writing.write_model(saved_state(learner.model, learner.whole_parameter) if is_split else None)
        learner.ranks.each("write_state", writing.parts)
        writing.finish()


def begin_checkpoint(
    folder: Path, learner: Learner, state: Mapping[str, Json], companions: Mapping[str, bytes]
) -> Callable[[], None]:
    """As `save_checkpoint`, but only copy to the machine's memory before returning, and write in threads.

    What it returns waits until the checkpoint is there, and raises what went wrong. Call it before anything relies on the
    checkpoint, and before the next one.
    """
    writing = _Writing.of(folder, learner, state, companions)
    with writing.told():
        writing.begin()
        # Here and not in the thread: what reads a split model's weights splits them, also in the midst of a pass.
        held = saved_state(learner.model, lambda name: _copied(learner.whole_parameter(name)))
        learner.ranks.each("begin_writing", writing.parts)
    gone = threading.Event()

    def write() -> None:
        writing.write_model(held)
        # The other ranks write theirs meanwhile; `end` hears of it if one cannot.
        while not all(file.exists() for file in writing.state_files):
            if gone.wait(_POLL_SECONDS) or learner.ranks.has_failed:
                return
        writing.finish()

    done = _WRITER.submit(write)

    def end() -> None:
        with writing.told():
            try:
                learner.ranks.all("end_writing")
            except BaseException:
                gone.set()
                raise
            finally:
                done.result()

    return end


def write_companions(folder: Path, model: PreTrainedModel, companions: Mapping[str, bytes]) -> None:
    """Write the files that a checkpoint copies from the recipe's model (`companion_files`)."""
    for name, content in companions.items():
        if name != GENERATION_FILE or not has_adapters(model):
            (folder / name).write_bytes(content)


@dataclass(frozen=True, slots=True)
class _Writing:
    """A checkpoint that is written to a folder beside its place, and renamed when it is complete."""

    folder: Path
    learner: Learner
    state: Mapping[str, Json]
    companions: Mapping[str, bytes]

    @classmethod
    def of(
        cls, folder: Path, learner: Learner, state: Mapping[str, Json], companions: Mapping[str, bytes]
    ) -> "_Writing":
        """Check that it can begin (see `save_checkpoint`)."""
        if folder.exists():
            raise DataError(f"checkpoint {folder}: exists already, expected a new folder")
        json.dumps(state, allow_nan=False)
        return cls(folder, learner, state, companions)

    @property
    def parts(self) -> list[tuple[Path, int, int]]:
        """For each rank the folder, its number and how many there are."""
        count = self.learner.ranks.rank.size
        return [(partial_of(self.folder) / STATE, number, count) for number in range(count)]

    @property
    def state_files(self) -> list[Path]:
        """The files that the ranks write."""
        return [place / state_name(number, count) for place, number, count in self.parts]

    def begin(self) -> None:
        """Make the folder beside the checkpoint's place."""
        remove(partial_of(self.folder))
        (partial_of(self.folder) / STATE).mkdir(parents=True)

    def write_model(self, tensors: Mapping[str, torch.Tensor] | None) -> None:
        """Write what rank 0 writes alone: these weights, or those that the model holds now."""
        save_model(self.learner.model, partial_of(self.folder), tensors=tensors)
        write_companions(partial_of(self.folder), self.learner.model, self.companions)

    def finish(self) -> None:
        """Write the record, flush everything to the disk, and put the folder in its place."""
        write_record(partial_of(self.folder), self.state)
        sync_folder(partial_of(self.folder))
        partial_of(self.folder).rename(self.folder)
        sync(self.folder.parent)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Leave nothing of a checkpoint that cannot be written, and say so in one line."""
        try:
            yield
        except Exception as error:
            with suppress(OSError):
                remove(partial_of(self.folder))
            if isinstance(error, TrainingError):
                # A rank that is gone; it has said so.
                raise
            raise TrainingError(
                f"checkpoint {self.folder}: cannot be written ({first_line(error)}); earlier checkpoints are whole: fix that "
                "and go on with --resume"
            ) from error


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the machine's memory, where training does not change it."""
    return tensor.to("cpu", copy=True)
