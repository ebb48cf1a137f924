"""Detects problems of an evaluation in the training data of the model, if its run's folder names them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.obs.manifest import MANIFEST

_MAX_PARENTS = 3
"""Depth of a model inside the folder of its run, at most: RUN/checkpoints/step-000010/."""


def training_overlap_notes(model: Path, problems: Sequence[Problem]) -> tuple[str, ...]:
    """A note if some of the problems are in the training data of the run that made `model`.

    Checks only that run, not earlier ones. Gives no note if the model is not from a run, or saw none of the problems.
    """
    from ramify.data.overlap import read_questions, without_questions

    found = _training_data(model)
    if found is None:
        return ()
    train, exclude = found
    try:
        folded = read_questions([train]) - read_questions(exclude)
    except DataError as error:
        return (f"not checked whether {model} was trained on these problems: {error}",)
    seen = len(problems) - len(without_questions(problems, folded))
    if not seen:
        return ()
    return (
        f"{seen} of {len(problems)} problems are in {train}, which {model} was trained on; their scores measure "
        "memory too",
    )


def _training_data(model: Path) -> tuple[str, tuple[str, ...]] | None:
    """`data.train` and `data.exclude` of the run whose folder `model` is in; None if it is in none."""
    for folder in (model, *model.parents[:_MAX_PARENTS]):
        recipe = folder / "recipe.toml"
        # A recipe without a manifest beside it is the user's own file, not a run's.
        if recipe.is_file() and (folder / MANIFEST).is_file():
            try:
                data = tomllib.loads(recipe.read_text(encoding="utf-8"))["data"]
                return str(data["train"]), tuple(map(str, data.get("exclude", ())))
            except (ValueError, KeyError, TypeError):
                return None
    return None
