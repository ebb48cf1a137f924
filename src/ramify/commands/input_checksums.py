"""Checksums of the files that recipes name: data, models, corpora, scripts, functions."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ramify.commands.check_files import input_files
from ramify.config.schema_parts import Section
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import DataError
from ramify.data.benchmarks import parse_dataset
from ramify.data.sources import Data, Split, data_files, is_on_hub, sources
from ramify.modeling.model_config import whole_folder
from ramify.modeling.model_path import is_fetched
from ramify.runs.manifest import file_sha256

_DIGITS = 16
_OF_A_MODEL = ("*.safetensors", "*.bin", "*.gguf", "config.json", "adapter_config.json", "tokenizer.json")


def input_checksums(recipe: TrainRecipe, known: dict[Path, str]) -> Mapping[str, str]:
    """Return a checksum of what each key names; without files that are not there, and what the hub does not give.

    `known` has those of files and folders that were read before, and gets those that are read now.
    """
    paths: dict[str, list[Path]] = {}
    # A model that is not here belongs to runs that ended, or is refused where it is needed.
    with suppress(DataError):
        paths["model.path"] = list(_model_files(recipe))
    data: dict[str, tuple[Data, Split]] = {
        "data.train": (recipe.data.train or (), "train"),
        "data.exclude": (tuple(recipe.data.exclude), "test"),
    }
    if recipe.eval is not None:
        benchmarks = [parse_dataset(source) or ("", source) for source in sources(recipe.eval.test)]
        data["eval.test"] = tuple(location for _, location in benchmarks), "test"
    for key, (named, split) in data.items():
        with suppress(DataError):
            paths[key] = [path for source in sources(named) for path in _paths(source, split)]
    for key, path in input_files("", recipe):
        paths.setdefault(key, []).append(path)
    present = {key: each for key, each in paths.items() if each and all(path.exists() for path in each)}
    return {
        key: _together([_of_path(path, known) for path in each])[:_DIGITS] for key, each in present.items()
    }


def file_checksums(recipe: Section) -> Mapping[str, str]:
    """Return a checksum by name of each file and folder that a recipe or a part of one acts with, and of its model's files."""
    # A cassette or an index is written by the run itself, and is no input.
    paths = [path for _, path in input_files("", recipe)]
    if isinstance(recipe, TrainRecipe):
        paths += _model_files(recipe)
    known: dict[Path, str] = {}
    return {f"{path}": _of_path(path, known)[:_DIGITS] for path in paths if path.exists()}


def _paths(source: str, split: Split) -> Sequence[Path]:
    # What is on the hub can change between two sessions too.
    return data_files(source, split) if is_on_hub(source) else (Path(source),)


def _model_files(recipe: TrainRecipe) -> Iterator[Path]:
    """Yield the files that make a model, and those of an adapter's base; others in its folder say when and where it was trained."""
    if is_fetched(recipe.model.path, weights=True):
        folder = recipe.model.folder
        for each in dict.fromkeys((whole_folder(folder), folder)):
            yield from sorted(file for pattern in _OF_A_MODEL for file in each.glob(pattern))


def _of_path(path: Path, known: dict[Path, str]) -> str:
    if path not in known:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        known[path] = _together([file_sha256(file) for file in files])
    return known[path]


def _together(checksums: list[str]) -> str:
    if len(checksums) == 1:
        return checksums[0]
    return hashlib.sha256(" ".join(checksums).encode()).hexdigest()
