"""Which server a request goes to: the one that has most of its context cached, unless it has far more to do than another.

A branch, and the next turn of a trajectory, start with tokens that some server has computed; vLLM keeps these in blocks.
Here a server is remembered by hashes of the contexts that it was sent, block by block, so nothing is asked of the servers.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol, TypeVar

BLOCK_TOKENS = 16
"""Tokens of a block, as in vLLM on a GPU (128 on a CPU): a prefix is found up to its last whole block."""
_LOAD_TOKENS = 64
"""One more request in flight counts as much as computing this many tokens."""
_MOST_BLOCKS = 1 << 18
"""Blocks remembered of a server: four million tokens, about what its cache holds."""


class CachedPrefixes:
    """The contexts that a server was sent, newest last."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def tokens(self, blocks: Iterable[int]) -> int:
        """Return how many tokens of a context the server has probably cached."""
        return BLOCK_TOKENS * sum(1 for _ in takewhile(self._blocks.__contains__, blocks))

    def add(self, blocks: Iterable[int]) -> None:
        """Remember a context."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: its weights changed, or it started again."""
        self._blocks.clear()


def blocks_of(token_ids: Sequence[int]) -> list[int]:
    """Return a hash of each whole block of a context together with all before it."""
    hashes, before = [], 0
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = hash((before, tuple(token_ids[start : start + BLOCK_TOKENS])))
        hashes.append(before)
    return hashes


class Server(Protocol):
    """A server as far as routing knows it."""

    @property
    def prefixes(self) -> CachedPrefixes:
        """Return the contexts that it has probably cached."""
        ...

    @property
    def in_flight(self) -> int:
        """Return the number of requests that it is answering."""
        ...


AnyServer = TypeVar("AnyServer", bound=Server)


def least_work(servers: Sequence[AnyServer], blocks: Sequence[int]) -> AnyServer:
    """Return the server with the fewest tokens to compute, requests in flight counted as tokens; the first of equals."""
    return min(servers, key=lambda server: server.in_flight * _LOAD_TOKENS - server.prefixes.tokens(blocks))
