"""`bench_credit`: an estimator of credit against executed effects, in three frozen worlds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ramify.algos.estimators import EstimatorConfig
from ramify.algos.file_parts import FileEstimator
from ramify.api.tables import algorithm_section, is_function
from ramify.assemble.recorded_credit import RecordedAlgorithm
from ramify.core.errors import ConfigError
from ramify.files.user_code import load_user_function, name_function
from ramify.study.audit import HEADER, ranking_row
from ramify.study.bench import WORLDS, BenchWorld, read_world
from ramify.study.credits import ESTIMATORS, algorithm_of
from ramify.study.ranking import Ranking

_NAMES = {table["name"]: table for table in ESTIMATORS.values() if len(table) == 1}
_WITHOUT_MODEL = {
    "kl": None,
    "correction": None,
    "old": "behavior",
    "truncated": "train",
    "overlong_margin": None,
}
"""An algorithm's keys that act besides its advantages, or need values of a model that no trace holds."""


@dataclass(frozen=True, repr=False)
class CreditBench:
    """An estimator's rankings, beside those of the built-in ones.

    Attributes:
        name: The estimator.
        worlds: Its ranking in each world: `.spearman`, `.auroc` and `.sure` are intervals with `.value`, `.low` and `.high`.
        others: Those of the built-in estimators, by world.
        ceilings: By world, the correlation of the true effects with the measured ones, at most.
    """

    name: str
    worlds: Mapping[str, Ranking]
    others: Mapping[str, tuple[Ranking, ...]]
    ceilings: Mapping[str, float | None]

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("world", *HEADER)]
        for world, ranking in self.worlds.items():
            others = (each for each in self.others[world] if each != ranking)
            rows += [(world, *ranking_row(each)) for each in (ranking, *others)]
            ceiling = self.ceilings[world]
            if ceiling is not None:
                rows.append((world, "(ceiling)", "", f"{ceiling:.2f}", "", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def bench_credit(estimator: Any = "group") -> CreditBench:  # noqa: ANN401 - a name, an object or a function
    """Score an estimator of credit on frozen trees of three worlds whose decisions were resampled; needs no model.

    Args:
        estimator: A name ("group", "node_value", "turn_level", "tree_grpo") or an object of `ramify.algorithms`, or that of an
            algorithm ("arpo"), of which the advantages count, without KL and corrections; or a function `f(rewards, tree)` that returns an advantage for each of `tree.trajectories`, as in
            a recipe, or a mapping with a number for each id of a policy node.

    Raises:
        ConfigError: It is none of these, or needs what the trees do not hold; or the function raised, or returned something else.
    """
    name, rank = _ranked_by(estimator)
    worlds = {world: read_world(world) for world in WORLDS}
    return CreditBench(
        name,
        {world: rank(each) for world, each in worlds.items()},
        {world: each.audit.rankings for world, each in worlds.items()},
        {world: each.audit.ceiling for world, each in worlds.items()},
    )


def _ranked_by(estimator: Any) -> tuple[str, Callable[[BenchWorld], Ranking]]:  # noqa: ANN401
    if is_function(estimator):
        name = getattr(estimator, "__name__", type(estimator).__name__)
        own_function = load_user_function(*name_function(estimator), FileEstimator.parameters, {})
        return name, lambda world: world.rank_function(name, own_function)
    if isinstance(estimator, str) and estimator in _NAMES:
        own = algorithm_of(estimator, _NAMES[estimator])
    else:
        try:
            section = algorithm_section(estimator).model_copy(update=_WITHOUT_MODEL)
        except ConfigError as error:
            raise ConfigError(f"{error}. Estimators are {', '.join(_NAMES)}") from None
        name = estimator if isinstance(estimator, str) else _described(section.estimator)
        own = RecordedAlgorithm(name, section, runs_file=True)
    return own.name, lambda world: world.rank_algorithm(own.name, own)


def _described(estimator: EstimatorConfig) -> str:
    """Return the name of an estimator with its keys that are not the defaults: the table has rows of the same name."""
    if isinstance(estimator, FileEstimator):
        return estimator.function
    keys = (field.name for field in fields(estimator) if estimator.is_changed(field.name))
    return ", ".join([estimator.name, *(f"{key} {getattr(estimator, key)}" for key in keys)])
