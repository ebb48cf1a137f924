"""Base class of estimators that look at one group at a time."""

from collections.abc import Sequence

from ramify.core.records import AnnotatedTree, BatchSums


class PerGroup:
    """An estimator that needs no batch statistics."""

    __slots__ = ()

    def batch_statistics(self, trees: Sequence[AnnotatedTree]) -> tuple[BatchSums, ...]:
        """Empty: groups are independent of each other."""
        del trees
        return ()
