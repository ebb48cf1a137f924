"""Reads and writes recipes: TOML, `-s a.b=c` overrides, validation that reports all mistakes in one line."""

import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from ramify.config import shipped_recipes
from ramify.config.mistakes import FORM_KEYS, annotations_of, form_of, locate, mistakes_in
from ramify.core.errors import ConfigError, in_one_line

Recipe = TypeVar("Recipe", bound=BaseModel)


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


def load_tables(schema: type[Recipe], path: Path, overrides: Sequence[str]) -> Recipe:
    """As `load_recipe`, for a schema of some of the recipe's tables; the others are not checked.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    own = schema.model_fields
    for override in overrides:
        if override.partition("=")[0].partition(".")[0].strip() not in own:
            raise ConfigError(f"-s {override}: only keys of {', '.join(own)} are read here. Remove it.")
    tables = {name: table for name, table in read_toml(path).items() if name in own}
    return override_recipe(schema, tables, overrides, str(path))


def check_recipe(schema: type[Recipe], table: Mapping[str, Any], name: str) -> Recipe:
    """Check a table against a schema; `name` takes the place of the file in messages.

    Raises:
        ConfigError: As for `load_recipe`.
    """
    try:
        return schema.model_validate(dict(table))
    except ValidationError as error:
        wanted, meant = getattr(schema, "command", None), _commands_of(table)
        # To a recipe for DPO that lacks `beta` its mistakes say more, as to one with a table too many.
        if wanted is not None and meant and wanted not in meant and (wanted, meant) != ("dpo", ["sft"]):
            raise ConfigError(
                f"{name}: a recipe for ramify {meant[0]}, expected one for ramify {wanted}"
            ) from None
        raise ConfigError(" ".join(f"{name}: {in_one_line(mistakes_in(schema, error))}".split())) from None


def command_of(table: Mapping[str, Any]) -> str | None:
    """Return the command that a recipe is for, by a key that only recipes for it have; None without such a key."""
    return next(iter(_commands_of(table)), None)


def _commands_of(table: Mapping[str, Any]) -> list[str]:
    """Return the commands whose own keys a recipe has; a mistaken table may make them several."""
    if "selfcritic" in table:
        return ["selfcritic"]
    commands = []
    if "sampling" in table:
        data = table.get("data")
        commands.append("synth" if isinstance(data, Mapping) and "train" in data else "eval")
    if "rollout" in table:
        commands.append("train")
    learner = table.get("learner")
    if isinstance(learner, Mapping) and not learner.keys().isdisjoint(("beta", "batch_size")):
        commands.append("dpo" if "beta" in learner else "sft")
    return commands


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
        # Editors on Windows put a byte order mark in front.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, IsADirectoryError):
        inside = path / "recipe.toml"
        shipped = (
            [recipe.stem for recipe in shipped_recipes().glob("*.toml")] if path.parent == Path() else []
        )
        actual = "none"
        if inside.is_file():
            actual = f"a folder; the recipe of its run is {inside}"
        elif near := get_close_matches(path.stem, shipped, 1):
            actual = f"none, did you mean {near[0]}?"
        raise ConfigError(f"{path}: expected a recipe file, found {actual}") from None
    except OSError as error:
        raise ConfigError(f"{path}: expected a recipe file: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # Not only syntax errors: also numbers with thousands of digits, and thousands of nested brackets.
        is_foreign = path.suffix in (".yaml", ".yml", ".sh")
        hint = ". docs/coming-from.md has the keys of other trainers" if is_foreign else ""
        raise ConfigError(f"{path}: expected TOML: {error}{hint}") from None


def resolved(recipe: BaseModel) -> str:
    """Return the whole recipe with every default, as TOML that loads again; keys without a value are left out."""
    return tomli_w.dumps(_with_values(recipe.model_dump(mode="json")))


def _override(schema: type[BaseModel], recipe: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    text = text.strip()
    shown = " ".join(override.split())
    if not equals or not all(names):
        raise ConfigError(f"-s {shown}: expected key.name=value")
    if not text:
        _remove(schema, recipe, names)
        return
    table = recipe
    for name in names[:-1]:
        below = table.setdefault(name, {})
        if isinstance(below, str):
            # A short form such as `branching = "none"` becomes the table it stands for.
            below = table[name] = {"name": below}
        if not isinstance(below, dict):
            raise ConfigError(f"-s {key.strip()}: {name} is a value, not a table")
        table = below
    table[names[-1]] = read_value(text)
    if names[-1] in FORM_KEYS:
        _take_form(schema, names[:-1], table, names[-1])


def _remove(schema: type[BaseModel], recipe: dict[str, Any], names: Sequence[str]) -> None:
    """Remove a key. No table is made for it: an empty one such as [model.lora] has a meaning of its own."""
    table: Any = recipe
    for name in names[:-1]:
        table = table.get(name) if isinstance(table, dict) else None
    if isinstance(table, dict) and names[-1] in table:
        del table[names[-1]]
        return
    _, forms = locate((schema,), names[:-1])
    if not any(names[-1] in annotations_of(form) for form in forms):
        raise ConfigError(f"-s {'.'.join(names)}=: there is no such key to remove")


def _take_form(schema: type[BaseModel], names: Sequence[str], table: dict[str, Any], form_key: str) -> None:
    """After a change of `name`, `provider` or `type`, remove keys of the table that only its old form has."""
    _, forms = locate((schema,), names)
    known = {key for form in forms for key in annotations_of(form)}
    for form in forms:
        if table[form_key] in form_of(form)[1]:
            for key in table.keys() & known - annotations_of(form).keys():
                del table[key]


def read_value(text: str) -> Any:  # noqa: ANN401 - any TOML value
    """Read the value of an override; what is no TOML is a text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    # No key of a recipe takes a date or several lines; `run.dir=2026-01-01` is a folder.
    return text if len(parsed) > 1 or isinstance(value, date | datetime | time) else value


def _with_values(table: Any) -> Any:  # noqa: ANN401 - any TOML value
    """Return a value without the keys that are None, which TOML cannot write."""
    if isinstance(table, Mapping):
        return {key: _with_values(value) for key, value in table.items() if value is not None}
    return [*map(_with_values, table)] if isinstance(table, list) else table
