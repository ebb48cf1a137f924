"""Recorded trees by name: a run's folder or a file of trees, the step, and the tree's place in the step's file, from 0.

And commands that act on one, for people to copy from a page. A template is shell text with blanks: {node} for the id of a node, {leaf}
and {other} for ids of leaves. Folders that do not exist yet are named after the tree.
"""

import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ramify.core.errors import ConfigError, DataError
from ramify.core.tree import Node, Tree
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
    there = (
        f"has steps {steps[0]} to {steps[-1]}. Choose one of them."
        if steps
        else "has no steps. Leave --step out"
    )
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


def require_tokenizer(where: object, prompt: Node, decode: Callable[[Sequence[int]], str]) -> None:
    """Check that a recorded prompt is of the model's tokenizer, whose `decode` gives the text of tokens.

    Raises:
        DataError: It is of another one; `where` begins the message.
    """
    if decode(prompt.token_ids) != prompt.text:
        raise DataError(
            f"{where}: its tokens are those of another model's tokenizer. Use the model that wrote them."
        )


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


@dataclass(frozen=True, slots=True)
class Action:
    """A command with blanks.

    Attributes:
        name: Its purpose, for people.
        template: The shell text.
    """

    name: str
    template: str


def tree_actions(trace: Path, tree: int) -> tuple[Action, ...]:
    """Return what one can do with the tree at a place of a file, from 0; fewer things where its run has no recipe."""
    recipe, name = recipe_of(trace), f"{trace.stem}-{tree}"
    at = f"{shlex.quote(f'{trace}')} --tree {tree}"
    # Two leaves make a pair without the run's recipe only if its tokenizer is named.
    pair = f"ramify pairs {at} --chosen {{leaf}} --rejected {{other}} --out pair-{name}.jsonl"
    if recipe is None:
        return (Action("make a pair", f"{pair} --model MODEL"),)
    table = _tables(recipe)
    actions = [
        Action("rescore", f"ramify score {at} --reward {shlex.quote(f'{recipe}')}"),
        Action("make a pair", pair),
    ]
    if not table & {"environment", "environments"}:
        actions.append(Action("turn into a test", f"ramify case {at} --leaf {{leaf}} --out case-{name}"))
    if "rollout" in table:
        start = shlex.quote(f"{trace}:{tree}/")
        weights = weights_of(trace)
        model = "" if weights is None else f" -s model.path={shlex.quote(f'{weights}')}"
        grow = (
            f"ramify rollout {shlex.quote(f'{recipe}')} --from {start}{{node}} -s run.dir=again-{name}{model}"
        )
        actions.insert(0, Action("grow again from here", grow))
    return tuple(actions)


@lru_cache(maxsize=16)
def _tables(recipe: Path) -> frozenset[str]:
    """Return the names of a recipe's tables that are not empty."""
    try:
        tables = tomllib.loads(recipe.read_text(encoding="utf-8"))
        return frozenset(name for name, table in tables.items() if table)
    except (OSError, ValueError):
        return frozenset()


def weights_of(trace: Path) -> Path | None:
    """Return the last checkpoint at or before the weights that a step's trees were sampled from; None: the recipe's model."""
    if not trace.stem.isdigit():
        return None
    # A step samples before its update, an evaluation after it.
    updates = int(trace.stem) - (trace.parent.name != "evals")
    saved = [
        (int(folder.name.removeprefix("step-")), folder)
        for folder in (trace.parent.parent / "checkpoints").glob("step-*")
        if folder.name.removeprefix("step-").isdigit()
    ]
    before = [each for each in saved if each[0] <= updates]
    return max(before)[1] if before else None
