"""Commands that act on a recorded tree, for people to copy from a page.

A template is shell text with blanks: {node} for the id of a node, {leaf} and {other} for ids of leaves. Folders that do not
exist yet are named after the tree.
"""

import shlex
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ramify.runs.recorded_trees import recipe_of


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
