"""Writes docs/reference: commands with their options, keys of recipes, Python names, from the parsers, schemas and docstrings.

`--check` writes nothing and fails if a page is not what it would write.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import docstring_parser
from pydantic import TypeAdapter

import ramify
from ramify.cli import COMMANDS
from ramify.commands.parser import make_parser
from ramify.config.schema_eval import EvalRecipe, JudgingSection
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import SelfCriticRecipe, TrainRecipe

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
RECIPES = {
    "train": TrainRecipe,
    "sft": SftRecipe,
    "dpo": DpoRecipe,
    "synth": SynthRecipe,
    "selfcritic": SelfCriticRecipe,
    "eval": EvalRecipe,
    "judge": JudgingSection,
}
NOTE = "<!-- Written by scripts/write_reference.py. -->"
_SIMPLE = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "none",
}


@dataclass(frozen=True)
class Table:
    """A table of a recipe in one of its forms.

    Attributes:
        path: Where it stands, such as "tools.search".
        form: What chooses this form, such as 'provider = "local"'; "" if there is one only.
        text: Its docstring.
        rows: Key, values and default of each key.
    """

    path: str
    form: str
    text: str
    rows: tuple[tuple[str, str, str], ...]


def keys_page() -> str:
    """Return the page of all recipe keys."""
    users: dict[Table, list[str]] = {}
    for command, recipe in RECIPES.items():
        schema = TypeAdapter(recipe).json_schema()
        for table in _tables(schema, schema, ""):
            users.setdefault(table, []).append(command)
    lines = [
        "# Keys of recipes",
        NOTE,
        "Each table with its keys, what they may be, and their defaults. A key is written with its table in `-s`: "
        "`-s rollout.n=16`. A key without a default is required where its table is. [Concepts](../concepts.md#6-recipes) "
        "says what they mean together.",
    ]
    places = [(table.path, table.form) for table in users if table.rows]
    for table in sorted(users, key=lambda t: (t.path.count("."), t.path, t.form)):
        if not table.rows:
            continue
        title = f"`[{table.path}]`" if table.path else "Outside of all tables"
        form = f" with `{table.form}`" if table.form else ""
        # A table that may stand at several places is met at each.
        names = list(dict.fromkeys(users[table]))
        commands = ", ".join(f"`{command}`" for command in names)
        where = f" ({', '.join(names)})" if places.count((table.path, table.form)) > 1 else ""
        lines.append(f"## {title}{form}{where}")
        lines.append(f"Of {commands}. {table.text}".rstrip())
        rows = [f"| `{key}` | {values} | {default} |" for key, values, default in table.rows]
        lines.append("\n".join(["| key | values | default |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the page of all commands with their options, and of the exit codes."""
    lines = ["# Commands", NOTE, (PAGES / "commands-intro.txt").read_text(encoding="utf-8").rstrip()]
    for command in COMMANDS:
        parser = make_parser(COMMANDS, command)
        chosen = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices[
            command
        ]
        lines.append(f"## ramify {command}")
        lines += [f"```text\n{text}```" for text in _helps(chosen)]
    return "\n\n".join(lines) + "\n"


def python_page() -> str:
    """Return the page of all public Python names."""
    lines = [
        "# Python names",
        NOTE,
        "After `import ramify as rf`. [Python](../python.md) shows how they go together. `x_async` is the twin of `x` for an event loop.",
    ]
    for name in sorted(ramify.__all__, key=str.lower):
        value = getattr(ramify, name)
        if inspect.ismodule(value):
            lines += [f"## rf.{name}", _first_line(value.__doc__)]
            for inner in sorted(value.__all__):
                lines += _described(f"rf.{name}.{inner}", getattr(value, inner))
        else:
            lines += [f"## rf.{name}", *_described(f"rf.{name}", value)]
            if inspect.isclass(value):
                lines += list(_members(value))
    return "\n\n".join(line for line in lines if line) + "\n"


def _members(cls: type) -> Iterator[str]:
    """Describe the public methods and properties that a class defines."""
    members = {
        name: each
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("ramify.")
        for name, each in vars(base).items()
    }
    for name, member in members.items():
        if name.startswith("_") or not (member.__doc__ or "").strip():
            continue
        if isinstance(member, property):
            yield f"**`.{name}`** {_first_line(member.__doc__)}"
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            yield from _described(f".{name}", getattr(cls, name))


