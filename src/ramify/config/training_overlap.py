"""Whether a model was trained on the problems that it is evaluated on, as far as its run's folder tells."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.obs.manifest import MANIFEST

_MAX_PARENTS = 3
"""RUN/checkpoints/step-000010/: a model lies at most so deep in the folder of its run."""


def training_overlap_notes(model: Path, problems: Sequence[Problem]) -> tuple[str, ...]:
    """What is to be said of the problems that stand in the training data of the run that made `model`.

    Only that run is looked at, not what the model was before. Nothing is said of a model that no run made, or of one
    that saw none of the problems.
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
        f"{seen} of {len(problems)} problems stand in {train}, which {model} was trained on; their scores measure "
        "memory too",
    )


def _training_data(model: Path) -> tuple[str, tuple[str, ...]] | None:
    """`data.train` and `data.exclude` of the run that `model` lies in; None outside of a run."""
    for folder in (model, *model.parents[:_MAX_PARENTS]):
        recipe = folder / "recipe.toml"
        # A recipe without a manifest beside it is a file of the user's.
        if recipe.is_file() and (folder / MANIFEST).is_file():
            try:
                data = tomllib.loads(recipe.read_text(encoding="utf-8"))["data"]
                return str(data["train"]), tuple(map(str, data.get("exclude", ())))
            except (ValueError, KeyError, TypeError):
                return None
    return None
