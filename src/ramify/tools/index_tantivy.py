"""BM25 over passages with tantivy, in memory or in a folder."""

import os
import shutil
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Self

import tantivy

from ramify.tools.passages import Passage, PassageRow, Ranked, words

_ANALYZER = "words"
_MIN_WRITER_BYTES = 64_000_000
_MAX_WRITER_BYTES = 1_000_000_000
_WRITER_BYTES_PER_TEXT_BYTE = 16
"""With this much memory a writer puts a file into one segment."""
_FURTHER = 4
"""Factor by which the number of hits grows while hits that tie with the last one may be missing."""


class TantivyIndex:
    """Implements `RankedIndex`."""

    NAME = "tantivy"
    VERSION = metadata.version("tantivy")
    BROKEN: tuple[type[Exception], ...] = (ValueError, OSError)
    """The errors tantivy raises for files that it cannot read."""

    def __init__(self, index: tantivy.Index) -> None:
        self._schema = index.schema
        self._searcher = index.searcher()

    @classmethod
    def create(cls, folder: Path | None, rows: Iterable[PassageRow], text_bytes: int) -> Self:
        """Index `rows`, about `text_bytes` of text, in an empty folder, or in memory (None)."""
        index = tantivy.Index(_schema(), path=None if folder is None else str(folder))
        return cls(_add(index, rows, text_bytes))

    @classmethod
    def extend(cls, folder: Path, rows: Iterable[PassageRow], text_bytes: int) -> Self:
        """Add `rows` to the index in `folder`."""
        return cls(_add(tantivy.Index.open(str(folder)), rows, text_bytes))

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index in `folder`."""
        return cls(tantivy.Index.open(str(folder)))

    @staticmethod
    def copy_file(source: str, target: str) -> str:
        """Hard-link a segment's file, which never changes; copy tantivy's own lists, and everything if links fail."""
        if not Path(source).name.endswith((".json", ".lock")):
            try:
                os.link(source, target)
            except OSError:
                pass
            else:
                return target
        return shutil.copyfile(source, target)

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, query: Sequence[str], top_k: int, collection: str | None) -> tuple[Ranked, ...]:
        """The `top_k` best passages that contain a word of `query`, best first; ties in file order."""
        wanted = self._query(query, collection)
        limit = top_k + 1
        hits = self._searcher.search(wanted, limit, count=False).hits
        # tantivy orders ties by segment. To order them by file position, fetch all that tie with the last hit.
        while len(hits) == limit and hits[-1][0] == hits[top_k - 1][0]:
            limit *= _FURTHER
            hits = self._searcher.search(wanted, limit, count=False).hits
        numbers = self._searcher.fast_field_values("number", [address for _, address in hits])
        ranked = sorted(zip(hits, numbers, strict=True), key=lambda hit: (-hit[0][0], hit[1]))
        documents = [(score, self._searcher.doc(address)) for (score, address), _ in ranked[:top_k]]
        return tuple((score, Passage(d["id"][0].decode(), d["shown"][0].decode())) for score, d in documents)

    def close(self) -> None:
        """Nothing to free: the object holds no resources."""

    def _query(self, query: Sequence[str], collection: str | None) -> tantivy.Query:
        wanted = tantivy.Query.boolean_query(
            [(tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", word)) for word in query]
        )
        if collection is None:
            return wanted
        inside = tantivy.Query.term_query(self._schema, "collection", collection)
        unscored = tantivy.Query.const_score_query(inside, 0.0)
        return tantivy.Query.boolean_query([(tantivy.Occur.Must, wanted), (tantivy.Occur.Must, unscored)])


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_text_field("collection", tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("number", fast=True)
    builder.add_bytes_field("id", stored=True)
    builder.add_bytes_field("shown", stored=True)
    return builder.build()


def _add(index: tantivy.Index, rows: Iterable[PassageRow], text_bytes: int) -> tantivy.Index:
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
    return index
