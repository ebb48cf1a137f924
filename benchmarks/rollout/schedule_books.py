"""Two other ways to spend a problem's branch budget, to see what grants in logical time cost and give."""

from collections.abc import Iterator

from ramify.rollout.branch_budget import Allocation, BranchAllocation, BranchBudget
from ramify.rollout.turn import BranchKey


class FirstComeBook(BranchBudget):
    """Whoever asks while something is left gets it: no waits, and a tree that depends on who was fast."""

    def _decide(self, budget: int) -> Iterator[BranchAllocation]:
        for depth, key in list(self._waiting):
            children = min(self._waiting.pop((depth, key)), budget - self._used - self._top_ups)
            branch = BranchAllocation(key, depth, children)
            self._used += children
            self._alive.update(dict.fromkeys(branch.child_keys, depth))
            yield branch


class QuotaBook(BranchBudget):
    """Every root has an equal share, which it halves with each branch: no waits, and shares that lie idle.

    What a trajectory leaves of its share at its end starts from the prompt.
    """

    def __init__(self, max_depth: int, fanout: int) -> None:
        super().__init__(max_depth, fanout)
        self._roots: list[BranchKey] = []
        self._shares: dict[BranchKey, int] = {}
        self._ended: set[BranchKey] = set()

    def open(self, budget: int) -> None:
        """Deal the budget out."""
        super().open(budget)
        share, more = divmod(budget, len(self._roots))
        self._shares = {key: share + (index < more) for index, key in enumerate(sorted(self._roots))}

    def start_root(self, key: BranchKey) -> None:
        """A root starts."""
        super().start_root(key)
        self._roots.append(key)

    def finish(self, key: BranchKey) -> None:
        """Free the rest of the trajectory's share."""
        super().finish(key)
        self._ended.add(key)

    def allocate(self) -> Allocation:
        """Decide everything."""
        if self._budget is None:
            return Allocation((), 0)
        branches = tuple(self._decide(self._budget))
        spent = [key for key in self._shares if key in self._ended or self._alive[key] == self.max_depth]
        top_ups = sum(self._shares.pop(key) for key in spent)
        self._top_ups += top_ups
        return Allocation(branches, top_ups)

    def _decide(self, budget: int) -> Iterator[BranchAllocation]:
        del budget
        for depth, key in list(self._waiting):
            children = min(self._waiting.pop((depth, key)), self._shares.get(key, 0))
            branch = BranchAllocation(key, depth, children)
            self._used += children
            if children:
                left = self._shares[key] - children
                heirs = (key, *branch.child_keys)
                share, more = divmod(left, len(heirs))
                self._shares.update({heir: share + (index < more) for index, heir in enumerate(heirs)})
                self._alive.update(dict.fromkeys(branch.child_keys, depth))
            yield branch
