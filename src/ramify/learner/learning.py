"""The second half of a training step: from scored trees to an updated model.

First the annotation pass: one pass without gradient over a rollout's unique tokens, for what the engine did not provide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.credit import training_trees
from ramify.algos.ops import by_node
from ramify.algos.sft import counted_once
from ramify.core.outcomes import counted_trees
from ramify.core.protocols import Estimator
from ramify.core.records import (
    AnnotatedTree,
    Annotations,
    Floats,
    NodeAnnotations,
    PackedRow,
    ScoredTree,
    TrainingTree,
    behavior_annotations,
)
from ramify.core.tree import Tree
from ramify.learner.forward import PassSettings
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner

_NodeValues: TypeAlias = dict[str, dict[str, Floats]]
"""Results of the passes, by node id and name of the annotation."""


@dataclass(frozen=True, slots=True)
class AnnotationRequest:
    """The per-token values to compute; passes that none of them needs are skipped.

    Attributes:
        old: Source of the old logprobs: "behavior" takes the engine's, "recompute" those of a pass of the learner.
        entropies: Compute the policy's entropies.
        ref_logprobs: Compute the reference model's logprobs.
    """

    old: Literal["behavior", "recompute"] = "behavior"
    entropies: bool = False
    ref_logprobs: bool = False


def annotate(
    learner: Learner,
    trees: Sequence[ScoredTree],
    request: AnnotationRequest,
    *,
    temperature: float,
    chunk_tokens: int = 1024,
) -> tuple[AnnotatedTree, ...]:
    """Annotate each policy node of the trees, with at most one pass of the policy and one of the reference model.

    Args:
        learner: Holds the policy, with the weights to annotate under, and the reference model.
        trees: The trees of the rollout.
        request: The values to compute.
        temperature: Temperature of the sampling distribution.
        chunk_tokens: Number of tokens whose logits exist at a time.

    Raises:
        ValueError: `ref_logprobs` without a reference model.
    """
    if request == AnnotationRequest():
        return tuple(AnnotatedTree(s.tree, s.rewards, behavior_annotations(s.tree)) for s in trees)
    # Each unique token once, however often the algorithm counts it: an annotation belongs to a token, not to a path.
    shares = learner.pack_and_deal([counted_once(scored.tree) for scored in trees])
    rows = shares.all_rows
    computed: list[_NodeValues] = [{} for _ in trees]
    if request.old == "recompute" or request.entropies:
        settings = PassSettings(temperature, chunk_tokens, with_entropy=request.entropies)
        for row, (logprobs, entropies) in zip(rows, learner.forward(shares, settings), strict=True):
            if request.old == "recompute":
                _store_spans(computed, row, "old_logprobs", logprobs)
            if entropies is not None:
                _store_spans(computed, row, "entropies", entropies)
    if request.ref_logprobs:
        settings = PassSettings(temperature, chunk_tokens, with_entropy=False)
        reference_logprobs = learner.forward(shares, settings, of_reference=True)
        for row, (logprobs, _) in zip(rows, reference_logprobs, strict=True):
            _store_spans(computed, row, "ref_logprobs", logprobs)
    return tuple(
        AnnotatedTree(scored.tree, scored.rewards, _annotations(scored.tree, of_tree, request))
        for scored, of_tree in zip(trees, computed, strict=True)
    )


def _store_spans(computed: Sequence[_NodeValues], row: PackedRow, name: str, values: Floats) -> None:
    for span in row.spans:
        computed[span.tree].setdefault(span.node, {})[name] = values[span.start : span.stop]


def _annotations(tree: Tree, computed: _NodeValues, request: AnnotationRequest) -> Annotations:
    """Decide, here only, which logprobs are the old ones."""
    nodes = behavior_annotations(tree)
    if request.old == "recompute":
        # The passes skip a node that a deadline cut before its first token: its values stay empty.
        nodes = {key: NodeAnnotations(np.empty(0)) for key in nodes}
    return {key: replace(note, **computed.get(key, {})) for key, note in nodes.items()}


@dataclass(frozen=True, slots=True)
class Learning:
    """An algorithm applied to a learner.

    Attributes:
        learner: The model, its optimizer and its objective.
        estimator: Turns rewards into advantages.
        correction: Importance weights, if any.
        masks_truncated: Whether trajectories that a limit on tokens or calls cut carry no loss.
        request: The values that the annotation pass computes.
        problems_per_minibatch: Number of trees in one optimizer step.
        minibatches: Optimizer steps in a step of the run with a full batch.
        temperature: Temperature of the sampling distribution.
        max_mismatch: See `Learner.update`; None if the old logprobs are the learner's own.
        max_kl: See `Learner.update`; None if they are the engine's.
    """

    learner: Learner
    estimator: Estimator
    correction: ImportanceCorrection | None
    masks_truncated: bool
    request: AnnotationRequest
    problems_per_minibatch: int
    minibatches: int
    temperature: float
    max_mismatch: float | None
    max_kl: float | None = None

    def credit(self, batch: Sequence[ScoredTree]) -> tuple[TrainingTree, ...]:
        """Annotate the trees of a rollout batch, and turn their rewards into advantages and importance weights.

        Trajectories that do not count are left out, and with them the trees of which nothing is left.
        """
        annotated = annotate(self.learner, counted_trees(batch), self.request, temperature=self.temperature)
        return training_trees(annotated, self.estimator, self.correction, self.masks_truncated)

    def update(
        self,
        trees: Sequence[TrainingTree],
        refused: Callable[[Sequence[UpdateReport]], bool] | None = None,
    ) -> list[UpdateReport]:
        """Take one optimizer step for each mini-batch of whole problems, until the reports so far are `refused`."""
        reports: list[UpdateReport] = []
        # Until a step has changed the weights, they are the ones that sampled the rollout.
        max_mismatch, max_kl = self.max_mismatch, self.max_kl
        for start in range(0, len(trees), self.problems_per_minibatch):
            minibatch = trees[start : start + self.problems_per_minibatch]
            report = self.learner.update(minibatch, max_mismatch, max_kl)
            if self.correction is not None:
                weights = _weight_metrics(minibatch, self.correction)
                report = replace(report, metrics={**report.metrics, **weights})
            if report.outcome == "stepped":
                max_mismatch = max_kl = None
            reports.append(report)
            if refused is not None and refused(reports):
                break
        return reports

    def end_step(self, steps_done: int) -> None:
        """Set the schedule to the end of step `steps_done` of the run, however many mini-batches the steps had."""
        self.learner.step = steps_done * self.minibatches


def _weight_metrics(trees: Sequence[TrainingTree], correction: ImportanceCorrection) -> dict[str, float]:
    """Return the mean importance weight over the trained tokens of all trajectories, and the share that was capped or masked."""
    own = [
        part
        for tree in trees
        for trajectory, rho in zip(tree.tree.trajectories, tree.rho or (), strict=False)
        for node, part in by_node(trajectory, rho)
        if node.id not in tree.tree.inherited_ids
    ]
    weights = np.concatenate([np.empty(0), *own])
    bound = correction.cap if correction.kind == "truncate" else 0.0
    count = max(len(weights), 1)
    bounded = float((weights == bound).sum())
    return {"weight_mean": float(weights.sum()) / count, "weight_bounded": bounded / count}
