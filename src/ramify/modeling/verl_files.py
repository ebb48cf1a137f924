"""Finds the files of a verl checkpoint; imports no torch, so that a wrong folder is reported at once.

    SAVE/latest_checkpointed_iteration.txt                      the newest step
    SAVE/global_step_N/actor/model_world_size_W_rank_R.pt       weights, one file for each of W ranks
    SAVE/global_step_N/actor/config.json, tokenizer ...         newer verl; older has them in actor/huggingface/
    SAVE/global_step_N/actor/lora_adapter/adapter_config.json   settings of a LoRA run, or actor/lora_train_meta.json

verl's supervised trainer writes the shards into `global_step_N` itself.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.files.untrusted import read_small_file
from ramify.modeling.model_config import ADAPTER_SETTINGS, read_object_file

LATEST = "latest_checkpointed_iteration.txt"
_SHARD = re.compile(r"model_world_size_([1-9]\d{0,5})_rank_(0|[1-9]\d{0,5})\.pt")
_STEP = re.compile(r"global_step_([0-9]{1,15})")
_LORA_META = "lora_train_meta.json"
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class VerlCheckpoint:
    """The shards of one step.

    Attributes:
        folder: The folder with the shards.
        step: The step; None if no folder's name tells it.
        shards: The file of each rank, from rank 0.
    """

    folder: Path
    step: int | None
    shards: tuple[Path, ...]


def find_checkpoint(path: Path) -> VerlCheckpoint:
    """Return the checkpoint at `path`: a folder of shards, the `global_step_N` above it, or the save folder (its newest step).

    Raises:
        DataError: There is none, a rank's file is missing, or files of several world sizes are mixed.
    """
    if not path.is_dir():
        raise DataError(f"{path}: {'is a file' if path.exists() else 'no such folder'}, expected {_EXPECTED}")
    folder = _folder_of_shards(path)
    resolved = folder.resolve()
    names = (resolved.name, resolved.parent.name)
    step = next((int(m[1]) for name in names if (m := _STEP.fullmatch(name))), None)
    return VerlCheckpoint(folder, step, _shards(folder))


_EXPECTED = f"a verl checkpoint: global_step_N, its actor folder, or the folder with {LATEST}"


def settings_folders(checkpoint: VerlCheckpoint, config: Path | None) -> tuple[Path, ...]:
    """Return the folders that may have the configuration and the tokenizer, the first one with `config.json`.

    Args:
        checkpoint: The checkpoint.
        config: The folder that the user names; it comes first.

    Raises:
        DataError: None of them has a `config.json`, or the named one has none.
    """
    own = (checkpoint.folder, checkpoint.folder / "huggingface")
    if config is not None:
        if not (config / "config.json").is_file():
            raise DataError(
                f"--config {config}: no config.json there. Name the folder of the model that was trained"
            )
        return (config, *own)
    folders = tuple(sorted(own, key=lambda folder: not (folder / "config.json").is_file()))
    if not (folders[0] / "config.json").is_file():
        raise DataError(
            f"{checkpoint.folder}: no config.json there or in huggingface. Set --config to the folder of the model "
            "that was trained"
        )
    return folders


@dataclass(frozen=True, slots=True)
class LoraScale:
    """Rank and alpha of a LoRA run, and the file that names them."""

    rank: int
    alpha: float
    path: Path


def read_lora_scale(checkpoint: VerlCheckpoint) -> LoraScale:
    """Return the rank and alpha of the adapter.

    Raises:
        DataError: The settings are missing, or of another kind than plain LoRA.
    """
    candidates = (checkpoint.folder / "lora_adapter" / ADAPTER_SETTINGS, checkpoint.folder / _LORA_META)
    path = next((file for file in candidates if file.is_file()), None)
    if path is None:
        raise DataError(
            f"{checkpoint.folder}: neither lora_adapter/{ADAPTER_SETTINGS} nor {_LORA_META}, so the adapter's alpha is not "
            f'known. Write {{"r": RANK, "lora_alpha": ALPHA}} into {_LORA_META} there'
        )
    record = read_object_file(path)
    for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias"):
        if record.get(key):
            raise DataError(f"{path}: {key} = {record[key]!r:.80} is not supported, expected plain LoRA")
    rank, alpha = record.get("r"), record.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise DataError(f"{path}: r = {rank!r:.80}, expected a whole number of at least 1")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1e6:
        raise DataError(f"{path}: lora_alpha = {alpha!r:.80}, expected a number above 0")
    return LoraScale(rank, float(alpha), path)


def _folder_of_shards(path: Path) -> Path:
    if _shard_files(path):
        return path
    if (path / "actor").is_dir():
        return path / "actor"
    latest = path / LATEST
    if latest.is_file():
        text = read_small_file(latest).decode("ascii", "replace").strip()
        if not re.fullmatch(r"[0-9]{1,15}", text):
            raise DataError(f"{latest}: expected the number of a step, found {text[:40]!r}")
        newest = path / f"global_step_{int(text)}"
        if not newest.is_dir():
            raise DataError(
                f"{latest}: names step {int(text)}, but {newest.name} is missing. Name one of the folders that are "
                f"there: {_listed(_steps(path)) or 'none'}"
            )
        return newest / "actor" if (newest / "actor").is_dir() else newest
    if steps := _steps(path):
        raise DataError(f"{path}: no {LATEST}. Name one of its checkpoints: {_listed(steps)}")
    return path


def _shards(folder: Path) -> tuple[Path, ...]:
    files = _shard_files(folder)
    if not files:
        other = ""
        if (folder / "dist_ckpt").exists() or any(folder.glob("mp_rank_*")):
            other = " (it looks like one of the Megatron backend, which is not read)"
        raise DataError(
            f"{folder}: no model_world_size_W_rank_R.pt there, expected {_EXPECTED}, of the FSDP backend{other}"
        )
    worlds = sorted({world for world, _ in files})
    if len(worlds) > 1:
        raise DataError(
            f"{folder}: shards of world sizes {' and '.join(map(str, worlds))} are mixed. Keep those of one run only"
        )
    world = worlds[0]
    missing = [str(rank) for rank in range(world) if (world, rank) not in files]
    if missing:
        ranks = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {_listed(missing)}"
        raise DataError(
            f"{folder}: {ranks} of {world} missing (model_world_size_{world}_rank_{missing[0]}.pt). Copy the files of all "
            "nodes into one folder"
        )
    if others := sorted(rank for _, rank in files if rank >= world):
        raise DataError(f"{folder}: rank {others[0]} of world size {world}, expected ranks 0 to {world - 1}")
    return tuple(files[world, rank] for rank in range(world))


def _shard_files(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the files of shards by world size and rank."""
    matches = ((_SHARD.fullmatch(file.name), file) for file in folder.iterdir())
    return {(int(match[1]), int(match[2])): file for match, file in matches if match and file.is_file()}


def _steps(folder: Path) -> list[str]:
    names = (file.name for file in folder.iterdir() if _STEP.fullmatch(file.name))
    return sorted(names, key=lambda name: int(name.rpartition("_")[2]))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
