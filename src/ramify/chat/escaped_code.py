r"""Repair of programs whose line breaks are escaped: data sets in which a python call has `\n` for each line break."""

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
    r"|#(?:(?!\\n)[^\n])*+"
    r"|(?P<break>\\n)",
    re.DOTALL,
)
_MOST_CHARS = 20_000
"""Longest program that is repaired; Python's parser needs a bound."""


def with_line_breaks(turn: str) -> str:
    r"""Return a turn in the tag dialect whose python calls have their line breaks back.

    A program is changed only if it has `\n` outside of its literals, parses with line breaks in those places, and does not parse
    as it stands. One line that parses because a comment swallows the rest is changed too.
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
    before = _parsed(program)
    if before is not None and "\n" in program.strip():
        return program
    broken = _LITERAL_OR_BREAK.sub(lambda match: "\n" if match["break"] else match[0], program)
    after = _parsed(broken)
    return program if after is None or _same(before, after) else broken


def _parsed(program: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(program.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _same(before: ast.Module | None, after: ast.Module) -> bool:
    """Return True if two programs parse alike, or are nested too deeply to tell."""
    try:
        return before is not None and ast.dump(before) == ast.dump(after)
    except RecursionError:
        return True
