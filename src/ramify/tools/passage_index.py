"""A BM25 index over passages, made with tantivy, and the search provider `local` that uses it.

A passage is split into words: runs of letters and digits after NFKC and case folding. Queries are split in the same way,
so nothing that a model writes can act as query syntax. Indexes in folders: `ramify.tools.index_folder`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import tantivy

from ramify.core.errors import DataError
from ramify.core.protocols import Hit, Json
from ramify.tools.passages import Passage, PassageReader, PassageRow, Ranked, is_text, words

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


class PassageIndex:
    """Ranks passages for a query. An open index never changes, and threads can share it.

    Attributes:
        fingerprint: Hash of the bytes of the file of passages.
    """

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
        self.identity: Mapping[str, Json] = {"corpus": index.fingerprint, "engine": ENGINE}

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """Return at most `top_k` passages. The search runs in a thread, since a long query takes a while."""
        passages = await asyncio.to_thread(self._index.search, query, top_k, collection)
        return [Hit(passage.id, passage.text) for passage in passages]

    async def close(self) -> None:
        """Do nothing: an index holds no resources."""
