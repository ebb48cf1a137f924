"""Base class of estimators that look at one group at a time."""

from collections.abc import Mapping, Sequence

from ramify.core.records import Notes, Reward
from ramify.core.tree import Tree


class PerGroup:
    """An estimator that needs no batch statistics."""

    __slots__ = ()

    def moments(
        self, trees: Sequence[Tree], rewards: Sequence[Sequence[Reward]], notes: Sequence[Notes]
    ) -> Mapping[str, float]:
        """Empty: groups are independent of each other."""
        del trees, rewards, notes
        return {}
