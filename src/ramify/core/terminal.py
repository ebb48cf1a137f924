"""Text for people: nothing in a service's, tool's or model's text or in a file name can control the terminal."""

import unicodedata


def printable(text: str, keep: str = "") -> str:
    r"""Escape (`\x1b`, `\u202e`) every character that does not print as itself, except those in `keep`.

    These are control and format characters, which move the cursor or reorder text, and lone surrogates, which no stream
    can encode.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in keep or c.isprintable() or unicodedata.category(c) == "Zs" else _spelled(c) for c in text
    )


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
