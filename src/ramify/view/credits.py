"""Credit of recorded trees for the page: under the run's own algorithm, and under those that ship with ramify."""

import json
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ramify.assemble.recorded_credit import (
    RecordedAlgorithm,
    StepCredit,
    max_tokens_of,
    own_algorithm,
    shipped_algorithms,
)
from ramify.core.errors import ConfigError
from ramify.obs.trace import TracedTree, read_trees
from ramify.view.folders import RunPlace, TraceSource

_OF_CREDIT = {
    *("estimator", "shared", "advantage", "aggregation", "fixed_length", "truncated", "overlong_margin"),
    *("entropy_advantage", "kl", "correction"),
}
_MOST_TREES = 500
"""Trees of a step that are read for the credit of one of them, where it depends on them all."""


class RunCredits:
    """The algorithms that a run's trees can be credited with, by name; none for an evaluation or a synthesis.

    Of algorithms that credit alike, and differ in their loss alone, the first one is there.
    """

    def __init__(self, run: RunPlace) -> None:
        self._run = run
        self._steps: dict[str, tuple[Path, StepCredit]] = {}

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
        usable = (
            each for each in (self.own, *_shipped(max_tokens_of(self._run.folder))) if not each.obstacle(())
        )
        different: dict[str, RecordedAlgorithm] = {}
        for algorithm in usable:
            different.setdefault(_decisive(algorithm), algorithm)
        return {algorithm.name: algorithm for algorithm in different.values()}

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
        if algorithm.obstacle((traced,)) or not algorithm.needs_whole_step:
            credit = algorithm.credit((traced,)).trees[0]
        else:
            credit = self._step(source, algorithm).trees[row]
        return {} if credit is None else credit.record()

    def _step(self, source: TraceSource, algorithm: RecordedAlgorithm) -> StepCredit:
        """Return the credit of a whole step; the last one of each algorithm stays in memory."""
        path, credit = self._steps.get(algorithm.name, (None, None))
        if path != source.path or credit is None:
            trees = read_trees(source.path)
            if len(trees) > _MOST_TREES:
                raise ConfigError(
                    f"{algorithm.name}: the credit depends on all {len(trees)} trees of {source.id}. Use ramify credit."
                )
            credit = algorithm.credit(trees)
            self._steps[algorithm.name] = (source.path, credit)
        return credit


@lru_cache(maxsize=8)
def _shipped(max_tokens: int | None) -> tuple[RecordedAlgorithm, ...]:
    # Runs in one folder often have one limit, and the recipes are a dozen files.
    return shipped_algorithms(max_tokens)


def _decisive(algorithm: RecordedAlgorithm) -> str:
    """Return the settings of an algorithm that its credit depends on, which the loss does not belong to."""
    table = algorithm.section.model_dump(mode="json", include=_OF_CREDIT)
    return json.dumps(table, sort_keys=True)
