"""The branching decisions of an earlier run, which the rules `yoked` and `shuffled` compare with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ramify.core.errors import ConfigError
from ramify.core.records import BranchQuota
from ramify.core.tree import BranchDecision, TreeKey


@dataclass(frozen=True, slots=True)
class PairedTree:
    """The decisions of one tree."""

    key: TreeKey
    problem: str
    decisions: tuple[BranchDecision, ...]

    @property
    def quota(self) -> BranchQuota:
        """The branches that it was granted, and by depth the results at which it still had budget for one."""
        depths = [decision.depth for decision in self.decisions if decision.had_budget]
        results = tuple(depths.count(depth) for depth in range(1, max(depths, default=0) + 1))
        return BranchQuota(sum(decision.taken for decision in self.decisions), results)


@dataclass(frozen=True)
class PairedRun:
    """The trees of an earlier run, in the order of its steps; no `slots`, because the lookups are cached."""

    folder: Path
    trees: tuple[PairedTree, ...]

    @cached_property
    def _quotas(self) -> Mapping[tuple[int, int, str], BranchQuota]:
        return {(tree.key.step, tree.key.slot, tree.problem): tree.quota for tree in self.trees}

    @cached_property
    def _first(self) -> Mapping[str, BranchQuota]:
        return {tree.problem: tree.quota for tree in reversed(self.trees)}

    @cached_property
    def _deltas(self) -> Mapping[int, Sequence[float]]:
        steps = dict.fromkeys(tree.key.step for tree in self.trees)
        return {step: _deltas(tree for tree in self.trees if tree.key.step == step) for step in steps}

    def quota(self, key: TreeKey, problem: str) -> BranchQuota:
        """Return the quota of a problem in a step; that of its first tree if the run grew it in another step only.

        Raises:
            ConfigError: The run grew no tree of the problem.
        """
        quota = self._quotas.get((key.step, key.slot, problem)) or self._first.get(problem)
        if quota is None:
            raise ConfigError(
                f"rollout.branching.of: {self.folder} grew no tree of problem {problem!r}, which step {key.step} of this run "
                "takes. Use the data, the seed and the number of steps of that run"
            )
        return quota

    def deltas(self, step: int) -> Sequence[float]:
        """Return the entropy deltas of all decisions of a step; of all steps if the run decided nothing in that one.

        Raises:
            ConfigError: The run decided nothing.
        """
        deltas = self._deltas.get(step) or _deltas(self.trees)
        if not deltas:
            raise ConfigError(f"rollout.branching.of: {self.folder} has no branching decisions")
        return deltas


def _deltas(trees: Iterable[PairedTree]) -> Sequence[float]:
    return [decision.entropy_delta for tree in trees for decision in tree.decisions]
