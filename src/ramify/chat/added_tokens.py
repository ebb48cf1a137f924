"""Added tokens of a tokenizer, which are matched in a text before the rest is encoded, and how to give them other names."""

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ramify.core.errors import DataError


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An added token; `special` as the tokenizer's file marks it."""

    id: int
    content: str
    special: bool


def draw_names(contents: Collection[str]) -> dict[str, str]:
    """Draw a new name for each of these tokens; random, because a text that contains one would become the token."""
    draw = secrets.token_hex(8)
    return {text: f"\U0010fffd{draw}.{number}\U0010fffd" for number, text in enumerate(sorted(contents))}


def renamed_entries(entries: Sequence[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the entries `added_tokens` of a tokenizer's file under their new names."""
    return [{**entry, "content": names.get(entry["content"], entry["content"])} for entry in entries]


class RenamedTokens:
    """A tokenizer with new names for some of its added tokens, so that their usual spelling is ordinary text."""

    def __init__(
        self, library: Tokenizer, added: Sequence[AddedToken], names: dict[str, str], folder: Path
    ) -> None:
        """Find the ids under which the library has the tokens.

        Args:
            library: The tokenizer; its added tokens have the new names.
            added: The added tokens as the model knows them.
            names: New names by the usual ones.
            folder: The model folder, for messages.
        """
        self._library = library
        self._names = names
        # A renamed token gets another id if the model's own vocabulary holds it too.
        self._ids = {
            library.token_to_id(names.get(token.content, token.content)): token.id for token in added
        }
        self._forged = {token.id for token in added if token.content in names} - self._ids.keys()
        self._folder = folder

    def rename(self, text: str, added: "re.Pattern[str]") -> str:
        """Return a trusted text with the new names of its tokens; `added` matches all added tokens."""
        return added.sub(lambda match: self._names.get(match[0], match[0]), text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text in which the tokens have their new names.

        Raises:
            DataError: The model's own vocabulary still turns a usual spelling into the token.
        """
        ids = self._library.encode(text, add_special_tokens=False).ids
        if not self._forged.isdisjoint(ids):
            raise DataError(f"{self._folder}: the tokenizer turns plain text into a control token")
        return tuple(self._ids.get(index, index) for index in ids)
