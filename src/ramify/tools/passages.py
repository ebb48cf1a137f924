"""A BM25 index over a JSONL file of passages: in memory, or in a folder that need not be built again.

A passage is split into words: runs of letters and digits after NFKC and case folding. Queries are split in the same way,
so nothing that a model writes can act as query syntax.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.tools.index_folder import open_folder
from ramify.tools.passage_rows import Passage, PassageReader, is_text, words
from ramify.tools.ranked_index import Ranked, RankedIndex

MEMORY_BYTES = 32_000_000
"""Files up to this size are indexed in memory, which takes seconds, unless a folder is named."""


class PassageIndex:
    """Ranks passages for a query. An open index never changes.

    Attributes:
        fingerprint: Hash of the file's bytes.
        engine: The search engine: "tantivy", or "sqlite" if tantivy is not installed.
    """

    def __init__(self, ranked: RankedIndex, fingerprint: str) -> None:
        self._ranked = ranked
        self.fingerprint = fingerprint
        self.engine = ranked.NAME

    @classmethod
    def build(cls, path: Path, engine: type[RankedIndex] | None = None) -> "PassageIndex":
        """Read `path` and index it in memory.

        Args:
            path: A line is {"text" or "contents", "id"?, "title"?, "collection"?}.
            engine: The search engine; None: tantivy if it is installed, else SQLite.

        Raises:
            DataError: The file is missing or empty, or a line is broken.
        """
        reader = PassageReader(path)
        ranked = (engine or _engine()).create(None, reader.rows(), path.stat().st_size)
        if not len(ranked):
            raise DataError(f"{path}: empty; expected one passage a line")
        return cls(ranked, reader.fingerprint)

    @classmethod
    def open(
        cls,
        path: Path,
        folder: Path | None = None,
        *,
        note: Callable[[str], None] = lambda _: None,
        engine: type[RankedIndex] | None = None,
    ) -> "PassageIndex":
        """Open the index of `path` in a folder, building it if needed; a small file is indexed in memory.

        Args:
            path: As in `build`.
            folder: Where to keep the index; None: in memory up to `MEMORY_BYTES`, else in "PATH.index".
            note: Called with a line for people when something is built.
            engine: As in `build`.

        Raises:
            DataError: As in `build`; or the folder holds something else, a newer ramify's index, or cannot be written.
        """
        if folder is None:
            if not path.is_file() or path.stat().st_size <= MEMORY_BYTES:
                return cls.build(path, engine)
            folder = path.with_name(path.name + ".index")
        ranked, fingerprint = open_folder(engine or _engine(), path, folder, note)
        return cls(ranked, fingerprint)

    def __len__(self) -> int:
        return len(self._ranked)

    def search(self, query: str, top_k: int, collection: str | None = None) -> tuple[Passage, ...]:
        """The `top_k` best passages that share a word with `query`, best first; ties in file order.

        Each distinct word of the query counts once. `collection` restricts the passages, but does not change scores.
        """
        return tuple(passage for _, passage in self.ranked(query, top_k, collection))

    def ranked(self, query: str, top_k: int, collection: str | None = None) -> tuple[Ranked, ...]:
        """As `search`, but each passage with its score."""
        asked = tuple(dict.fromkeys(words(query)))
        # A collection name with a lone surrogate matches no passage, and no engine accepts it.
        if not asked or not is_text(collection or ""):
            return ()
        return self._ranked.search(asked, top_k, collection)

    def close(self) -> None:
        """Close files; closing twice is allowed."""
        self._ranked.close()


def _engine() -> type[RankedIndex]:
    try:
        module: Any = importlib.import_module("ramify.tools.index_tantivy")
    except ImportError:
        module = importlib.import_module("ramify.tools.index_sqlite")
        engine: type[RankedIndex] = module.SqliteIndex
        return engine
    engine = module.TantivyIndex
    return engine
