"""Credit of recorded trees for the page: under the run's own algorithm, and under those that ship with ramify."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ramify.assemble.recorded_credit import (
    RecordedAlgorithm,
    max_tokens_of,
    own_algorithm,
    shipped_algorithms,
)
from ramify.core.errors import ConfigError
from ramify.obs.trace import TracedTree, read_trees
from ramify.view.folders import RunPlace, TraceSource

_MOST_TREES = 500
"""Trees of a step that are read for the credit of one of them, where it depends on them all."""


class RunCredits:
    """The algorithms that a run's trees can be credited with, by name; none for an evaluation or a synthesis."""

    def __init__(self, run: RunPlace) -> None:
        self._run = run

    @cached_property
    def own(self) -> RecordedAlgorithm | None:
        """The algorithm of the run; None if it has none, or none that can be computed from a trace."""
        if self._run.kind not in ("train", "rollout"):
            return None
        try:
            algorithm = own_algorithm(self._run.folder)
        except ConfigError:
            return None
        return algorithm if algorithm is not None and not algorithm.obstacle(()) else None

    @cached_property
    def algorithms(self) -> Mapping[str, RecordedAlgorithm]:
        """All algorithms, the run's own first."""
        if self.own is None:
            return {}
        shipped = shipped_algorithms(max_tokens_of(self._run.folder))
        others = (each for each in shipped if not each.obstacle(()) and each.section != self.own.section)
        return {algorithm.name: algorithm for algorithm in (self.own, *others)}

    def of_tree(self, source: TraceSource, row: int, traced: TracedTree, name: str) -> dict[str, Any]:
        """Return the credit of each node of a tree under an algorithm.

        Raises:
            ConfigError: There is no such algorithm, or the trace does not hold what it needs.
        """
        if name not in self.algorithms:
            raise ConfigError(
                f"{name}: no such algorithm. Choose one of {', '.join(self.algorithms) or 'none'}."
            )
        algorithm = self.algorithms[name]
        trees, index = (traced,), 0
        if not algorithm.obstacle(trees) and algorithm.needs_whole_step:
            trees, index = read_trees(source.path), row
            if len(trees) > _MOST_TREES:
                raise ConfigError(
                    f"{name}: the credit depends on all {len(trees)} trees of {source.id}. Use ramify credit."
                )
        credit = algorithm.credit(trees).trees[index]
        return {} if credit is None else credit.record()
