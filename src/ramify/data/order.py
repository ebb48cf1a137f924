"""The order of problems in training: one permutation per (seed, epoch), and a cursor from which a run resumes."""

import functools
from dataclasses import dataclass

from ramify.core.draws import permutation, stream
from ramify.core.errors import DataError
from ramify.core.records import Ints


@dataclass(frozen=True, slots=True)
class DataCursor:
    """Position of the run: `next_index` problems of `epoch` have been taken."""

    epoch: int = 0
    next_index: int = 0


@dataclass(frozen=True, slots=True)
class ProblemOrder:
    """An endless order of `num_problems` problems; every epoch contains each problem once."""

    num_problems: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_problems < 1:
            raise ValueError("there are no problems to order")

    def take(self, cursor: DataCursor, count: int) -> tuple[tuple[int, ...], DataCursor]:
        """Return the next `count` problem indices, across epochs if needed, and the cursor after them.

        Raises:
            DataError: The cursor lies outside the epoch, so it belongs to other data.
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
    """Return the permutation of an epoch; cached, because every step asks for it."""
    return permutation(stream("data order", seed, epoch), size)
