"""Google-style docstrings: what a function does, and what its arguments are."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

_HEADER = re.compile(r"(?P<name>[A-Z][A-Za-z ]*):")
_ARGUMENTS = ("Args", "Arguments")
_SECTIONS = (
    *_ARGUMENTS,
    "Attributes",
    "Example",
    "Examples",
    "Note",
    "Notes",
    "Raises",
    "Return",
    "Returns",
    "See Also",
    "Todo",
    "Warning",
    "Warnings",
    "Yields",
)
_ENTRY = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text before the first section, on one line, and the text for each argument."""

    description: str
    arguments: Mapping[str, str]


def read_docstring(text: str) -> Docstring:
    """Read a docstring.

    Raises:
        ValueError: A line of the Args section is not an argument.
    """
    section = ""
    sections: dict[str, list[str]] = {"": []}
    for line in inspect.cleandoc(text).splitlines():
        header = _HEADER.fullmatch(line.rstrip())
        if header is not None and header["name"] in _SECTIONS:
            section = header["name"]
        else:
            sections.setdefault(section, []).append(line)
    arguments: dict[str, str] = {}
    for name in _ARGUMENTS:
        arguments |= _entries(sections.get(name, []))
    return Docstring(" ".join(" ".join(sections[""]).split()), arguments)


def _entries(lines: list[str]) -> dict[str, str]:
    """Entries `name: text` or `name (type): text`; a line with deeper indentation continues the entry before it."""
    found: dict[str, list[str]] = {}
    indent = min((_indent(line) for line in lines if line.strip()), default=0)
    last: list[str] = []
    for line in filter(str.strip, lines):
        if _indent(line) > indent:
            last.append(line.strip())
            continue
        entry = _ENTRY.fullmatch(line.strip())
        if entry is None:
            raise ValueError(f'its Args section: expected "name: text", got {line.strip()!r}')
        last = found.setdefault(entry["name"], [])
        last.append(entry["text"])
    return {name: " ".join(" ".join(pieces).split()) for name, pieces in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
