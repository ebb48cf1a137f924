"""Credit of recorded trees under any algorithm: by the functions that training uses, without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ramify.algos.credit import credit, denominator, training_trees
from ramify.algos.file_parts import FileEstimator
from ramify.algos.ops import by_node
from ramify.assemble.algorithm import build_estimator, build_weighting
from ramify.config import shipped_recipes
from ramify.config.load import command_of, load_tables, read_toml
from ramify.config.schema_algorithm import AlgorithmSection, AlgorithmTable
from ramify.core.errors import ConfigError
from ramify.core.outcomes import counted
from ramify.core.protocols import Estimator
from ramify.core.records import (
    AnnotatedTree,
    Annotations,
    Floats,
    NodeAnnotations,
    NodeCredit,
    ScoredTree,
    TrainingTree,
    behavior_annotations,
)
from ramify.core.tree import Source, Tree
from ramify.obs.trace import TracedTree
from ramify.rewards.trajectory_rewards import OVERLONG, length_penalty
from ramify.runs.recorded_trees import recipe_of


@dataclass(frozen=True, slots=True, eq=False)
class TreeCredit:
    """Credit of the trajectories of a recorded tree that count.

    Attributes:
        advantages: Advantage of each written token of a trajectory, by the id of its leaf. [T] each
        nodes: Credit of each token of a policy node, by the node's id. [N] each
        means: Mean advantage of each token of a node over the trajectories through it, by the node's id. [N] each
    """

    advantages: Mapping[str, Floats]
    nodes: Mapping[str, NodeCredit]
    means: Mapping[str, Floats]

    @classmethod
    def of(cls, tree: TrainingTree, nodes: Mapping[str, NodeCredit]) -> "TreeCredit":
        """Arrange a tree's advantages by leaf and by node."""
        pairs = list(zip(tree.tree.trajectories, tree.advantages, strict=True))
        through: dict[str, list[Floats]] = {}
        for trajectory, advantages in pairs:
            for node, own in by_node(trajectory, advantages):
                through.setdefault(node.id, []).append(own)
        means: dict[str, Floats] = {name: np.mean(arrays, axis=0) for name, arrays in through.items()}
        return cls({trajectory.leaf.id: own for trajectory, own in pairs}, nodes, means)

    def record(self) -> dict[str, dict[str, list[float]]]:
        """Return the numbers of each node as JSON: `advantage` (the mean), `s_plus`, `s_minus`, `weight`; one for each token."""
        return {
            name: {
                "advantage": self.means[name].tolist(),
                "s_plus": node.s_plus.tolist(),
                "s_minus": node.s_minus.tolist(),
                "weight": node.weight.tolist(),
            }
            for name, node in self.nodes.items()
        }


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Credit of a step's trees.

    Attributes:
        trees: One for each tree, in order; None: the step did not learn from it, or none of its trajectories counts.
        denominator: Divisor of the loss, and of S+, S- and W with it, if the step were one mini-batch.
    """

    trees: tuple[TreeCredit | None, ...]
    denominator: float


@dataclass(frozen=True)
class RecordedAlgorithm:
    """An algorithm, and what else the credit of recorded trees depends on.

    Attributes:
        name: For people: the name of a shipped recipe, the path of another one, or "of the run".
        section: Its settings.
        max_tokens: Limit of a trajectory of the recorded run, which a penalty for length needs; None: not known.
        runs_file: Whether an estimator in a file of the user's own may be run: only if the user named the recipe.
        keeps_rewards: Whether the rewards keep the recorded penalty for length.
    """

    name: str
    section: AlgorithmSection
    max_tokens: int | None = None
    runs_file: bool = False
    keeps_rewards: bool = False

    @cached_property
    def _estimator(self) -> Estimator:
        return build_estimator(self.section)

    def obstacle(self, trees: Sequence[TracedTree]) -> str:
        """Return why the credit cannot be computed from these trees, and what to do; "" if it can."""
        section = self.section
        entropy, batch = section.entropy_advantage, _batch(trees).values()
        if isinstance(section.estimator, FileEstimator) and not self.runs_file:
            return (
                f"algorithm.estimator: a function of {section.estimator.path}, which a record does not run by itself. "
                "Name the recipe: ramify credit --algorithm RECIPE"
            )
        if section.kl is not None and section.kl.place == "reward":
            return (
                "algorithm.kl: in the reward it needs logprobs of the reference model, which no trace holds. "
                "Remove it: -s algorithm.kl="
            )
        if section.correction is not None and not all(map(_has_old_logprobs, batch)):
            return (
                "algorithm.correction: its importance weights need the learner's logprobs, which only a step of training with "
                'old = "recompute" records. Remove it: -s algorithm.correction='
            )
        if entropy is not None and entropy.source == "annotate":
            return (
                "algorithm.entropy_advantage: it takes the learner's entropies, which no trace holds. "
                "Take the engine's: -s algorithm.entropy_advantage.source=behavior"
            )
        if entropy is not None and not all(map(_has_entropies, batch)):
            return (
                "algorithm.entropy_advantage: the trace lacks entropies of the written tokens. "
                "Remove it: -s algorithm.entropy_advantage="
            )
        if section.overlong_margin is not None and self.max_tokens is None:
            return (
                "algorithm.overlong_margin: a penalty for length needs rollout.max_tokens of the run. "
                "Name a file of trees in the run's folder"
            )
        return ""

    @property
    def needs_whole_step(self) -> bool:
        """True if an advantage depends on other trees of the step. Call it only where there is no obstacle."""
        return bool(self._estimator.batch_statistics(()))

    def credit(self, trees: Sequence[TracedTree]) -> StepCredit:
        """Return the credit of trees: all those of a step, or some of them if `needs_whole_step` is False.

        If the step trained on some of them, the others get no credit; trees that nothing was trained on get what they would
        have got. Rewards are the recorded ones, but for the penalty for length, which is that of this algorithm unless it `keeps_rewards`.

        Raises:
            ConfigError: There is an `obstacle`.
        """
        if reason := self.obstacle(trees):
            raise ConfigError(f"{self.name}: {reason}")
        batch: dict[int, AnnotatedTree] = {}
        for index, traced in _batch(trees).items():
            if (scored := counted(traced if self.keeps_rewards else self._shaped(traced))) is not None:
                notes = _annotations(scored.tree, traced.old_logprobs)
                batch[index] = AnnotatedTree(scored.tree, scored.rewards, notes)
        masks = self.section.truncated == "mask"
        credited = training_trees(tuple(batch.values()), self._estimator, self.section.correction, masks)
        weighting = build_weighting(self.section)
        by_index = {
            index: TreeCredit.of(tree, credit(tree, weighting))
            for index, tree in zip(batch, credited, strict=True)
        }
        divisor = denominator([tree.tree for tree in credited], weighting)
        return StepCredit(tuple(map(by_index.get, range(len(trees)))), divisor)

    def _shaped(self, traced: ScoredTree) -> ScoredTree:
        """Return the tree with this algorithm's penalty for length in place of the recorded one."""
        margin, rewards = self.section.overlong_margin, []
        for trajectory, reward in zip(traced.tree.trajectories, traced.rewards, strict=True):
            recorded, penalty = reward.parts.get(OVERLONG, 0.0), 0.0
            if margin is not None and self.max_tokens is not None:
                penalty = length_penalty(trajectory, self.max_tokens, margin)
            # A recorded reward stays what it is to the last bit.
            value = reward.value if penalty == recorded else reward.value - recorded + penalty
            rewards.append(replace(reward, value=value))
        return ScoredTree(traced.tree, tuple(rewards))


