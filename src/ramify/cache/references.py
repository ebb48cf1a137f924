"""The search cache of the papers' released code: a file that becomes a cache, and is written from one.

The released cache is one JSON object, query -> "Page 1: ...\\nPage 2: ...". Its keys are queries without double quotes.
A text is imported as hits if formatting those hits as the released code does reproduces the text; any other text is
stored verbatim. So an export returns what was imported, plus later answers.
"""

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ramify.cache.database import (
    Row,
    Spelling,
    connect,
    open_to_read,
    read_answer,
    write_rows,
)
from ramify.cache.keys import digest
from ramify.core.errors import DataError, MachineError
from ramify.core.json_text import parse_object
from ramify.core.protocols import CacheKey, Json

NOTHING_FOUND: Final = "No search results found."
_PAGE: Final = re.compile(r"(?:^|\n)Page \d+: ")
_MOST_PAGES: Final = 10
_PAGE_CHARS: Final = 1000
_IMPORTED: Final = """
SELECT spelled, text, place, answer FROM imported JOIN answers USING (place) WHERE is_empty < 2 ORDER BY position
"""
_NOT_IMPORTED: Final = """
SELECT request, place, answer FROM answers
WHERE tool = 'search' AND is_empty < 2 AND place NOT IN (SELECT place FROM imported) ORDER BY request, place
"""


def read_texts(path: Path) -> Mapping[str, str]:
    """Return the file's queries and texts, in the file's order.

    Raises:
        DataError: The file cannot be read, is not JSON, or is not an object of strings; names the entry.
    """
    try:
        entries = parse_object(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f'{path}: {error}. Expected one object, {{"query": "Page 1: ..."}}.') from None
    for query, text in entries.items():
        if not isinstance(text, str):
            raise DataError(f"{path}: entry {query[:80]!r} is no text. Expected 'Page 1: ...'.")
    return entries


def import_json(path: Path, cache: Path, key: Callable[[str], CacheKey]) -> int:
    """Store every entry of a file in a cache, with its spelling in the file, so that `export_json` writes the file again.

    Args:
        path: The JSON file.
        cache: The cache that receives the answers; it is created if there is none.
        key: Makes the key of a query: normalises the query, and names the provider of the answers.

    Returns:
        Number of entries in the file. If two have the same key, the first is the answer.

    Raises:
        DataError: The file or the cache is wrong; nothing was stored.
        MachineError: The cache cannot be written; nothing was stored.
    """
    rows: dict[bytes, Row] = {}
    spellings: list[Spelling] = []
    texts = read_texts(path)
    for query, text in texts.items():
        query_key = key(query)
        key_digest = digest(query_key)
        if key_digest not in rows:
            rows[key_digest] = Row.of(query_key, key_digest, answer_of(text), time.time())
        is_reproduced = text_of(rows[key_digest].entry.value) == text
        spellings.append((query, key_digest, None if is_reproduced else text))
    _write(cache, list(rows.values()), spellings)
    return len(texts)


def _write(cache: Path, rows: Sequence[Row], spellings: Sequence[Spelling]) -> None:
    try:
        with contextlib.closing(connect(cache)) as connection:
            write_rows(connection, rows, spellings)
    except sqlite3.Error as error:
        raise MachineError(
            f"cache {cache}: {len(rows):,} rows could not be written ({error}). Free disk space and import again."
        ) from None


def export_json(cache: Path) -> tuple[int, bytes]:
    """Return the number of search answers, and the released code's file of them: JSON, indented by two, UTF-8.

    Raises:
        DataError: The cache does not exist, is damaged, or is no cache.
        MachineError: It cannot be read in its folder.
    """
    entries: dict[str, str] = {}
    with open_to_read(cache) as connection:
        for spelled, text, row_number, answer in connection.execute(_IMPORTED):
            entries[spelled] = text_of(read_answer(cache, row_number, answer)) if text is None else text
        for request, row_number, answer in connection.execute(_NOT_IMPORTED):
            entries.setdefault(request.replace('"', ""), text_of(read_answer(cache, row_number, answer)))
    content = json.dumps(entries, ensure_ascii=False, indent=2)
    return len(entries), content.encode("utf-8", "backslashreplace")


def answer_of(text: str) -> Json:
    """Return the hits in a text, as a search tool caches them; the text itself if they would not reproduce it."""
    if text == NOTHING_FOUND:
        return []
    snippets = _PAGE.split(text)[1:]
    hits = [{"id": f"page {i}", "text": s, "title": "", "url": ""} for i, s in enumerate(snippets, 1)]
    return hits if hits and text_of(hits) == text else text


def text_of(answer: Json) -> str:
    """Format an answer as the released code does: at most ten distinct snippets of at most 1000 characters each."""
    if isinstance(answer, str):
        return answer
    hits = answer if isinstance(answer, Sequence) else ()
    texts = [str(hit["text"]) for hit in hits if isinstance(hit, Mapping) and "text" in hit]
    shown = dict.fromkeys(" ".join(text.split())[:_PAGE_CHARS].rstrip() for text in texts)
    lines = [f"Page {i}: {text}" for i, text in enumerate(list(filter(None, shown))[:_MOST_PAGES], 1)]
    return "\n".join(lines) if lines else NOTHING_FOUND
