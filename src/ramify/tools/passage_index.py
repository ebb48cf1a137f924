"""Passages: reading a JSONL file of them row by row, a BM25 index over them with tantivy, and the search provider `local`.

A passage is split into words: runs of letters and digits after NFKC and case folding. Queries are split in the same way,
so nothing that a model writes can act as query syntax. Indexes in folders: `ramify.tools.index_folder`.
"""

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import tantivy

from ramify.core.errors import DataError
from ramify.core.protocols import Hit, Json
from ramify.runtime.daemon_threads import DaemonThreads

ENGINE = "tantivy"
VERSION = metadata.version(ENGINE)
BROKEN = (ValueError, OSError)
"""The errors that tantivy raises for files that it cannot read or write."""

_ANALYZER = "words"
_MIN_WRITER_BYTES = 64_000_000
_MAX_WRITER_BYTES = 1_000_000_000
_WRITER_BYTES_PER_TEXT_BYTE = 16
"""With this much memory a writer puts a file into one segment."""
_FURTHER = 4
"""Factor by which the number of hits grows while hits that tie with the last one may be missing."""

_WORD = re.compile(r"[^\W_]+")
_HASH_BYTES = 16
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as it is shown: preceded by its title, if it has one."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class PassageRow:
    """A passage, its position in the file (`number`, from 0), and its collection."""

    number: int
    passage: Passage
    collection: str | None


def words(text: str) -> list[str]:
    """Return the runs of letters and digits after NFKC and case folding."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def is_text(text: str) -> bool:
    """Return False for a string with a lone surrogate: legal in JSON, but not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_passages(path: Path) -> None:
    """Raise DataError unless `path` is a file."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {fault}. Expected a JSONL file of passages.")


def fingerprint(path: Path) -> str:
    """Return the hash of a file's bytes, as `PassageReader.fingerprint` has it after the last row."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_HASH_BYTES)).hexdigest()


class PassageReader:
    """Reads the rows of a file once; a line is {"text" or "contents", "id"?, "title"?, "collection"?}.

    Blank lines are skipped. The id of a passage without one is its line number.

    Attributes:
        path: The file.
        bytes: Number of bytes read so far.
        passages: Number of passages read so far.
    """

    def __init__(self, path: Path) -> None:
        """Start at the first byte of `path`.

        Raises:
            DataError: There is no such file.
        """
        require_passages(path)
        self.path = path
        self.bytes, self.passages = 0, 0
        self._hash = hashlib.blake2b(digest_size=_HASH_BYTES)

    @property
    def fingerprint(self) -> str:
        """Hash of all bytes read so far."""
        return self._hash.hexdigest()

    def rows(self) -> Iterator[PassageRow]:
        """Yield the rows.

        Raises:
            DataError: A line is broken; the message names it.
        """
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                self.bytes += len(line)
                self._hash.update(line)
                if line.strip():
                    yield self._read(line, number)
                    self.passages += 1

    def _read(self, line: bytes, number: int) -> PassageRow:
        where = f"{self.path} row {number} (lines count from 1)"
        try:
            return _row(json.loads(line), number, self.passages)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: broken JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: {error}") from None


def _row(row: object, line: int, number: int) -> PassageRow:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with 'text' or 'contents', got {type(row).__name__}")
    body = _text(row, "text" if "text" in row else "contents")
    if body is None:
        raise ValueError("no 'text' or 'contents'")
    title = _text(row, "title")
    identifier = next((row[key] for key in ("id", "docid") if row.get(key) is not None), line)
    if isinstance(identifier, bool) or not isinstance(identifier, int | str):
        raise ValueError(f"'id' must be text or a whole number, got {type(identifier).__name__}")
    str(identifier).encode()
    shown = f"{title}: {body}" if title else body
    return PassageRow(number, Passage(str(identifier), shown), _text(row, "collection"))


def _text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{key!r} must be text, got {type(value).__name__}")
    value.encode()  # refuses a lone surrogate, which is legal in JSON
    return value


Ranked: TypeAlias = tuple[float, Passage]
"""A score (higher is better) and the passage."""


