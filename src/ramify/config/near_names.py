"""Suggests what a user meant by an unknown key: a similar spelling, or our name for another trainer's key."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

_ELSEWHERE = {
    "learning_rate": "rate",
    "lr": "rate",
    "warmup": "warmup_steps",
    "num_warmup_steps": "warmup_steps",
    "clip_grad_norm": "max_grad_norm",
    "gradient_clip": "max_grad_norm",
    "model_name_or_path": "path",
    "name_or_path": "path",
    "torch_dtype": "dtype",
    "lora_rank": "rank",
    "r": "rank",
    "lora_alpha": "alpha",
    "target_modules": "targets",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "total_steps": "steps",
    "output_dir": "dir",
    "save_steps": "save_every",
    "train_files": "train",
    "max_length": "max_tokens",
    "max_response_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_prompt_length": "max_prompt_tokens",
    "train_batch_size": "problems_per_step",
    "mini_batch_size": "problems_per_minibatch",
    "num_generations": "n",
    "group_size": "n",
    "rollout_n": "n",
    "initial_rollouts": "m",
    "beam_size": "children",
}
"""Keys of other trainers, and our names for them."""


def near_key(recipe: type[BaseModel], table: Sequence[type[BaseModel]], place: Sequence[str]) -> str | None:
    """The key closest to the last name of `place`: in the same table, or else anywhere in the recipe.

    Args:
        recipe: The schema of the whole recipe.
        table: The possible schemas of the table with the unknown key.
        place: Names of the tables and, last, of the unknown key.

    Returns:
        A key of the table, or a dotted key of the recipe; None if nothing is close.
    """
    name = place[-1]
    known = [key for schema in table for key in schema.model_fields]
    ours = _ELSEWHERE.get(name, name)
    if ours in known:
        return ours
    if near := difflib.get_close_matches(name, known, n=1):
        return near[0]
    inside = ".".join(place[:-1])
    found = {key for key in _keys(recipe) if key.rpartition(".")[2] == ours} - {".".join(place)}
    others = sorted(found, key=lambda key: (len(key), key))
    # Keys below the user's table come first.
    others.sort(key=lambda key: not key.startswith(f"{inside}."))
    return others[0] if others else None


def _keys(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        for below in schemas_in(field.annotation):
            yield from _keys(below, f"{prefix}{name}.")


def schemas_in(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - any annotation
    """The schemas of tables in a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for option in get_args(annotation) for found in schemas_in(option)]
