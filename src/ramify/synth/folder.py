"""The folder of a synthesis.

RUN/recipe.toml  manifest.json  trees/direct.jsonl  trees/tools.jsonl  trees/hints.jsonl; at the end, all at once or not at all,
questions.jsonl  sft.jsonl  rl.jsonl  rejected.jsonl  summary.json
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ramify.obs.trace import TracedTree, each_tree

Stage: TypeAlias = Literal["direct", "tools", "hints"]
"""A way of answering: without tools, with tools, or with tools after a hint."""

STAGES: tuple[Stage, ...] = get_args(Stage)


def stage_file(folder: Path, stage: Stage) -> Path:
    """Return the file with the trees of a stage."""
    return folder / "trees" / f"{stage}.jsonl"


def read_stage(folder: Path, stage: Stage) -> Iterator[TracedTree]:
    """Yield the trees of a stage in the order of the file, one after the other.

    Raises:
        DataError: A line is no tree; names file and row.
    """
    path = stage_file(folder, stage)
    if path.exists():
        yield from each_tree(path)