def _described(title: str, value: Any) -> list[str]:  # noqa: ANN401 - a class or a function
    parsed = docstring_parser.parse(inspect.getdoc(value) or "", docstring_parser.DocstringStyle.GOOGLE)
    texts = [f"```python\n{title}{_signature(value)}\n```"]
    texts += [" ".join(text.split()) for text in (parsed.short_description, parsed.long_description) if text]
    items = [f"- `{each.arg_name}`: {' '.join((each.description or '').split())}" for each in parsed.params]
    items += [
        f"- raises `{each.type_name}`: {' '.join((each.description or '').split())}" for each in parsed.raises
    ]
    return [*texts, "\n".join(items)]


def _signature(value: Any) -> str:  # noqa: ANN401 - a class or a function
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    known = [
        each.replace(annotation=_plain(each.annotation))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls") and each.name[0] != "_"
    ]
    # Without the modules of types, which are private.
    plain = str(signature.replace(parameters=known)).replace("ramify.", "").replace("~", "")
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", plain)


def _plain(annotation: Any) -> Any:  # noqa: ANN401 - any annotation
    """Return a type without the checks of its values, which the page of keys has."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_plain(each) for each in get_args(annotation))]  # noqa: UP007 - of a list
    return annotation


def _first_line(text: str | None) -> str:
    return (inspect.cleandoc(text or "").split("\n\n")[0]).replace("\n", " ")


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110)
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _helps(below)


def _tables(schema: dict[str, Any], at: dict[str, Any], path: str, form: str = "") -> Iterator[Table]:
    """Yield the table that `at` describes, and the tables below it."""
    rows = []
    below: list[Table] = []
    for key, value in at.get("properties", {}).items():
        inner = f"{path}.{key}".lstrip(".")
        forms = [target for target in _targets(schema, value) if "properties" in target]
        for target in forms:
            below += _tables(schema, target, inner, _form(target) if len(forms) > 1 else "")
        if not forms:
            required = key in at.get("required", ())
            default = (
                "required" if required else _literal(value.get("default", {} if _is_object(value) else None))
            )
            rows.append((key, _values(schema, value), default))
    yield Table(path, form, " ".join(inspect.cleandoc(at.get("description", "")).split()), tuple(rows))
    yield from below


def _form(target: dict[str, Any]) -> str:
    fixed = [(key, value["const"]) for key, value in target["properties"].items() if "const" in value]
    return f"{fixed[0][0]} = {_literal(fixed[0][1]).strip('`')}" if fixed else target.get("title", "")


def _targets(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records that a value may be, also as the members of a list or of a mapping."""
    if "$ref" in value:
        yield from _targets(schema, schema["$defs"][value["$ref"].rpartition("/")[2]])
    elif "properties" in value:
        yield value
    for inner in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _targets(schema, inner)
    for inner in (value.get("items"), value.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from _targets(schema, inner)


def _values(schema: dict[str, Any], value: dict[str, Any]) -> str:
    """Describe what a key may be, in words."""
    if "$ref" in value:
        return _values(schema, schema["$defs"][value["$ref"].rpartition("/")[2]])
    if options := (*value.get("anyOf", ()), *value.get("oneOf", ())):
        return ", or ".join(dict.fromkeys(_values(schema, option) for option in options))
    if "const" in value:
        return _literal(value["const"])
    if "enum" in value:
        return ", ".join(_literal(member) for member in value["enum"])
    if value.get("type") == "array":
        inner = value.get("items") or next(iter(value.get("prefixItems", ())), {})
        return f"list of {_values(schema, inner)}"
    if value.get("type") == "object":
        return "table"
    name = "path" if value.get("format") == "path" else _SIMPLE.get(value.get("type", ""), "any value")
    low = value.get("minimum", value.get("exclusiveMinimum"))
    high = value.get("maximum", value.get("exclusiveMaximum"))
    return name + (f", {low:,} to {high:,}" if low is not None and high is not None else "")


def _is_object(value: dict[str, Any]) -> bool:
    return value.get("type") == "object"


def _literal(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return f"`{value}`".lower()
        case str():
            return f'`"{value}"`'
    return f"`{value}`"


def main() -> int:
    """Write the pages, or compare them."""
    pages = {"recipe-keys.md": keys_page()}
    # argparse and inspect word things a little differently in each Python.
    if sys.version_info[:2] == (3, 11):
        pages |= {"commands.md": commands_page(), "python.md": python_page()}
    old = [name for name, text in pages.items() if not _is(PAGES / name, text)]
    if "--check" in sys.argv[1:]:
        sys.stdout.write("".join(f"docs/reference/{name}: run scripts/write_reference.py\n" for name in old))
        return 1 if old else 0
    for name in old:
        (PAGES / name).write_text(pages[name], encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
