"""Every number that a recipe can hold has two edges, and what lies beyond them is refused in one line with its key."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from math import inf, nan
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from ramify.algos.branch_rules import RandomConfig
from ramify.config.load import check_recipe
from ramify.config.mistakes import annotations_of, form_of, schemas_in
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe
from ramify.core.config import Config, Within
from ramify.core.errors import ConfigError

ABSURD = [1e300, -1e300, 10**23, -(10**23), 10**400, inf, -inf, nan, True, False]


def edges(annotation: Any, metadata: list[Any]) -> Iterator[tuple[type, list[Any]]]:
    """Every number within a type, with what is said about it."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        parts = [part for item in more for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        yield from edges(inner, metadata + parts)
    elif annotation in (int, float):
        yield annotation, metadata
    elif get_origin(annotation) in (Union, UnionType, tuple):
        for option in get_args(annotation):
            yield from edges(option, metadata if get_origin(annotation) is not tuple else [])


def all_schemas() -> list[Any]:
    reached: dict[Any, None] = {}
    waiting: list[Any] = [SelfCriticRecipe, TrainRecipe, EvalRecipe, SynthRecipe, SftRecipe, DpoRecipe]
    while waiting:
        schema = waiting.pop()
        if schema not in reached:
            reached[schema] = None
            waiting.extend(below for kind in annotations_of(schema).values() for below in schemas_in(kind))
    return sorted(reached, key=lambda schema: schema.__name__)


def metadata_of(schema: Any, name: str) -> list[Any]:
    """Return the metadata that pydantic keeps apart from the type of a section's key; a component's key has it in its type."""
    return schema.model_fields[name].metadata if issubclass(schema, BaseModel) else []


NUMBERS = [
    pytest.param(schema, name, id=f"{schema.__name__}.{name}")
    for schema in all_schemas()
    for name, kind in annotations_of(schema).items()
    if any(edges(kind, metadata_of(schema, name)))
]


@cache
def sample(schema: Any) -> dict[str, Any]:
    """A value that its type takes for every required key."""
    if issubclass(schema, BaseModel):
        required = [name for name, field in schema.model_fields.items() if field.is_required()]
    else:
        required = [f.name for f in fields(schema) if f.default is MISSING and f.default_factory is MISSING]
    kinds = annotations_of(schema)
    more: dict[str, Any] = {"rate": 0.5} if schema is RandomConfig else {}
    if form_of(schema)[1]:
        more[form_of(schema)[0]] = form_of(schema)[1][0]
    return {name: "http://127.0.0.1" if name == "url" else sample_of(kinds[name]) for name in required} | more


def sample_of(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return sample_of(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Config):
        return sample(annotation)
    options = [option for option in get_args(annotation) if option is not NoneType]
    return sample_of(options[0]) if options else {int: 1, float: 0.5}.get(annotation, "x")


@cache
def recipe_with(part: Any) -> type[BaseModel]:
    """A recipe with nothing but a table of this part."""
    return create_model("Recipe", part=(part, ...))


def test_the_walk_finds_what_it_is_for():
    reached = {parameter.id for parameter in NUMBERS}
    assert len(reached) > 90
    assert {
        "OptimizerConfig.betas",
        "SamplingSection.k",
        "ClippedSurrogate.dual_clip",
        "RunConfig.seed",
    } <= reached


@pytest.mark.parametrize(("schema", "name"), NUMBERS)
def test_a_number_has_a_least_and_a_greatest_value(schema, name):
    for _, parts in edges(annotations_of(schema)[name], metadata_of(schema, name)):
        (bounds,) = (item for item in parts if isinstance(item, Within))
        assert (bounds.ge is None) != (bounds.gt is None)
        assert (bounds.le is None) != (bounds.lt is None)


@pytest.mark.parametrize(("schema", "name"), NUMBERS)
def test_what_is_absurd_or_no_number_is_refused_by_name(schema, name):
    takes_several = get_origin(annotations_of(schema)[name]) is tuple
    key = rf"part\.{name}"
    # More than one mistake: all are told, each under its own key.
    several = rf"\d mistakes: \(1\) {key}\.0: expected .* \(2\) {key}\.1: expected "
    expected = rf"recipe\.toml: {several if takes_several else f'{key}: expected '}"
    for value in ABSURD:
        table = {**sample(schema), name: [value] * 2 if takes_several else value}
        with pytest.raises(ConfigError) as caught:
            check_recipe(recipe_with(schema), {"part": table}, "recipe.toml")
        assert re.match(expected, str(caught.value)), value
        assert "\n" not in str(caught.value), value
