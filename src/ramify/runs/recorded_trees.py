"""Recorded trees by name: a run's folder or a file of trees, the step, and the tree's place in the step's file, from 0."""

from pathlib import Path

from ramify.core.errors import ConfigError, DataError
from ramify.core.tree import Tree
from ramify.files.durable import RECIPE
from ramify.obs import trace_index
from ramify.obs.trace import TracedTree

_MAX_PARENTS = 4
"""Folders above a file of trees, up to that of its run, at most: RUN/cycle-01/rl/trees/000001.jsonl."""


def trace_files(source: Path) -> list[Path]:
    """Return the files of trees of a run folder, in order, or the file itself.

    Raises:
        ConfigError: There is none.
    """
    if source.is_file():
        return [source]
    files = [*trace_index.trace_files(source / "trees")]
    files += [source / "trees.jsonl"] if (source / "trees.jsonl").is_file() else []
    if not files:
        raise ConfigError(f"{source}: expected a run folder with trees, or a file of trees, found none")
    return files


def trace_of(source: Path, step: int | None) -> Path:
    """Return the file of a step's trees; without a step the last one.

    Raises:
        ConfigError: There is none.
    """
    files = trace_files(source)
    if step is None:
        return files[-1]
    for file in files:
        if file.stem == f"{step:06d}":
            return file
    steps = [file.stem.lstrip("0") for file in files if file.stem.isdigit()]
    there = f"has steps {steps[0]} to {steps[-1]}" if steps else "has no steps. Leave --step out"
    raise ConfigError(f"--step {step}: {source} {there}")


def tree_at(path: Path, number: int) -> TracedTree:
    """Return the tree at a place of a file, from 0.

    Raises:
        DataError: There is no such tree, or the file cannot be read.
    """
    count = 0
    for summary in trace_index.each_summary(path):
        if count == number:
            return trace_index.read_tree(path, summary)
        count += 1
    raise DataError(f"{path}: it has no tree {number}; it has {f'0 to {count - 1}' if count else 'none'}")


def trajectory_at(tree: Tree, leaf: str) -> int:
    """Return the place of the trajectory that ends at a leaf among those of its tree.

    Raises:
        DataError: There is no such leaf.
    """
    leaves = [trajectory.leaf.id for trajectory in tree.trajectories]
    if leaf not in leaves:
        raise DataError(
            f"problem {tree.problem.id!r}: its tree has no leaf {leaf!r}. Choose one of {', '.join(leaves)}"
        )
    return leaves.index(leaf)


def recipe_of(source: Path) -> Path | None:
    """Return the recipe of a run, or of the run that a file of trees lies in; None if there is none."""
    folders = [source, *source.absolute().parents[:_MAX_PARENTS]]
    return next((folder / RECIPE for folder in folders if (folder / RECIPE).is_file()), None)
