"""The folder of a synthesis.

RUN/recipe.toml  manifest.json  trees/direct.jsonl  trees/tools.jsonl  trees/hints.jsonl; at the end, all at once or not at all,
questions.jsonl  sft.jsonl  rl.jsonl  rejected.jsonl  summary.json
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ramify.core.errors import ConfigError
from ramify.files.durable import RECIPE
from ramify.obs.trace import TracedTree, each_tree
from ramify.runs.claims import RunKind
from ramify.runs.manifest import MANIFEST

Stage: TypeAlias = Literal["direct", "tools", "hints"]
"""A way of answering: without tools, with tools, or with tools after a hint."""

STAGES: tuple[Stage, ...] = get_args(Stage)
TREES = "trees"
RESULTS = ("questions.jsonl", "sft.jsonl", "rl.jsonl", "rejected.jsonl", "summary.json")


def _has_begun(path: Path) -> bool:
    """Return True if a folder holds the first line of an answer, or results."""
    stages = [stage_file(path, stage) for stage in STAGES]
    return any(file.is_file() and file.stat().st_size > 0 for file in stages) or any(
        (path / name).exists() for name in RESULTS
    )


SYNTHESIS = RunKind("synthesis", "a synthesis", _has_begun)


def stage_file(folder: Path, stage: Stage) -> Path:
    """Return the file with the trees of a stage."""
    return folder / TREES / f"{stage}.jsonl"


def read_stage(folder: Path, stage: Stage) -> Iterator[TracedTree]:
    """Yield the trees of a stage in the order of the file, one after the other.

    Raises:
        DataError: A line is no tree; names file and row.
    """
    path = stage_file(folder, stage)
    if path.exists():
        yield from each_tree(path)


def check_synth_folder(path: Path, resume: bool) -> None:
    """Check that a synthesis may use the folder, without writing anything.

    Raises:
        ConfigError: It holds other files or links, or it holds a synthesis and `resume` is false.
    """
    SYNTHESIS.check(path, resume)
    for name in (RECIPE, MANIFEST, TREES, *RESULTS):
        if (path / name).exists() and (path / name).is_dir() != (name == TREES):
            raise ConfigError(f"run.dir: {path / name} was not written by ramify. Remove it")
