"""Describes the mistakes of a recipe in a user's words, and suggests what an unknown key was meant to be."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ramify.core.config import Config, in_words

Schema: TypeAlias = type[BaseModel] | type[Config]
"""The schema of a table: a section, or the settings that a component owns."""
Schemas: TypeAlias = Sequence[Schema]

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
FORM_KEYS = ("name", "provider", "type")
"""Keys whose value selects one of several schemas (forms) of a table."""

_ELSEWHERE = {
    theirs: ours
    for line in """
rate: learning_rate lr
warmup_steps: warmup num_warmup_steps
max_grad_norm: clip_grad_norm gradient_clip
path: model_name_or_path name_or_path
dtype: torch_dtype
rank: lora_rank r
alpha: lora_alpha
targets: target_modules
epochs: num_epochs num_train_epochs
steps: max_steps total_steps
dir: output_dir
save_every: save_steps
train: train_files
max_tokens: max_length max_response_length max_new_tokens
max_prompt_tokens: max_prompt_length
problems_per_step: train_batch_size
problems_per_minibatch: mini_batch_size
n: num_generations group_size rollout_n
m: initial_rollouts
children: beam_size
""".strip().splitlines()
    for ours, others in [line.split(": ")]
    for theirs in others.split()
}
"""Keys of other trainers, and our names for them."""


def mistakes_in(schema: Schema, error: ValidationError) -> list[str]:
    """One line for each wrong key: unknown keys first, then in the order of the schema."""
    lines_by_key: dict[str, list[str]] = {}
    meant: set[str] = set()
    # A misspelt required key is both unknown and missing. Only the first is reported, with a suggestion.
    for item in sorted(error.errors(), key=lambda item: item["type"] not in _UNKNOWN):
        names, schemas = locate((schema,), item["loc"])
        key = ".".join(names) or "recipe"
        if item["type"] in _UNKNOWN:
            near = _near_key(schema, locate((schema,), item["loc"][:-1])[1], names)
            lines = [f"{key}: unknown key" + (f", did you mean {near}?" if near else "")]
            meant |= {str(near), ".".join([*names[:-1], str(near)])}
        elif item["type"] == "missing" and key in meant:
            continue
        else:
            lines = _described(schemas, names, item)
        # If a value fits none of several types, pydantic reports a mistake for each type; the first is enough.
        if not any(key == other or key.startswith(f"{other}.") for other in lines_by_key):
            lines_by_key[key] = lines
    return [line for lines in lines_by_key.values() for line in lines]


def _described(schemas: Schemas, path: Sequence[str], mistake: ErrorDetails) -> list[str]:
    if mistake["type"].startswith("union_tag"):
        names = ", ".join(name for s in schemas for name in form_of(s)[1])
        form_key = form_of(schemas[0])[0]
        actual = (
            f"got {mistake['input'][form_key]!r}" if mistake["type"] == "union_tag_invalid" else "found none"
        )
        return [f"{'.'.join(path) or 'recipe'}.{form_key}: expected one of {names}, {actual}"]
    return in_words(".".join(path), mistake)


def locate(schemas: Schemas, loc: Sequence[int | str]) -> tuple[list[str], Schemas]:
    """The key as a user writes it for pydantic's location, and the possible schemas there.

    For a table with several forms, pydantic's location contains the form's name as well.
    """
    key: list[str] = []
    for part in loc:
        form = [schema for schema in schemas if len(schemas) > 1 and part in form_of(schema)[1]]
        if form:
            schemas = form
            continue
        if key and not schemas and isinstance(part, str):
            # For a key with several types, pydantic's location ends with the type's name.
            continue
        key.append(str(part))
        if isinstance(part, int):
            continue
        schemas = [option for schema in schemas for option in schemas_in(annotations_of(schema).get(part))]
    return key, schemas


def form_of(schema: Schema) -> tuple[str, tuple[str, ...]]:
    """The key that selects the form of a table, and its values for this form."""
    for key in FORM_KEYS:
        annotation = annotations_of(schema).get(key)
        if get_origin(annotation) is Literal:
            return key, get_args(annotation)
    return FORM_KEYS[0], ()


def _near_key(recipe: Schema, table: Schemas, path: Sequence[str]) -> str | None:
    """The key closest to the last name of `path`: in the same table, or else anywhere in the recipe.

    Args:
        recipe: The schema of the whole recipe.
        table: The possible schemas of the table with the unknown key.
        path: Names of the tables and, last, of the unknown key.

    Returns:
        A key of the table, or a dotted key of the recipe; None if nothing is close.
    """
    name = path[-1]
    known = [key for schema in table for key in annotations_of(schema)]
    ours = _ELSEWHERE.get(name, name)
    if ours in known:
        return ours
    if near := difflib.get_close_matches(name, known, n=1):
        return near[0]
    inside = ".".join(path[:-1])
    namesakes = {key for key in _keys(recipe) if key.rpartition(".")[2] == ours} - {".".join(path)}
    others = sorted(namesakes, key=lambda key: (len(key), key))
    # Keys below the user's table come first.
    others.sort(key=lambda key: not key.startswith(f"{inside}."))
    return others[0] if others else None


def _keys(schema: Schema, prefix: str = "") -> Iterator[str]:
    for name, annotation in annotations_of(schema).items():
        yield f"{prefix}{name}"
        for below in schemas_in(annotation):
            yield from _keys(below, f"{prefix}{name}.")


def schemas_in(annotation: Any) -> list[Schema]:  # noqa: ANN401 - any annotation
    """The schemas of tables in a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Config):
        return [annotation]
    return [schema for option in get_args(annotation) for schema in schemas_in(option)]


def annotations_of(schema: Schema) -> dict[str, Any]:
    """The types of a table's keys."""
    if issubclass(schema, BaseModel):
        return {name: field.annotation for name, field in schema.model_fields.items()}
    return {field.name: field.type for field in fields(schema)}
