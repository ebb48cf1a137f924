"""An index in memory over a JSONL file of passages, ranked by BM25 (tantivy).

A passage is read as words: runs of letters and digits after NFKC and case folding. Queries are cut into words in
the same way, so nothing that a model writes can act as query syntax.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tantivy

from ramify.core.errors import DataError

_WORD = re.compile(r"[^\W_]+")
_ANALYZER = "words"
_MIN_WRITER_BYTES = 64_000_000
_MAX_WRITER_BYTES = 4_000_000_000
_WRITER_BYTES_PER_FILE_BYTE = 16


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as it is shown: with its title in front, where it has one."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class _Row:
    passage: Passage
    collection: str | None


class PassageIndex:
    """Ranks passages for a query. It never changes after it was built."""

    def __init__(
        self, passages: tuple[Passage, ...], collections: frozenset[str], index: tantivy.Index
    ) -> None:
        self._passages = passages
        self._collections = collections
        self._schema = index.schema
        self._searcher = index.searcher()

    @classmethod
    def build(cls, path: Path) -> "PassageIndex":
        """Read and index `path`: a line is {"text" or "contents", "id"?, "title"?, "collection"?}.

        Blank lines are skipped; a passage without an id is called by its line number.

        Raises:
            DataError: The file is missing, empty or too large for an index in memory, or a line is broken.
        """
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected a JSONL file of passages")
        index = tantivy.Index(_schema())
        whitespace = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
        index.register_tokenizer(_ANALYZER, whitespace)
        # One thread, one commit and one segment: document numbers are then file order, which breaks ties.
        size = path.stat().st_size * _WRITER_BYTES_PER_FILE_BYTE
        writer = index.writer(min(max(size, _MIN_WRITER_BYTES), _MAX_WRITER_BYTES), 1)
        passages = []
        collections = set()
        for row in _read(path):
            passages.append(row.passage)
            document = tantivy.Document(text=" ".join(_words(row.passage.text)))
            if row.collection is not None:
                collections.add(row.collection)
                document.add_text("collection", row.collection)
            writer.add_document(document)
        if not passages:
            raise DataError(f"{path}: empty; expected one passage a line")
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        if index.searcher().num_segments != 1:
            raise DataError(f"{path}: {path.stat().st_size} bytes are too large for an index in memory")
        return cls(tuple(passages), frozenset(collections), index)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, top_k: int, collection: str | None = None) -> tuple[Passage, ...]:
        """The `top_k` best passages that share a word with `query`, best first, ties in file order.

        Every distinct word of the query counts once. `collection` restricts the passages and leaves their
        scores as they are.
        """
        words = dict.fromkeys(_words(query))
        if not words or (collection is not None and collection not in self._collections):
            return ()
        wanted = tantivy.Query.boolean_query(
            [(tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", word)) for word in words]
        )
        if collection is not None:
            inside = tantivy.Query.term_query(self._schema, "collection", collection)
            unscored = tantivy.Query.const_score_query(inside, 0.0)
            wanted = tantivy.Query.boolean_query(
                [(tantivy.Occur.Must, wanted), (tantivy.Occur.Must, unscored)]
            )
        hits = self._searcher.search(wanted, top_k, count=False).hits
        return tuple(self._passages[address.doc] for _, address in hits)


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_text_field("collection", tokenizer_name="raw", index_option="basic")
    return builder.build()


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _read(path: Path) -> Iterator[_Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield _row(json.loads(line), number)
                except json.JSONDecodeError as error:
                    reason = f"broken JSON: {error.msg} at column {error.colno}"
                    raise DataError(f"{path} row {number} (lines count from 1): {reason}") from None
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path} row {number} (lines count from 1): {error}") from None


def _row(row: object, number: int) -> _Row:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with 'text' or 'contents', got {type(row).__name__}")
    body = _text(row, "text" if "text" in row else "contents")
    if body is None:
        raise ValueError("no 'text' or 'contents'")
    title = _text(row, "title")
    identifier = number if row.get("id") is None else row["id"]
    if isinstance(identifier, bool) or not isinstance(identifier, int | str):
        raise ValueError(f"'id' must be text or a whole number, got {type(identifier).__name__}")
    shown = f"{title}: {body}" if title else body
    return _Row(Passage(str(identifier), shown), _text(row, "collection"))


def _text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be text, got {type(value).__name__}")
    value.encode()  # half of a surrogate pair is legal JSON, but no text
    return value
