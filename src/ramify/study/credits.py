"""Estimators' credit of decisions, by the functions of training and without a model."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ramify.assemble.recorded_credit import RecordedAlgorithm, TreeCredit
from ramify.config.load import check_recipe
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.obs.trace import TracedTree
from ramify.study.decisions import Decision

ESTIMATORS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "group": {"name": "group"},
        "group, scale none": {"name": "group", "scale": "none"},
        "leave subtree out": {"name": "group", "baseline": "leave_subtree_out"},
        "node value": {"name": "node_value"},
        "turn level": {"name": "turn_level"},
        "Tree-GRPO": {"name": "tree_grpo"},
    }
)
"""The estimators that need rewards only, by their names in tables."""


def estimator_credits(trees: Sequence[TracedTree]) -> dict[str, tuple[TreeCredit | None, ...]]:
    """Return the credit of a file of trees under each of `ESTIMATORS`, by name; None: the step did not learn from the tree."""
    return {name: algorithm_of(name, table).credit(trees).trees for name, table in ESTIMATORS.items()}


def algorithm_of(name: str, estimator: Mapping[str, Any]) -> RecordedAlgorithm:
    """Return an algorithm that has nothing but its estimator, for rewards as they are.

    Raises:
        ConfigError: There is no such estimator.
    """
    table = {"estimator": dict(estimator), "loss": {"name": "clip"}}
    return RecordedAlgorithm(name, check_recipe(AlgorithmSection, table, name), keeps_rewards=True)


def credit_of(decision: Decision, credit: TreeCredit | None) -> float | None:
    """Return the mean advantage over the tokens of a turn and the trajectories through it; None if it has none."""
    if credit is None:
        return None
    parts = [credit.means[node] for node in decision.nodes if node in credit.means]
    advantages = np.concatenate(parts) if parts else np.zeros(0)
    return float(advantages.mean()) if len(advantages) else None
