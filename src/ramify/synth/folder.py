"""The folder of a synthesis.

RUN/recipe.toml  manifest.json  trees/direct.jsonl  trees/tools.jsonl  trees/hints.jsonl; at the end, all at once or not at all,
questions.jsonl  sft.jsonl  rl.jsonl  rejected.jsonl  summary.json
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ramify.core.errors import ConfigError
from ramify.obs.files import RECIPE, entries, require_plain_files
from ramify.obs.manifest import MANIFEST
from ramify.obs.trace import TracedTree, each_tree

Stage: TypeAlias = Literal["direct", "tools", "hints"]
"""What a question is answered with: nothing, tools, or tools after a hint."""

STAGES: tuple[Stage, ...] = get_args(Stage)
TREES = "trees"
RESULTS = ("questions.jsonl", "sft.jsonl", "rl.jsonl", "rejected.jsonl", "summary.json")


def stage_file(folder: Path, stage: Stage) -> Path:
    """The file with the trees of a stage."""
    return folder / TREES / f"{stage}.jsonl"


def read_stage(folder: Path, stage: Stage) -> Iterator[TracedTree]:
    """The trees of a stage in the order of the file, one after the other.

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
    if not path.exists():
        return
    names = entries(path) if path.is_dir() else frozenset({""})
    if TREES in names and (path / TREES).is_dir() and not entries(path / TREES):
        # The first answer never came.
        names -= {TREES}
    if not names <= {RECIPE, MANIFEST, TREES, *RESULTS}:
        raise ConfigError(f"run.dir: {path} exists and is not empty; expected a new or empty folder")
    if names - {RECIPE, MANIFEST} and not resume:
        raise ConfigError(f"run.dir: {path} holds a synthesis; go on with --resume or name a new folder")
    require_plain_files("run.dir", path)
    for name in sorted(names):
        if (path / name).is_dir() != (name == TREES):
            raise ConfigError(f"run.dir: {path / name} is not what ramify wrote; move it away")
