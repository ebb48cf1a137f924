"""Branching rules; public: `rf.branching`. A plain function of a candidate that returns a probability is a rule too."""

from collections.abc import Callable
from typing import Any

from ramify.algos.branch_aepo import BalancedConfig as Balanced
from ramify.algos.branch_arpo import BernoulliConfig as Bernoulli
from ramify.algos.branch_arpo import ThresholdConfig as Threshold
from ramify.algos.branch_controls import OracleConfig as Oracle
from ramify.algos.branch_controls import QuantileConfig as Quantile
from ramify.algos.branch_controls import ShuffledConfig as Shuffled
from ramify.algos.branch_controls import YokedConfig as Yoked
from ramify.algos.branch_rules import FlatConfig as Flat
from ramify.algos.branch_rules import RandomConfig as Random
from ramify.algos.branch_seed_compat import ReleasedAepoConfig as ReleasedAepo
from ramify.algos.branch_seed_compat import ReleasedArpoConfig as ReleasedArpo
from ramify.algos.file_parts import FileRule
from ramify.core.records import BranchCandidate as Candidate
from ramify.files.user_code import name_function

__all__ = [
    "Balanced",
    "Bernoulli",
    "Candidate",
    "Flat",
    "Function",
    "Oracle",
    "Quantile",
    "Random",
    "ReleasedAepo",
    "ReleasedArpo",
    "Shuffled",
    "Threshold",
    "Yoked",
]


def Function(
    rule: Callable[..., float],
    *,
    probe_tokens: int = 20,
    children: int = 1,
    **args: Any,  # noqa: ANN401 - those of the function
) -> FileRule:
    """Return a rule that branches with the probability that a function of a `Candidate` returns.

    Args:
        rule: The function; probabilities outside [0, 1] are clipped.
        probe_tokens: Tokens after a result whose mean entropy the candidate has.
        children: Branches that a positive decision asks for.
        args: Further arguments of the function.

    Raises:
        ConfigError: A value is wrong.
    """
    path, name = name_function(rule)
    return FileRule(path=path, function=name, args=args, probe_tokens=probe_tokens, children=children)
