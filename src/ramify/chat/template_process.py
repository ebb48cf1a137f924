"""The process that renders chat templates; `chat.template` starts it.

A template is a program that came with a model. jinja2's sandbox keeps it away from files and Python's internals, but
does not stop it from running for ever or filling the memory; `runtime.limited_process` does.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ramify.runtime.limited_process import serve

_MAX_REASON = 200
_TODAY = datetime(2024, 7, 26)  # noqa: DTZ001 - a date without a place
"""The date for all templates, since a prompt must not change with the day: the one that Llama 3's templates have without a clock."""


def _answer(request: dict[str, Any], _: bytes) -> dict[str, str]:
    """Answer {source, variables} with {text} or {refused}; without variables, compile only."""
    try:
        template = _compiled(request["source"])
        return {"text": "" if request["variables"] is None else template.render(**request["variables"])}
    except MemoryError:
        raise
    # A template may raise any exception.
    except Exception as error:  # noqa: BLE001
        return {"refused": " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__}


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _TODAY.strftime
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks an assistant's text in templates for training and changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,  # noqa: ANN401 - any JSON value
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect of `tojson`: with options of `json.dumps`, and without jinja's HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    serve(_answer, forks=False)
