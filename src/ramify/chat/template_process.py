"""The process that renders chat templates: one JSON line in, one out. `chat.template` starts it.

A template is a program that came with a model. jinja2's sandbox keeps it away from files and Python's internals, but
does not stop it from running for ever or filling the memory. So each render has a limit on its processor time, and the
process has a limit on its memory.
"""

import contextlib
import json
import resource
import signal
import sys
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2.0
"""Processor time of one render; an ordinary one takes less than a millisecond."""
MEMORY_BYTES = 1 << 30
"""Limit on the address space of the process."""
MAX_CHARS = 1 << 26
"""Limit on the length of a rendered prompt."""

_MAX_REASON = 200


def main() -> None:
    """Answer requests {source, variables} with {text} or {refused}, until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS has no limit on the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        # The signal's default action ends the process, even in the middle of one long operation.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = _answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _answer(line: str) -> str:
    try:
        request = json.loads(line)
        template = _compiled(request["source"])
        text = "" if request["variables"] is None else template.render(**request["variables"])
        if len(text) > MAX_CHARS:
            return _refused("the prompt is too long")
        return json.dumps({"text": text})
    except MemoryError:
        return _refused(f"it takes more than {MEMORY_BYTES >> 20} MiB of memory")
    # A template may raise any exception.
    except Exception as error:  # noqa: BLE001
        return _refused(" ".join(str(error).split())[:_MAX_REASON] or type(error).__name__)


def _refused(reason: str) -> str:
    return json.dumps({"refused": reason})


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    # No `strftime_now`: a prompt must not depend on the date. Templates that use it have a fallback.
    environment.globals["raise_exception"] = _refuse
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
    """`tojson` as chat templates expect it: with options of `json.dumps`, and without jinja's HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    main()
