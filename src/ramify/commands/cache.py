"""`ramify cache`: import and export search caches of the papers' code, and show what a cache holds."""

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError
from ramify.core.json_text import parse_json

_LAST_SECOND = 253_402_300_799.0
"""The last second of the year 9999, the latest that `datetime` can represent."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    commands = parser.add_subparsers(dest="work", required=True, metavar="COMMAND")

    coming = commands.add_parser("import", help="import a JSON cache of the papers' code")
    coming.add_argument("file", type=Path, metavar="FILE", help='{"query": "Page 1: ...\\nPage 2: ..."}')
    coming.add_argument("--to", type=Path, required=True, metavar="CACHE", help="a cache, or a cassette")
    coming.add_argument("--provider", metavar="NAME", help="whose answers these are")
    coming.add_argument(
        "-s", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="other keys of the recipe's [tools.search] (zone=serp, top_k=5): the cache looks answers up by them",
    )  # fmt: skip
    coming.set_defaults(does=_import)

    going = commands.add_parser("export", help="write all search answers as a JSON cache of the papers' code")
    going.add_argument("cache", type=Path, metavar="CACHE")
    going.add_argument("--to", type=Path, required=True, metavar="FILE.json")
    going.set_defaults(does=_export)

    showing = commands.add_parser("show", help="count answers by tool, provider and parameters")
    showing.add_argument("cache", type=Path, metavar="CACHE")
    showing.set_defaults(does=_show)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: A file or a setting is wrong.
    """
    from ramify.obs.console import RunConsole

    RunConsole().result(options.does(options))


def _import(options: argparse.Namespace) -> str:
    count = asyncio.run(_import_json(options.file, options.to, _search_section(options)))
    return f"{count:,} entries of {options.file} are in {options.to}"


async def _import_json(file: Path, to: Path, section: Any) -> int:  # noqa: ANN401 - a union that pydantic checked
    from ramify.assemble.services import build_provider
    from ramify.cache.references import import_json
    from ramify.tools.search import cache_key

    provider = build_provider(section, offline=True)
    try:
        return import_json(file, to, lambda query: cache_key(provider, section.top_k, None, query))
    finally:
        await provider.close()


def _export(options: argparse.Namespace) -> str:
    from ramify.cache.database import files_of
    from ramify.cache.references import export_json
    from ramify.commands.output_files import require_output, write_output

    require_output("--to", options.to, files_of(options.cache))
    count, content = export_json(options.cache)
    write_output("--to", options.to, content)
    return f"{count:,} entries of {options.cache} are in {options.to}"


def _show(options: argparse.Namespace) -> str:
    from ramify.cache.database import read_groups

    lines = [
        f"{group.tool} {group.provider}: {group.answers:,} answers, {group.empty:,} of them empty, "
        f"{f'{group.failures:,} failures, ' if group.failures else ''}"
        f"{_day(group.oldest)} to {_day(group.newest)}, {group.parameters}"
        for group in read_groups(options.cache)
    ]
    return "\n".join(lines) if lines else f"{options.cache} is empty"


def _search_section(options: argparse.Namespace) -> Any:  # noqa: ANN401 - as above
    from pydantic import TypeAdapter, ValidationError

    from ramify.config.schema_parts import SearchSection
    from ramify.core.config import in_words

    if options.provider is None:
        raise ConfigError(f"--provider: expected whose answers {options.file} holds")
    values: dict[str, object] = {"provider": options.provider}
    for setting in options.settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"-s {setting}: expected KEY=VALUE")
        values[name] = _value(text)
    try:
        return TypeAdapter(SearchSection).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "union_tag_invalid":
            names = first["ctx"]["expected_tags"].replace("'", "")
            raise ConfigError(f"--provider {options.provider}: expected one of {names}") from None
        # The first part is the provider.
        key = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "missing":
            raise ConfigError(f"--provider {options.provider}: expected also -s {key}=VALUE") from None
        line = in_words(key, first)[0]
        raise ConfigError(f"-s {line}" if key else f"--provider {options.provider}: {line}") from None


def _value(text: str) -> object:
    try:
        value: object = parse_json(text)
    except ValueError:
        return text
    return value


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_SECOND), UTC).date().isoformat()
