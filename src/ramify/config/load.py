"""Reading a recipe: TOML, `-s a.b=c` overrides, validation with one line for each mistake."""

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ramify.core.errors import ConfigError

Recipe = TypeVar("Recipe", bound=BaseModel)


def load_recipe(schema: type[Recipe], path: Path, overrides: Sequence[str]) -> Recipe:
    """Read, override and check a recipe.

    Args:
        schema: What it must look like.
        path: The TOML file.
        overrides: `a.b=c`, where c is a TOML value or else plain text.

    Raises:
        ConfigError: One line that names the file, the key and what was expected.
    """
    table = read_toml(path)
    for override in overrides:
        _override(table, override)
    return check_recipe(schema, table, str(path))


def check_recipe(schema: type[Recipe], table: Mapping[str, Any], name: str) -> Recipe:
    """Check a table against a schema; `name` stands for the file in messages.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    try:
        return schema.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(f"{name}: {_first_mistake(schema, error)}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: It is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise ConfigError(f"{path}: expected a recipe file, found none") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from None


def resolved(recipe: BaseModel) -> str:
    """The whole recipe with every default, as JSON."""
    return json.dumps(recipe.model_dump(mode="json"), indent=2)


def _override(table: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"-s {override}: expected key.name=value")
    for name in names[:-1]:
        below = table.setdefault(name, {})
        if isinstance(below, str):
            # A short form such as `branching = "none"` becomes the table it stands for.
            below = table[name] = {"name": below}
        if not isinstance(below, dict):
            raise ConfigError(f"-s {override}: {name} is a value, not a table")
        table = below
    try:
        table[names[-1]] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[names[-1]] = text


def _first_mistake(schema: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    key = ".".join(place) or "recipe"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(place[-1], _known_keys(schema, place[:-1]), n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        return f"{key}: unknown key{hint}"
    if first["type"] == "missing":
        return f"{key}: expected a value, found none"
    message = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    shown = "" if isinstance(given, dict | BaseModel) else f", got {given!r}"
    return f"{key}: {message[0].lower()}{message[1:]}{shown}"


def _known_keys(schema: type[BaseModel], place: Sequence[str]) -> list[str]:
    """Keys of the table at `place`, as far as it is the same in every form of the recipe."""
    current: type[BaseModel] = schema
    for name in place:
        field = current.model_fields.get(name)
        if field is None:
            continue
        options = [field.annotation, *getattr(field.annotation, "__args__", ())]
        models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not models:
            return []
        current = models[0]
    return list(current.model_fields)
