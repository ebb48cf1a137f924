"""Our side of the update's rows, and what the peer gets: equal trees, advantages, old logprobs and clip."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.harness.threads import NUM_THREADS
from benchmarks.update.trees import alone, reasoning_tree, with_behavior
from ramify.algos.credit import Weighting, credit, denominator
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.losses import Objective
from ramify.algos.sft import counted_once
from ramify.core.records import (
    NO_ANNOTATIONS,
    AnnotatedTree,
    CreditedTree,
    Floats,
    PackedRow,
    Reward,
    TrainingTree,
    behavior_annotations,
)
from ramify.core.tree import Source, Tree
from ramify.learner import parallel
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.pack import pack
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.load import load_model

TOKEN_BUDGET = 1024
"""The default of training recipes, 4096 tokens at a time, at the quarter of length that the trees have."""
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
OFF_POLICY_STD = 0.1
"""Of the difference between old and current logprobs, so that some ratios are clipped."""
_TEMPERATURE = 1.0


def make_learner(folder: Path, device: str = "cpu", dtype: str = "float32") -> Learner:
    """A learner whose optimizer steps change nothing, so that every run does the same work."""
    torch.set_num_threads(NUM_THREADS)
    return learner_of(load_model(folder, dtype, device))


def learner_of(model: PreTrainedModel) -> Learner:
    """The same for a model that is there."""
    return Learner(
        parallel.single_process(model, OptimizerConfig(rate=1e-12, weight_decay=0.0)),
        # So slow a warm-up that no step moves a weight by anything that a float32 sum shows.
        schedule=ScheduleConfig(warmup_steps=2**31 - 1),
        total_steps=1_000_000,
        objective=Objective(ClippedSurrogate(CLIP_LOW, CLIP_HIGH, None)),
        temperature=_TEMPERATURE,
        max_grad_norm=1.0,
        token_budget=10_000,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Trees of one optimizer step. [P]"""

    learned: Sequence[TrainingTree]

    @property
    def trees(self) -> list[Tree]:
        """The trees alone."""
        return [tree.tree for tree in self.learned]

    @property
    def denominator(self) -> float:
        """(trajectory, written token) pairs: TRL's `num_items_in_batch`."""
        return denominator(self.trees, Weighting())

    def rows(self, token_budget: int = TOKEN_BUDGET) -> tuple[PackedRow, ...]:
        """Packed, dead groups left out."""
        return pack([_credited(tree) for tree in self.learned], token_budget)

    def rows_alone(self, token_budget: int) -> tuple[PackedRow, ...]:
        """Every trajectory computed alone, one or more a row: the strongest baseline without sharing."""
        chains = [
            _training(chain, (part,))
            for tree in self.learned
            for chain, part in zip(alone(tree.tree), tree.advantages, strict=True)
        ]
        return pack([_credited(chain) for chain in chains], token_budget)

    def as_json(self) -> list[list[dict[str, Any]]]:
        """For the peer: every trajectory with its prompt, its completion, who wrote it, and old logprobs."""
        return [
            [_trajectory(tree.tree, i, tree.advantages) for i in range(len(tree.advantages))]
            for tree in self.learned
        ]


def _training(tree: Tree, advantages: tuple[Floats, ...]) -> TrainingTree:
    return TrainingTree(tree, behavior_annotations(tree), advantages)


def _credited(tree: TrainingTree) -> CreditedTree:
    return CreditedTree(tree.tree, tree.annotations, credit(tree, Weighting()))


def make_batch(learner: Learner, trees: Sequence[Tree], dead: Sequence[int] = ()) -> Batch:
    """Draw rewards and old logprobs for trees.

    Args:
        learner: Its weights give the logprobs that the old ones differ from by `OFF_POLICY_STD`.
        trees: Without behaviour logprobs.
        dead: Indices of groups whose rewards are all equal.
    """
    estimator = GroupRelative("repeat")
    batch = []
    for index, tree in enumerate(trees):
        size = len(tree.trajectories)
        generator = np.random.default_rng([1, index])
        values = np.zeros(size) if index in dead else generator.permutation(np.arange(size) % 2).astype(float)
        rewards = tuple(Reward(float(value), {}) for value in values)
        advantages = estimator.advantages(AnnotatedTree(tree, rewards, NO_ANNOTATIONS), ())
        batch.append(_training(_with_old(learner, tree, index), advantages))
    return Batch(batch)


def seeded_batch(learner: Learner, seeds: Sequence[int], dead: Sequence[int] = ()) -> Batch:
    """The trees of these seeds."""
    return make_batch(learner, [reasoning_tree(seed) for seed in seeds], dead)


def gradients_of(
    learner: Learner, rows: Sequence[PackedRow], total: float
) -> tuple[UpdateReport, Mapping[str, torch.Tensor]]:
    """An update, and the gradients before clipping by parameter name."""
    gradients: dict[str, torch.Tensor] = {}

    def keep(name: str, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        gradients[name] = parameter.grad.detach().clone()

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: keep(name, p))
        for name, parameter in learner.model.named_parameters()
    ]
    report = learner.update_rows(rows, total)
    for hook in hooks:
        hook.remove()
    return report, gradients


def relative_difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """The norm of the difference of all gradients over the norm of theirs."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"the gradients differ in their names: {sorted(ours.keys() ^ theirs.keys())}")
    away = sum(float((ours[name].double() - theirs[name].double()).square().sum()) for name in theirs)
    size = sum(float(theirs[name].double().square().sum()) for name in theirs)
    return float(np.sqrt(away / size))


def _with_old(learner: Learner, tree: Tree, index: int) -> Tree:
    # One row holds the tree whole, so its written tokens are those of the policy nodes in order.
    (row,) = pack([counted_once(tree)], sum(len(n.token_ids) for n in tree.nodes))
    (current,) = learner.logprobs([row])
    noise = np.random.default_rng([2, index]).normal(0.0, OFF_POLICY_STD, len(current))
    return with_behavior(tree, current + noise)


def _trajectory(tree: Tree, index: int, advantages: Sequence[Floats]) -> dict[str, Any]:
    prompt, *nodes = tree.trajectories[index].nodes
    written = [node.source is Source.POLICY for node in nodes]
    return {
        "prompt": list(prompt.token_ids),
        "completion": [token for node in nodes for token in node.token_ids],
        "written": [int(w) for node, w in zip(nodes, written, strict=True) for _ in node.token_ids],
        "old": [
            value
            for node, w in zip(nodes, written, strict=True)
            for value in (node.behavior_logprobs if w else (0.0,) * len(node.token_ids))
        ],
        "advantage": float(advantages[index][0]),
    }
