"""The second half of a training step: from trees and rewards to an updated model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.credit import Weighting, credit, denominator, path_credit, untruncated
from ramify.config.build_algorithm import (
    build_correction,
    build_estimator,
    build_objective,
    build_weighting,
    wanted_notes,
)
from ramify.config.build_model import build_reference
from ramify.config.schema_train import TrainRecipe
from ramify.core.protocols import Estimator
from ramify.core.records import Floats, Notes, Reward
from ramify.core.tree import Tree
from ramify.learner.annotate import Reference, Wanted, annotate
from ramify.learner.pack import pack
from ramify.learner.ranks import max_over_ranks, sum_over_ranks
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.load import packs_trees

GAP_TOLERANCE = 1e-4
"""Largest mean |ln(policy / behavior)|, nats per token, at which an engine's logprobs may be the old ones (float32)."""


@dataclass(frozen=True, slots=True)
class Learning:
    """An algorithm applied to a learner.

    Attributes:
        learner: The model and its optimizer.
        estimator: Turns rewards into advantages.
        weighting: How much each token counts.
        correction: Importance weights, if any.
        masks_truncated: Whether truncated trajectories carry no loss.
        wanted: What the annotation pass has to compute.
        reference: Opens the reference model, if one is needed.
        has_penalties: Whether a KL term or an entropy bonus also acts on tokens without advantage.
        whole_paths: Whether the surrogate uses ratios of whole trajectories.
        problems_per_minibatch: Number of trees in one optimizer step.
        minibatches: Optimizer steps in a step of the run with a full batch.
        token_budget: Most tokens of a row.
        temperature: Temperature of the sampling distribution.
        max_gap: See `Learner.update`; None if the old logprobs are the learner's own.
    """

    learner: Learner
    estimator: Estimator
    weighting: Weighting
    correction: ImportanceCorrection | None
    masks_truncated: bool
    wanted: Wanted
    reference: Reference | None
    has_penalties: bool
    whole_paths: bool
    problems_per_minibatch: int
    minibatches: int
    token_budget: int
    temperature: float
    max_gap: float | None

    def annotate(self, trees: Sequence[Tree]) -> tuple[Notes, ...]:
        """The old logprobs, and whatever else the engine did not provide."""
        return annotate(
            self.learner.model,
            trees,
            self.wanted,
            reference=self.reference,
            temperature=self.temperature,
            token_budget=self.token_budget,
        )

    def advantages(
        self, trees: Sequence[Tree], rewards: Sequence[Sequence[Reward]], notes: Sequence[Notes]
    ) -> list[tuple[Floats, ...]]:
        """Advantages of each tree, from sums over all ranks. [P][G][T]"""
        sums = sum_over_ranks(self.estimator.moments(trees, rewards, notes))
        return [
            self.estimator.advantages(tree, given, found, sums)
            for tree, given, found in zip(trees, rewards, notes, strict=True)
        ]

    def update(
        self,
        trees: Sequence[Tree],
        advantages: Sequence[Sequence[Floats]],
        notes: Sequence[Notes],
        refused: Callable[[Sequence[UpdateReport]], bool] | None = None,
    ) -> list[UpdateReport]:
        """One optimizer step for each mini-batch of whole problems, until the reports so far are `refused`.

        Every rank takes as many steps as the rank with the most trees. A step sums over all ranks, so a rank that has
        no trees left takes part without rows. Reports, and so refusals, are the same on all ranks.
        """
        reports: list[UpdateReport] = []
        # Until a step has changed the weights, they are the ones that sampled the rollout.
        max_gap = self.max_gap
        most = int(max_over_ranks({"trees": len(trees)})["trees"])
        for start in range(0, most, self.problems_per_minibatch):
            part = slice(start, start + self.problems_per_minibatch)
            report = self._step(trees[part], advantages[part], notes[part], max_gap)
            max_gap = None if report.outcome == "stepped" else max_gap
            reports.append(report)
            if refused is not None and refused(reports):
                break
        return reports

    def end_step(self, steps_done: int) -> None:
        """Set the schedule to the end of step `steps_done` of the run, however many mini-batches the steps had."""
        self.learner.step = steps_done * self.minibatches

    def _step(
        self,
        trees: Sequence[Tree],
        advantages: Sequence[Sequence[Floats]],
        notes: Sequence[Notes],
        max_gap: float | None,
    ) -> UpdateReport:
        rho = (
            None
            if self.correction is None
            else [self.correction.weights(t, n) for t, n in zip(trees, notes, strict=True)]
        )
        kept = [untruncated(tree) for tree in trees] if self.masks_truncated else None
        credits = [
            credit(
                tree,
                advantages[i],
                self.weighting,
                corrections=None if rho is None else rho[i],
                kept=None if kept is None else kept[i],
            )
            for i, tree in enumerate(trees)
        ]
        rows = pack(
            trees,
            credits,
            self.token_budget,
            notes=notes,
            keep_dead=self.has_penalties,
            share_prefixes=packs_trees(self.learner.model),
        )
        whole = sum_over_ranks({"denominator": denominator(trees, self.weighting)})["denominator"]
        paths = (
            path_credit(trees, advantages, self.weighting, corrections=rho, kept=kept)
            if self.whole_paths
            else None
        )
        report = self.learner.update(rows, whole, paths, max_gap)
        if rho is None:
            return report
        return replace(report, metrics={**report.metrics, **_weights_seen(rho, self.correction)})


def _weights_seen(
    rho: Sequence[Sequence[Floats]], correction: ImportanceCorrection | None
) -> dict[str, float]:
    """Mean importance weight over the written tokens of all trajectories, and the share that was capped or masked."""
    assert correction is not None
    weights = np.concatenate([np.empty(0), *(array for of_tree in rho for array in of_tree)])
    bound = correction.cap if correction.kind == "truncate" else 0.0
    sums = sum_over_ranks(
        {"count": len(weights), "sum": float(weights.sum()), "bounded": float((weights == bound).sum())}
    )
    count = max(sums["count"], 1.0)
    return {"weight_mean": sums["sum"] / count, "weight_bounded": sums["bounded"] / count}


def build_learning(recipe: TrainRecipe, learner: Learner, minibatches: int) -> Learning:
    """The algorithm of a recipe, applied to a learner.

    Raises:
        DataError: The reference model cannot be read.
    """
    algorithm = recipe.algorithm
    objective = build_objective(algorithm)
    wanted = wanted_notes(algorithm)
    return Learning(
        learner=learner,
        estimator=build_estimator(algorithm),
        weighting=build_weighting(algorithm),
        correction=build_correction(algorithm),
        masks_truncated=algorithm.truncated == "mask",
        wanted=wanted,
        reference=build_reference(recipe.model, learner.model) if wanted.ref_logprobs else None,
        has_penalties=bool(objective.penalties),
        whole_paths=objective.path_loss is not None,
        problems_per_minibatch=recipe.learner.problems_per_minibatch,
        minibatches=minibatches,
        token_budget=recipe.learner.token_budget,
        temperature=recipe.rollout.temperature,
        max_gap=(algorithm.max_gap or GAP_TOLERANCE) if algorithm.old == "behavior" else None,
    )
