"""The search cache of the papers' released code: one JSON object, query -> "Page 1: ...\\nPage 2: ...".

Its keys are queries without double quotes. A text is imported as hits if formatting those hits as the released code
does reproduces the text; any other text is kept verbatim. So an export returns what was imported, plus what was found
since.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ramify.cache.cassette import Cassette
from ramify.cache.database import Contents
from ramify.cache.keys import canonical
from ramify.cache.sqlite import SqliteCache
from ramify.core.errors import DataError
from ramify.core.json_text import parse_object
from ramify.core.protocols import CacheKey, Json

NOTHING_FOUND: Final = "No search results found."
_PAGE: Final = re.compile(r"(?:^|\n)Page \d+: ")
_MOST_PAGES: Final = 10
_PAGE_CHARS: Final = 1000


def read_texts(path: Path) -> Mapping[str, str]:
    """The file's queries and texts, in the file's order.

    Raises:
        DataError: The file cannot be read, is not JSON, or is not an object of strings; names the entry.
    """
    try:
        entries = parse_object(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f'{path}: {error}; expected one object, {{"query": "Page 1: ..."}}') from None
    for query, text in entries.items():
        if not isinstance(text, str):
            raise DataError(f"{path}: entry {query[:80]!r} is no text; expected 'Page 1: ...'")
    return entries


def import_json(path: Path, cache: SqliteCache | Cassette, key: Callable[[str], CacheKey]) -> int:
    """Store every entry of a file in a cache or a cassette.

    A cache also keeps how the file spells each query, and texts that its answers do not reproduce, so that `export_json`
    writes the same file again.

    Args:
        path: The JSON file.
        cache: The cache that receives the answers.
        key: Makes the key of a query: normalises the query, and names the provider that gave the answers.

    Returns:
        How many entries the file has. If two have the same key, the first is the answer.

    Raises:
        DataError: The file is wrong; nothing was stored.
    """
    answers: dict[str, Json] = {}
    entries = read_texts(path)
    for query, text in entries.items():
        query_key = key(query)
        name = canonical(query_key)
        if name not in answers:
            answers[name] = cache.remember(query_key, answer_of(text))
        if isinstance(cache, SqliteCache):
            cache.remember_spelling(query, query_key, None if text_of(answers[name]) == text else text)
    return len(entries)


def export_json(contents: Contents) -> tuple[int, bytes]:
    """The number of search answers, and the file of the released code that holds them: JSON, indented by two, UTF-8."""
    entries: dict[str, str] = {}
    for spelled, text, answer in contents.imported():
        entries[spelled] = text_of(answer) if text is None else text
    for request, answer in contents.not_imported("search"):
        entries.setdefault(request.replace('"', ""), text_of(answer))
    text = json.dumps(entries, ensure_ascii=False, indent=2)
    return len(entries), text.encode("utf-8", "backslashreplace")


def answer_of(text: str) -> Json:
    """The hits in a text, as a search tool caches them; the text itself if the hits would not reproduce it."""
    if text == NOTHING_FOUND:
        return []
    snippets = _PAGE.split(text)[1:]
    hits = [{"id": f"page {i}", "text": s, "title": "", "url": ""} for i, s in enumerate(snippets, 1)]
    return hits if hits and text_of(hits) == text else text


def text_of(answer: Json) -> str:
    """An answer as the released code shows it: at most ten distinct snippets of at most 1000 characters each."""
    if isinstance(answer, str):
        return answer
    hits = answer if isinstance(answer, Sequence) else ()
    texts = [str(hit["text"]) for hit in hits if isinstance(hit, Mapping) and "text" in hit]
    shown = dict.fromkeys(" ".join(text.split())[:_PAGE_CHARS].rstrip() for text in texts)
    lines = [f"Page {i}: {text}" for i, text in enumerate(list(filter(None, shown))[:_MOST_PAGES], 1)]
    return "\n".join(lines) if lines else NOTHING_FOUND
