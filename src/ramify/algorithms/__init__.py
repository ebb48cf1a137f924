"""Algorithms; public: `rf.algorithms`. Each is the `[algorithm]` of a recipe that ships, with the keys changed that are passed.

An estimator or a loss may be a function: `ARPO(estimator=advantage)`, `ARPO(loss=token_loss)`.
"""

from collections.abc import Callable
from typing import Any

from ramify.api.tables import algorithm_table, as_table, function_table, merged
from ramify.config.load import check_recipe
from ramify.config.schema_algorithm import AlgorithmSection as Algorithm

__all__ = [
    "AEPO",
    "ARPO",
    "CISPO",
    "DAPO",
    "GPPO",
    "GRPO",
    "GSPO",
    "RLOO",
    "Algorithm",
    "DrGRPO",
    "NodeValue",
    "ReinforcePP",
    "TreeGRPO",
    "named",
    "own",
]


def named(name: str, **changes: Any) -> Algorithm:  # noqa: ANN401 - keys of [algorithm]
    """Return the algorithm of a shipped recipe, such as "arpo", with other keys.

    Raises:
        ConfigError: There is none of this name, or a key is wrong.
    """
    parts = {
        key: function_table(each) if key in ("estimator", "loss") else as_table(each)
        for key, each in changes.items()
    }
    return check_recipe(Algorithm, merged(algorithm_table(name), parts), f"algorithms.{name}")


def own(function: Callable[..., Any], **args: Any) -> Any:  # noqa: ANN401 - the table of a part
    """Return an estimator or a loss that is a function: advantages of (rewards, tree), or a token loss f(ratio, sign).

    Args:
        function: The function.
        args: Its further arguments.
    """
    return function_table(function, args=args)


def ARPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return ARPO (arXiv 2507.19849): group advantages over trees that branch where entropy rises."""
    return named("arpo", **changes)


def AEPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return AEPO (arXiv 2510.14545): stop-gradient clip and entropy-aware advantages."""
    return named("aepo", **changes)


def GRPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return GRPO (arXiv 2402.03300), with its KL penalty."""
    return named("grpo", **changes)


def DAPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return DAPO (arXiv 2503.14476); its shaped lengths need a `Trainer`."""
    return named("dapo", **changes)


def DrGRPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return Dr. GRPO (arXiv 2503.20783)."""
    return named("dr_grpo", **changes)


def RLOO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return RLOO (arXiv 2402.14740)."""
    return named("rloo", **changes)


def ReinforcePP(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return REINFORCE++ (arXiv 2501.03262)."""
    return named("reinforce_pp", **changes)


def CISPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return CISPO (arXiv 2506.13585)."""
    return named("cispo", **changes)


def GPPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return GPPO (arXiv 2508.07629)."""
    return named("gppo", **changes)


def GSPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return GSPO (arXiv 2507.18071), whose ratio is that of a whole trajectory."""
    return named("gspo", **changes)


def TreeGRPO(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return Tree-GRPO (arXiv 2509.21240): within and between trees."""
    return named("tree_grpo", **changes)


def NodeValue(**changes: Any) -> Algorithm:  # noqa: ANN401
    """Return advantages from the mean rewards below each node."""
    return named("node_value", **changes)
