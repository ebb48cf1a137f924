"""Where a run starts: at the recipe's model, or at its latest checkpoint, which must belong to it and be undamaged.

Weights are read once per process for the manifest (CRC-32 over all tensors, 2 GB/s on one core if the disk keeps up); time
stamps of files are not trusted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError, DataError
from ramify.data.configs import DataFiles
from ramify.files.durable import RECIPE
from ramify.learner.update import Learner
from ramify.modeling.configs import TrainedModelConfig
from ramify.modeling.lora import checksums
from ramify.modeling.model_config import is_adapter_folder, read_model_config, whole_folder
from ramify.modeling.numerics import compute_device, device_name
from ramify.obs.console import RunConsole
from ramify.runs.checkpoint import check_saving, companion_files
from ramify.runs.checkpoint_files import (
    RECORD,
    STATE,
    advice_on_damaged,
    check_model_folder,
    checkpoint_folder,
    latest_checkpoint,
    prune_checkpoints,
    read_state,
)
from ramify.runs.configs import TrainingRunConfig
from ramify.runs.manifest import MANIFEST, RecipeRecord, data_sha256, made_with, model_files
from ramify.runs.run_folder import RunFolder
from ramify.runs.state import LoopState, RunRecord, Saver
from ramify.runs.status import begin_session
from ramify.runs.trained_prompts import TrainingStage, with_stage

_SIZES = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
"""Keys of a model's configuration that decide the shapes of its weights."""

