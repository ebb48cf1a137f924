r"""Programs whose line breaks came escaped: data sets in which a call of the python tool has `\n` for each line break."""

import ast
import re
import warnings

from ramify.chat.conversation import split_at_spans

_OPENING, _CLOSING = "<python>", "</python>"
_BREAK = r"\n"
_LITERAL_OR_BREAK = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"""'
    r"|'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''"
    r'|"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    r"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"
    r"|#(?:(?!\\n).)*+"
    r"|(?P<break>\\n)",
    re.DOTALL,
)
_MOST_CHARS = 20_000
"""Of a program that is looked at; Python's parser needs a bound."""


def with_line_breaks(turn: str) -> str:
    r"""A turn in the tag dialect whose python calls have their line breaks back.

    A program is changed only if it has `\n` outside of its literals, does not parse as it stands (or is one line that ends in a
    comment with `\n` in it), and parses with line breaks in those places.
    """
    if _BREAK not in turn:
        return turn
    pieces = split_at_spans(turn, _OPENING, _CLOSING)
    return "".join(
        f"{_OPENING}{_repaired(piece)}{_CLOSING}" if index % 2 else piece
        for index, piece in enumerate(pieces)
    )


def _repaired(program: str) -> str:
    if _BREAK not in program or len(program) > _MOST_CHARS:
        return program
    if "\n" in program.strip() and _parses(program):
        return program
    broken = _LITERAL_OR_BREAK.sub(lambda found: "\n" if found["break"] else found[0], program)
    return broken if broken != program and _parses(broken) else program


def _parses(program: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(program.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