class PassageIndex:
    """Ranks passages for a query. An open index never changes, and threads can share it.

    Attributes:
        fingerprint: Hash of the bytes of the file of passages.
        engine: The library that ranks.
    """

    engine = ENGINE

    def __init__(self, index: tantivy.Index, fingerprint: str) -> None:
        self._schema = index.schema
        self._searcher = index.searcher()
        self.fingerprint = fingerprint

    @classmethod
    def build(cls, path: Path) -> "PassageIndex":
        """Read `path` and index it in memory.

        Args:
            path: A line is {"text" or "contents", "id"?, "title"?, "collection"?}.

        Raises:
            DataError: The file is missing or empty, or a line is broken.
        """
        reader = PassageReader(path)
        index = new_index(None)
        add_rows(index, reader.rows(), path.stat().st_size)
        return cls.of_rows(index, reader)

    @classmethod
    def of_rows(cls, index: tantivy.Index, reader: PassageReader) -> "PassageIndex":
        """Return the index of all rows that `reader` has read.

        Raises:
            DataError: The file has no passages.
        """
        if not reader.passages:
            raise DataError(f"{reader.path}: empty. Expected one passage per line.")
        return cls(index, reader.fingerprint)

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, query: str, top_k: int, collection: str | None = None) -> tuple[Passage, ...]:
        """Return the `top_k` best passages that share a word with `query`, best first; ties in file order.

        Each distinct word of the query counts once. `collection` restricts the passages, but does not change scores.
        """
        return tuple(passage for _, passage in self.ranked(query, top_k, collection))

    def ranked(self, query: str, top_k: int, collection: str | None = None) -> tuple[Ranked, ...]:
        """Search as `search` does, and return each passage with its score."""
        distinct = tuple(dict.fromkeys(words(query)))
        # A collection name with a lone surrogate matches no passage, and tantivy does not accept it.
        if not distinct or not is_text(collection or ""):
            return ()
        parsed = self._query(distinct, collection)
        limit = top_k + 1
        hits = self._searcher.search(parsed, limit, count=False).hits
        # tantivy orders ties by segment. To order them by file position, fetch all that tie with the last hit.
        while len(hits) == limit and hits[-1][0] == hits[top_k - 1][0]:
            limit *= _FURTHER
            hits = self._searcher.search(parsed, limit, count=False).hits
        numbers = self._searcher.fast_field_values("number", [address for _, address in hits])
        ordered = sorted(zip(hits, numbers, strict=True), key=lambda hit: (-hit[0][0], hit[1]))
        documents = [(score, self._searcher.doc(address)) for (score, address), _ in ordered[:top_k]]
        return tuple((score, Passage(d["id"][0].decode(), d["shown"][0].decode())) for score, d in documents)

    def _query(self, distinct: Sequence[str], collection: str | None) -> tantivy.Query:
        any_word = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", word))
                for word in distinct
            ]
        )
        if collection is None:
            return any_word
        inside = tantivy.Query.term_query(self._schema, "collection", collection)
        unscored = tantivy.Query.const_score_query(inside, 0.0)
        return tantivy.Query.boolean_query([(tantivy.Occur.Must, any_word), (tantivy.Occur.Must, unscored)])


def new_index(folder: Path | None) -> tantivy.Index:
    """Return an index without passages in an empty folder, or in memory (None)."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_text_field("collection", tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("number", fast=True)
    builder.add_bytes_field("id", stored=True)
    builder.add_bytes_field("shown", stored=True)
    return tantivy.Index(builder.build(), path=None if folder is None else str(folder))


def add_rows(index: tantivy.Index, rows: Iterable[PassageRow], text_bytes: int) -> None:
    """Add rows, about `text_bytes` of text, to an index."""
    whitespace = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
    index.register_tokenizer(_ANALYZER, whitespace)
    size = min(max(text_bytes * _WRITER_BYTES_PER_TEXT_BYTE, _MIN_WRITER_BYTES), _MAX_WRITER_BYTES)
    writer = index.writer(size, 1)
    for row in rows:
        document = tantivy.Document(text=" ".join(words(row.passage.text)))
        document.add_unsigned("number", row.number)
        document.add_bytes("id", row.passage.id.encode())
        document.add_bytes("shown", row.passage.text.encode())
        if row.collection is not None:
            document.add_text("collection", row.collection)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()


class LocalSearch:
    """Implements `ramify.core.protocols.SearchProvider` with a passage index."""

    name = "local"

    def __init__(self, index: PassageIndex) -> None:
        self._index = index
        # Not asyncio's own, which rewards may hold for seconds: a search would wait for them, and count as late.
        self._threads = DaemonThreads("local search", min(_MOST_THREADS, (os.cpu_count() or 1) + 4))
        self.identity: Mapping[str, Json] = {"corpus": index.fingerprint, "engine": ENGINE}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """Return at most `top_k` passages. The search runs in a thread, since a long query takes a while."""
        job = self._threads.submit(partial(self._index.search, query, top_k, collection))
        passages = await self._threads.result(job)
        return [Hit(passage.id, passage.text) for passage in passages]

    async def close(self) -> None:
        """Do nothing: an index holds no resources."""