_RECORD = TypeAdapter(RunRecord)
_LARGE_MODEL = 4 << 30
"""Bytes of weights that take seconds to read."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The parts of a training recipe that decide where its run starts and what it saves."""

    recipe: RecipeRecord
    run: TrainingRunConfig
    model: TrainedModelConfig


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run starts: the model folder to load, and the record beside it if that is a checkpoint of the run."""

    source: Path
    tokenizer: str
    record: RunRecord | None


def starting_point(folder: RunFolder, setup: TrainingSetup, console: RunConsole) -> Start:
    """Return the run's latest checkpoint, or the recipe's model if there is none; prints which.

    Raises:
        DataError: The checkpoint is damaged, or belongs to another run, seed, tokenizer or model; there is none although
            the run should have one by now; or the recipe's model is itself a checkpoint and damaged.
    """
    path = latest_checkpoint(folder.root)
    tokenizer = ChatTokenizer(setup.model.folder).fingerprint
    size = sum(file.stat().st_size for file in whole_folder(setup.model.folder).glob("*.safetensors"))
    if size >= _LARGE_MODEL:
        console.note(
            f"reading the weights of {setup.model.path}, {size / 1e9:.1f} GB: the manifest has their checksum"
        )
    if folder.metrics.is_cut_off():
        console.note(
            f"{folder.root / 'metrics.jsonl'}: the last line was cut off by a crash and is dropped; a step that has "
            "no checkpoint is done again"
        )
    if path is None:
        _require_no_progress(folder, setup)
        check_model_folder(setup.model.folder)
        if folder.resume:
            console.note(f"nothing to resume in {folder.root}: starting from step 0")
        return Start(setup.model.folder, tokenizer, None)
    record = _read_record(path)
    _require_own(path, record, folder, setup, tokenizer)
    if missing := folder.metrics.missing(record.loop.step):
        console.note(
            f"warning: {folder.root / 'metrics.jsonl'} has no line for {len(missing)} of {record.loop.step} "
            f"steps, the first is step {missing[0]}: restore it from a copy; training itself does not need it"
        )
    console.note(f"going on from {path}")
    return Start(path, tokenizer, record)


def _read_record(path: Path) -> RunRecord:
    """Check every file of a checkpoint and read its record.

    Raises:
        DataError: The checkpoint is damaged, or its folder has the name of another step.
    """
    advice = advice_on_damaged(path)
    try:
        record = _RECORD.validate_json(json.dumps(read_state(path, advice)), strict=True)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise DataError(
            f"{path / RECORD}: {key}: {error.errors()[0]['msg']}; it is not the state of a training run, {advice}"
        ) from None
    if checkpoint_folder(path.parent.parent, record.loop.step) != path:
        raise DataError(
            f"{path}: its state is that of step {record.loop.step}; give the folder its own name back, or {advice}"
        )
    return record


def _require_own(
    path: Path, record: RunRecord, folder: RunFolder, setup: TrainingSetup, tokenizer: str
) -> None:
    """Check that a checkpoint belongs to this run, for which equal shapes are not enough.

    Raises:
        DataError: It belongs to another run, or the recipe was changed.
    """
    if record.seed != setup.run.seed:
        raise DataError(
            f"{path}: of a run with seed {record.seed}, but the recipe's run.seed is {setup.run.seed}; put back the seed "
            "that the run began with"
        )
    if record.tokenizer != tokenizer:
        raise DataError(
            f"{path}: of a run with tokenizer {record.tokenizer}, that of model.path = {setup.model.path} is "
            f"{tokenizer}; put back the tokenizer that the run began with"
        )
    _require_same_model(path, setup.model)
    name = folder.name()
    if name is None:
        raise DataError(
            f"{folder.root / MANIFEST}: missing or not readable, so it is unknown whether {path} is of this run; put "
            f"it back, or name a new run.dir and model.path = {path}"
        )
    if record.run.name != name:
        raise DataError(
            f"{path}: of run {record.run.name}, this is run {name} ({folder.root / MANIFEST}); move it out of this folder, "
            "or name a new run.dir with it as model.path"
        )
    if record.run.recipe != setup.recipe.fingerprint:
        raise DataError(
            f"{path}: written under another recipe than {folder.root / 'recipe.toml'}; put the recipe back, or name a "
            "new run.dir with this checkpoint as model.path"
        )


def restore(start: Start, make_learner: Callable[[], Learner]) -> tuple[Learner, LoopState]:
    """Make the learner; if the run starts from a checkpoint, restore the learner's state from it.

    Raises:
        DataError: The optimizer state cannot be read.
    """
    learner = make_learner()
    if start.record is None:
        return learner, LoopState()
    learner.ranks.all("load_state", start.source / STATE, advice_on_damaged(start.source))
    learner.step = start.record.learner_step
    learner.skipped_in_a_row = start.record.skipped_in_a_row
    return learner, start.record.loop


def begin_run(
    folder: RunFolder,
    setup: TrainingSetup,
    start: Start,
    state: LoopState,
    learner: Learner,
    total_steps: int,
    manifest: Mapping[str, Any],
    stage: TrainingStage,
) -> Saver:
    """Check that checkpoints can be written, then make the folder a run that is at `state`; checkpoints note its `stage`.

    Raises:
        UserError: No checkpoint could be written, a file of the run is damaged, or the run has taken more steps already.
        TrainingError: Nothing can be written to the disk.
    """
    if state.step > total_steps:
        key = "data.epochs" if setup.run.steps is None else "run.steps"
        raise ConfigError(
            f"{key}: expected at least {state.step} steps, which {folder.root} has taken, got {total_steps}"
        )
    companions = {**companion_files(setup.model.folder), **with_stage(setup.model.folder, stage)}
    # A partial checkpoint that a kill left behind can take as much space as a whole one.
    prune_checkpoints(folder.root, setup.run.keep_last, state.kept_steps(setup.run.keep_best))
    check_saving(folder.root, learner, companions)
    learner.ranks.begin()
    identity = folder.begin(setup.recipe, manifest)
    begin_session(folder.root, total_steps)
    folder.rewind(state.step)
    on_gpu = compute_device(learner.model).type != "cpu"
    return Saver(
        folder, learner, companions, start.tokenizer, identity, setup.run, total_steps, in_background=on_gpu
    )


def _require_no_progress(folder: RunFolder, setup: TrainingSetup) -> None:
    """Check that a run without checkpoints has not got past its first one.

    Raises:
        DataError: It has, so its checkpoints are lost.
    """
    last = folder.metrics.last_step()
    # A step's line is written before its checkpoint, so a kill may leave exactly the first `save_every` lines.
    if last > setup.run.save_every:
        # A run that was killed before its first one may be told to save more often.
        changes = setup.recipe.changes(folder.root / RECIPE)
        before = next((change.before for change in changes if change.key == "run.save_every"), 0)
        if last <= before:
            return
        raise DataError(
            f"{folder.root}: metrics.jsonl has {last} steps, but there is no checkpoint in "
            f"{folder.root / 'checkpoints'}; put it back, or name a new run.dir to start again"
        )


def _require_same_model(checkpoint: Path, model: TrainedModelConfig) -> None:
    """Compare the model configurations, and whether an adapter is trained.

    Raises:
        DataError: They differ.
    """
    trains_adapter = model.lora is not None or is_adapter_folder(model.folder)
    is_adapter = is_adapter_folder(checkpoint)
    if trains_adapter != is_adapter:
        kinds = {True: "an adapter (LoRA)", False: "a whole model"}
        raise DataError(
            f"{checkpoint}: {kinds[is_adapter]}, the recipe trains {kinds[trains_adapter]}; it is of another run, name a new run.dir"
        )
    if is_adapter:
        base = whole_folder(model.folder)
        if whole_folder(checkpoint).resolve() != base.resolve():
            raise DataError(
                f"{checkpoint}: an adapter of the model in {whole_folder(checkpoint)}, the recipe's is in {base}; put "
                "back the base that the run began with, or name a new run.dir"
            )
    saved, expected = read_model_config(checkpoint), read_model_config(model.folder)
    for key in _SIZES:
        if key in saved and key in expected and saved[key] != expected[key]:
            raise DataError(
                f"{checkpoint}: of a model with {key} = {saved[key]!r}, that of model.path = {model.path} is "
                f"{expected[key]!r}; put back the model that the run began with, or name a new run.dir"
            )


def make_manifest(
    model: TrainedModelConfig, data: DataFiles | None, tokenizer: str, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return `made_from` and `made_with` of a training run: what it is made from besides its recipe, and with.

    Args:
        model: The recipe's model; its weights are the policy's start and the reference.
        data: Problems, demonstrations or pairs; None: the environment brings the problems.
        tokenizer: Fingerprint of the tokenizer.
        own: What else this kind of training is made from.

    Raises:
        DataError: A file cannot be read.
    """
    made_from = {
        "weights": checksums(model.folder),
        "model": model_files(model.folder),
        "tokenizer": tokenizer,
        "data": None if data is None else {"sha256": data_sha256(data)},
        **(own or {}),
    }
    return {"made_from": made_from, "made_with": [made_with(device_name(model.device))]}
