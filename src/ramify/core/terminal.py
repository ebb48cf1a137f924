"""Text for people: what a service, a tool, a model or the name of a file says never acts on a terminal."""

import unicodedata


def printable(text: str, keep: str = "") -> str:
    r"""Spell out (`\x1b`, `\u202e`) every character that is not shown as itself, but for those in `keep`.

    These are control and format characters, which move the cursor or reorder text, and halves of surrogate pairs, which
    no stream can encode.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in keep or c.isprintable() or unicodedata.category(c) == "Zs" else _spelled(c) for c in text
    )


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
