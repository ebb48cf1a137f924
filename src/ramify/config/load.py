"""Reads recipes: TOML, `-s a.b=c` overrides, and validation that reports all mistakes in one line."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ramify.config.near_names import near_key, schemas_in
from ramify.config.toml_text import toml_text
from ramify.core.errors import ConfigError, in_one_line

Recipe = TypeVar("Recipe", bound=BaseModel)
Schemas: TypeAlias = Sequence[type[BaseModel]]

_PLAIN_WORDS = {
    "missing": "expected a value, found none",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "path_type": "expected a path",
}
_FORM_KEYS = ("name", "provider")
"""Keys whose value selects one of several schemas (forms) of a table."""
_NAMED_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*: ")


def load_recipe(schema: type[Recipe], path: Path, overrides: Sequence[str]) -> Recipe:
    """Read, override and check a recipe.

    Args:
        schema: The schema of the recipe.
        path: The TOML file.
        overrides: `a.b=c`, where c is a TOML value or else plain text; `a.b=` removes the key. Later ones win.

    Raises:
        ConfigError: One line that names the file, the key and what was expected.
    """
    return override_recipe(schema, read_toml(path), overrides, str(path))


def override_recipe(
    schema: type[Recipe], table: dict[str, Any], overrides: Sequence[str], name: str
) -> Recipe:
    """As `load_recipe`, for a recipe that is already a table; `name` takes the place of the file in messages.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    for override in overrides:
        _override(schema, table, override)
    return check_recipe(schema, table, name)


def check_recipe(schema: type[Recipe], table: Mapping[str, Any], name: str) -> Recipe:
    """Check a table against a schema; `name` takes the place of the file in messages.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    try:
        return schema.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(" ".join(f"{name}: {in_one_line(_mistakes(schema, error))}".split())) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: The file is missing or not TOML.
    """
    if path.suffix == ".json":
        raise ConfigError(
            f"{path}: expected a recipe in TOML; runs of versions that wrote recipe.json cannot be resumed"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        inside = path / "recipe.toml"
        found = f"a folder; the recipe of its run is {inside}" if inside.is_file() else "none"
        raise ConfigError(f"{path}: expected a recipe file, found {found}") from None
    except OSError as error:
        raise ConfigError(f"{path}: expected a recipe file: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # Not only syntax errors: also numbers with thousands of digits, and thousands of nested brackets.
        raise ConfigError(f"{path}: expected TOML: {error}") from None


def resolved(recipe: BaseModel) -> str:
    """The whole recipe with every default, as TOML that loads again."""
    return toml_text(recipe.model_dump(mode="json"))


def _override(schema: type[BaseModel], recipe: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    text = text.strip()
    shown = " ".join(override.split())
    if not equals or not all(names):
        raise ConfigError(f"-s {shown}: expected key.name=value")
    table = recipe
    for name in names[:-1]:
        below = table.setdefault(name, {})
        if isinstance(below, str):
            # A short form such as `branching = "none"` becomes the table it stands for.
            below = table[name] = {"name": below}
        if not isinstance(below, dict):
            raise ConfigError(f"-s {key.strip()}: {name} is a value, not a table")
        table = below
    if not text:
        table.pop(names[-1], None)
        return
    table[names[-1]] = _value(text)
    if names[-1] in _FORM_KEYS:
        _take_form(schema, names[:-1], table, names[-1])


def _take_form(schema: type[BaseModel], place: Sequence[str], table: dict[str, Any], form_key: str) -> None:
    """After a change of `name` or `provider`, remove keys of the table that only its old form has."""
    _, forms = _locate((schema,), place)
    known = {key for form in forms for key in form.model_fields}
    for form in forms:
        if table[form_key] in _form(form)[1]:
            for key in table.keys() & known - form.model_fields.keys():
                del table[key]


def _value(text: str) -> Any:  # noqa: ANN401 - any TOML value
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    # No key of a recipe takes a date or several lines; `run.dir=2026-01-01` is a folder.
    return text if len(parsed) > 1 or isinstance(value, date | datetime | time) else value


def _mistakes(schema: type[BaseModel], error: ValidationError) -> list[str]:
    """One line for each wrong key: unknown keys first, then in the order of the schema."""
    told: dict[str, list[str]] = {}
    meant: set[str] = set()
    # A misspelt required key is both unknown and missing. Only the first is reported, with a suggestion.
    for item in sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden"):
        place, schemas = _locate((schema,), item["loc"])
        key = ".".join(place) or "recipe"
        if item["type"] == "extra_forbidden":
            near = near_key(schema, _locate((schema,), item["loc"][:-1])[1], place)
            lines = [f"{key}: unknown key" + (f", did you mean {near}?" if near else "")]
            meant |= {str(near), ".".join([*place[:-1], str(near)])}
        elif item["type"] == "missing" and key in meant:
            continue
        else:
            lines = _described(schemas, place, item)
        # If a value fits none of several types, pydantic reports a mistake for each type; the first is enough.
        if not any(key == other or key.startswith(f"{other}.") for other in told):
            told[key] = lines
    return [line for lines in told.values() for line in lines]


def _described(schemas: Schemas, place: Sequence[str], mistake: ErrorDetails) -> list[str]:
    key = ".".join(place) or "recipe"
    if mistake["type"].startswith("union_tag"):
        names = ", ".join(name for s in schemas for name in _form(s)[1])
        form_key = _form(schemas[0])[0]
        given = (
            f"got {mistake['input'][form_key]!r}" if mistake["type"] == "union_tag_invalid" else "found none"
        )
        return [f"{key}.{form_key}: expected one of {names}, {given}"]
    message = _PLAIN_WORDS.get(mistake["type"], mistake["msg"].removeprefix("Value error, "))
    if mistake["type"] == "value_error":
        # A check across sections may have found several mistakes.
        return [_with_key(place, line) for line in message.split("\n")]
    message = re.sub("^Input should be (?=greater|less)", "expected a number ", message)
    message = re.sub("^Input should (be|have) ", "expected ", message)
    given = mistake["input"]
    told = mistake["type"] == "missing"
    got = "" if told else ", got a table" if isinstance(given, dict) else f", got {given!r}"
    return [f"{key}: {message[0].lower()}{message[1:]}{got}"]


def _with_key(place: Sequence[str], message: str) -> str:
    """Prefix a message with its place; a message of a table's check begins with the key that it is about."""
    if _NAMED_KEY.match(message):
        return ".".join([*place, message])
    return f"{'.'.join(place) or 'recipe'}: {message[0].lower()}{message[1:]}"


def _locate(schemas: Schemas, loc: Sequence[int | str]) -> tuple[list[str], Schemas]:
    """The key as a user writes it for pydantic's location, and the possible schemas there.

    For a table with several forms, pydantic's location contains the form's name as well.
    """
    key: list[str] = []
    for part in loc:
        form = [schema for schema in schemas if len(schemas) > 1 and part in _form(schema)[1]]
        if form:
            schemas = form
            continue
        if key and not schemas and isinstance(part, str):
            # For a key with several types, pydantic's location ends with the type's name.
            continue
        key.append(str(part))
        if isinstance(part, int):
            continue
        fields = [schema.model_fields[part] for schema in schemas if part in schema.model_fields]
        schemas = [option for field in fields for option in schemas_in(field.annotation)]
    return key, schemas


def _form(schema: type[BaseModel]) -> tuple[str, tuple[str, ...]]:
    """The key that selects the form of a table, and its values for this form."""
    for key in _FORM_KEYS:
        field = schema.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is Literal:
            return key, get_args(field.annotation)
    return _FORM_KEYS[0], ()
