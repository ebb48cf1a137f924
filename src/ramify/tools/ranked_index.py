"""The interface between an index of passages and the search engines that can implement it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeAlias

from ramify.tools.passage_rows import Passage, PassageRow

Ranked: TypeAlias = tuple[float, Passage]
"""A score (higher is better) and the passage."""


class RankedIndex(Protocol):
    """Ranks passages by BM25. Threads can share an index."""

    NAME: ClassVar[str]
    VERSION: ClassVar[str]
    """Version of the library. An index that another version wrote is rebuilt."""
    BROKEN: ClassVar[tuple[type[Exception], ...]]
    """The errors that the library raises for files that it cannot read or write."""

    @classmethod
    def create(cls, folder: Path | None, rows: Iterable[PassageRow], text_bytes: int) -> Self:
        """Index `rows`, about `text_bytes` of text, in an empty folder, or in memory (None)."""
        ...

    @classmethod
    def extend(cls, folder: Path, rows: Iterable[PassageRow], text_bytes: int) -> Self:
        """Add `rows` to the index in `folder`."""
        ...

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index in `folder`."""
        ...

    @staticmethod
    def copy_file(source: str, target: str) -> str:
        """Copy a file of an index before `extend`; a file that `extend` never changes may be hard-linked."""
        ...

    def __len__(self) -> int:
        """Number of passages."""
        ...

    def search(self, query: Sequence[str], top_k: int, collection: str | None) -> tuple[Ranked, ...]:
        """The `top_k` best passages that contain a word of `query` (distinct words), best first; ties in file order.

        `collection` restricts the passages, but does not change scores.
        """
        ...

    def close(self) -> None:
        """Close files."""
        ...
