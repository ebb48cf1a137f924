"""The order in which problems are taken: a permutation of (seed, epoch), found again from a cursor."""

import functools
from dataclasses import dataclass

from ramify.core.draws import permutation, stream
from ramify.core.errors import DataError
from ramify.core.records import Ints


@dataclass(frozen=True, slots=True)
class DataCursor:
    """Where the run is: `next_index` counts the problems of `epoch` that were taken."""

    epoch: int = 0
    next_index: int = 0


@dataclass(frozen=True, slots=True)
class ProblemOrder:
    """An endless order over `num_problems` problems; every epoch has each of them once."""

    num_problems: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_problems < 1:
            raise ValueError("there are no problems to order")

    def take(self, cursor: DataCursor, count: int) -> tuple[tuple[int, ...], DataCursor]:
        """The next `count` problem indices and the cursor after them; goes on into the next epochs.

        Raises:
            DataError: The cursor lies outside of the epoch, so it belongs to other data.
        """
        if cursor.epoch < 0 or not 0 <= cursor.next_index < self.num_problems:
            raise DataError(
                f"data cursor: problem {cursor.next_index} of epoch {cursor.epoch} with {self.num_problems} "
                "problems; expected the data that the run began with"
            )
        taken: list[int] = []
        epoch, start = cursor.epoch, cursor.next_index
        while len(taken) < count:
            part = _order(self.seed, epoch, self.num_problems)[start : start + count - len(taken)].tolist()
            taken.extend(part)
            start += len(part)
            if start == self.num_problems:
                epoch, start = epoch + 1, 0
        return tuple(taken), DataCursor(epoch, start)


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, size: int) -> Ints:
    """That of an epoch, which every step of it asks for."""
    return permutation(stream("data order", seed, epoch), size)
