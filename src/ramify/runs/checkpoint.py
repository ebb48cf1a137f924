"""Checkpoints: a plain model folder with the training state beside it; a checkpoint is complete or absent.

    step-000120/
        config.json, model.safetensors, tokenizer files    opens in transformers and vLLM as it is
        state/optimizer.safetensors                         optimizer state, "kind.parameter name"; one file a rank
        state.json                                          step, cursor, score, ..., every file with its checksum
        .gitignore                                          keeps the two out of what is pushed to a hub or to git

A model with an adapter is a peft folder instead (`modeling.lora`). A checkpoint is written to a hidden folder beside
its place, synced to disk and renamed; to delete one, it is renamed first. Each rank writes its part of the optimizer state
(`optimizer_files`), so all must see the run's folder; rank 0 writes the rest. The optimizer state is in `state/` because
vLLM loads every safetensors file beside `config.json`.
"""

import json
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError, MachineError, TrainingError
from ramify.core.protocols import Json
from ramify.files.durable import sync, sync_folder
from ramify.files.untrusted import read_small_file
from ramify.learner.optimizer_files import state_name
from ramify.learner.sharding import is_sharded
from ramify.learner.update import Learner
from ramify.modeling.load import save_model, saved_parameters, saved_state
from ramify.modeling.model_config import read_model_config
from ramify.modeling.plain_folder import COMPANIONS, GENERATION, generation_defaults
from ramify.runs.checkpoint_files import STATE, first_line, partial_of, remove, write_record

_POLL_SECONDS = 0.05
_SHOWN_SECONDS = 60.0
"""After this long every machine shows a new file; NFS may take half of it."""
_WRITER = ThreadPoolExecutor(1, "ramify-checkpoint")


def companion_files(model_path: Path) -> dict[str, bytes]:
    """Return the files that a checkpoint copies unchanged from the recipe's model: the tokenizer and the generation defaults.

    Where the model has no `generation_config.json`, it gets one that ends where the tokenizer's turns end.

    Raises:
        DataError: A file cannot be read.
    """
    paths = (model_path / name for name in COMPANIONS)
    files = {path.name: read_small_file(path) for path in paths if path.is_file()}
    if GENERATION not in files:
        files[GENERATION] = generation_defaults(
            read_model_config(model_path), ChatTokenizer(model_path).eos_id
        )
    return files


def check_saving(run_dir: Path, learner: Learner, companions: Mapping[str, bytes]) -> None:
    """Check before the first step that a checkpoint can be written.

    Writes everything but the tensors into a folder of `run_dir`, has all ranks look for it and removes it again; for the
    tensors it checks the free space.

    Raises:
        MachineError: There is too little space for one checkpoint.
        TrainingError: The disk cannot be written.
        DataError: transformers or peft refuses to save the model.
        UserError: A rank does not see the folder.
    """
    model, optimizers = learner.model, learner.optimizers
    weights = sum(p.numel() * p.element_size() for _, p in saved_parameters(model))
    needed = weights + optimizers.state_bytes() + sum(map(len, companions.values()))
    free = shutil.disk_usage(run_dir).free
    if needed > free:
        raise MachineError(
            f"run.dir: {run_dir} has room for {free / 1e9:.3g} GB, one checkpoint takes {needed / 1e9:.3g} GB; make room or "
            "name another disk"
        )
    scratch = run_dir / ".checkpoint.part"
    try:
        remove(scratch)
        scratch.mkdir()
        save_model(model, scratch, weights=False)
        _write_companions(scratch, companions)
        # Of this start: another machine's folder of that name may hold what an earlier run has left.
        mark = scratch / secrets.token_hex(8)
        mark.touch()
    except OSError as error:
        raise TrainingError(
            f"{error.filename or scratch}: cannot be written: {error.strerror}. Make room there, and go on with --resume."
        ) from error
    except Exception as error:
        raise DataError(
            f"model.path: a checkpoint of this model cannot be saved: {first_line(error)}"
        ) from error
    else:
        ranks = learner.ranks
        ranks.each("require_file", [(mark, number, _SHOWN_SECONDS) for number in range(ranks.rank.size)])
    finally:
        with suppress(OSError):
            remove(scratch)


def save_checkpoint(
    folder: Path,
    learner: Learner,
    state: Mapping[str, Json],
    companions: Mapping[str, bytes],
    *,
    in_background: bool = False,
) -> Callable[[], None]:
    """Write a checkpoint to a folder beside its place, and rename it when it is complete; `read_state` returns its `state`.

    In the background, only copy it to the machine's memory before returning, and write in threads. The returned function waits
    until the checkpoint is there, and raises what went wrong. Call it before anything relies on the checkpoint, and before the
    next one.

    Raises:
        DataError: `folder` exists.
        ValueError: A number in `state` is not finite.
        TrainingError: The files cannot be written; nothing is left of them.
    """
    if folder.exists():
        raise DataError(f"checkpoint {folder}: exists already, expected a new folder")
    json.dumps(state, allow_nan=False)
    partial, model, ranks = partial_of(folder), learner.model, learner.ranks
    size = ranks.rank.size
    parts = [(partial / STATE, number, size) for number in range(size)]

    def write_model(tensors: Mapping[str, torch.Tensor] | None) -> None:
        save_model(model, partial, tensors=tensors)
        _write_companions(partial, companions)

    def finish() -> None:
        write_record(partial, state)
        sync_folder(partial)
        partial.rename(folder)
        sync(folder.parent)

    with _cleanup_on_error(folder):
        remove(partial)
        (partial / STATE).mkdir(parents=True)
        if not in_background:
            write_model(saved_state(model, learner.whole_parameter) if is_sharded(model) else None)
            ranks.each("write_state", parts)
            finish()
            return lambda: None
        # Here and not in the thread: what reads a split model's weights splits them, also in the midst of a pass.
        copied = saved_state(model, lambda name: learner.whole_parameter(name).to("cpu", copy=True))
        ranks.each("begin_writing", parts)
    has_failed = threading.Event()

    def write() -> None:
        write_model(copied)
        # The other ranks write theirs meanwhile; `end` hears of it if one cannot.
        if _are_written(parts, lambda: has_failed.wait(_POLL_SECONDS) or ranks.has_failed):
            finish()

    done = _WRITER.submit(write)

    def end() -> None:
        with _cleanup_on_error(folder):
            try:
                ranks.all("end_writing")
            except BaseException:
                has_failed.set()
                raise
            finally:
                done.result()

    return end


def _are_written(parts: Sequence[tuple[Path, int, int]], is_lost: Callable[[], bool]) -> bool:
    """Wait until each rank has written its file, or one is lost; return True if all are there."""
    files = [folder / state_name(number, size) for folder, number, size in parts]
    while not all(file.exists() for file in files):
        if is_lost():
            return False
    return True


def _write_companions(folder: Path, companions: Mapping[str, bytes]) -> None:
    for name, content in companions.items():
        (folder / name).write_bytes(content)


@contextmanager
def _cleanup_on_error(folder: Path) -> Iterator[None]:
    """Leave nothing of a checkpoint that cannot be written, and say so in one line."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):
            remove(partial_of(folder))
        if isinstance(error, TrainingError):
            # A rank that is gone; it has said so.
            raise
        raise TrainingError(
            f"checkpoint {folder}: cannot be written ({first_line(error)}). Earlier checkpoints are whole: fix that and go on "
            "with --resume"
        ) from error