def _batch(trees: Sequence[TracedTree]) -> dict[int, TracedTree]:
    """Return the trees that a step trained on, by their places; all of them if it trained on none."""
    trained = {index: traced for index, traced in enumerate(trees) if traced.advantages is not None}
    return trained or dict(enumerate(trees))


def _annotations(tree: Tree, old_logprobs: Mapping[str, Sequence[float]]) -> Annotations:
    """Return the recorded logprobs of the learner, by policy node; where there are none, the engine's."""
    engines = behavior_annotations(tree)
    if not old_logprobs:
        return engines
    return {name: NodeAnnotations(np.array(old_logprobs.get(name, ()))) for name in engines}


def _has_entropies(traced: TracedTree) -> bool:
    written = (node for node in traced.tree.nodes if node.source is Source.POLICY)
    return all(len(node.token_entropies) == len(node.token_ids) for node in written)


def _has_old_logprobs(traced: TracedTree) -> bool:
    scored = counted(traced)
    written = [] if scored is None else [node for node in scored.tree.nodes if node.source is Source.POLICY]
    return all(len(traced.old_logprobs.get(node.id, ())) == len(node.token_ids) for node in written)


def own_algorithm(source: Path, overrides: Sequence[str] = ()) -> RecordedAlgorithm | None:
    """Return the algorithm of the run that a folder or a file of trees belongs to; None if it has none, as an evaluation.

    Raises:
        ConfigError: The recipe cannot be read.
    """
    path = recipe_of(source)
    if path is None or "algorithm" not in read_toml(path):
        return None
    section = load_tables(AlgorithmTable, path, overrides).algorithm
    name = "of the run, changed" if overrides else "of the run"
    return RecordedAlgorithm(name, section, max_tokens_of(source))


def named_algorithm(
    path: Path, overrides: Sequence[str] = (), max_tokens: int | None = None
) -> RecordedAlgorithm:
    """Return the algorithm of a recipe that the user named, for a run with this `rollout.max_tokens`.

    Raises:
        ConfigError: The recipe cannot be read, or has no table [algorithm].
    """
    name = path.stem if path.parent == shipped_recipes() else f"{path}"
    section = load_tables(AlgorithmTable, path, overrides).algorithm
    return RecordedAlgorithm(name, section, max_tokens, runs_file=True)


def shipped_algorithms(max_tokens: int | None = None) -> tuple[RecordedAlgorithm, ...]:
    """Return the algorithms of the recipes that ship with ramify, each once, by the first recipe's name."""
    algorithms: list[RecordedAlgorithm] = []
    for path in sorted(shipped_recipes().glob("*.toml")):
        if command_of(read_toml(path)) == "train":
            algorithm = replace(named_algorithm(path, (), max_tokens), runs_file=False)
            if all(algorithm.section != other.section for other in algorithms):
                algorithms.append(algorithm)
    return tuple(algorithms)


def max_tokens_of(source: Path) -> int | None:
    """Return `rollout.max_tokens` of the run that a folder or a file of trees belongs to; None if it is not known."""
    path = recipe_of(source)
    table = None if path is None else read_toml(path).get("rollout")
    value = table.get("max_tokens") if isinstance(table, dict) else None
    return value if isinstance(value, int) else None
