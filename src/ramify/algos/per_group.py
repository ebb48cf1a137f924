"""What estimators share that look at one group at a time."""

from collections.abc import Mapping, Sequence

from ramify.core.records import Notes, Reward
from ramify.core.tree import Tree


class PerGroup:
    """An estimator that needs no sums over the batch."""

    __slots__ = ()

    def moments(
        self, trees: Sequence[Tree], rewards: Sequence[Sequence[Reward]], notes: Sequence[Notes]
    ) -> Mapping[str, float]:
        """Nothing is shared between groups."""
        del trees, rewards, notes
        return {}
