"""The tokenizer in a run's folder, and the text of each token: they show a trace without the model that wrote it."""

import codecs
from collections.abc import Sequence
from pathlib import Path

from ramify.chat.tokenizer import ChatTokenizer
from ramify.files.durable import replace_file
from ramify.files.untrusted import read_small_file

FOLDER = "tokenizer"
"""The folder in that of a run."""
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def copy_tokenizer(tokenizer: ChatTokenizer, run: Path) -> None:
    """Copy the files of a tokenizer into a run's folder, whose `run_tokenizer` then has the same ids.

    Raises:
        DataError: A file cannot be read.
    """
    for path in (tokenizer.folder / name for name in _FILES):
        if path.is_file():
            replace_file(run / FOLDER / path.name, read_small_file(path))


def run_tokenizer(run: Path) -> ChatTokenizer | None:
    """Return the tokenizer of a run; None if the run was made before runs kept one.

    Raises:
        DataError: It is damaged.
    """
    return ChatTokenizer(run / FOLDER) if (run / FOLDER).is_dir() else None


def token_texts(
    tokenizer: ChatTokenizer, token_ids: Sequence[int], before: Sequence[int] = ()
) -> tuple[str, ...]:
    """Return the text of each token, special ones by their names; together they are the text of all.

    A character whose bytes lie in several tokens is the text of the last of them, and the others have none. Bytes that are no
    UTF-8 become the replacement character.

    Args:
        tokenizer: The tokenizer.
        token_ids: Ids of a node. [N]
        before: Ids of the same turn that stand before them; a character may begin there.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    known = tokenizer.token_bytes
    pieces = [known[index] if index < len(known) else b"" for index in (*before, *token_ids)]
    texts = [
        decoder.decode(piece, final=number == len(pieces)) for number, piece in enumerate(pieces, start=1)
    ]
    return tuple(texts[len(before) :])
